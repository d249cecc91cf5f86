"""The command line: every command's flags, and where errors are printed. Imports lazily: --help is quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from localspec import __version__
from localspec.errors import ExitStatus, LocalspecError
from localspec.ui.terminal import Terminal, read_stdin, silence

_BadCommandLine: Any = typer.BadParameter.__mro__[2]  # click's ClickException: typer may bring its own click

app = typer.Typer(
    name="localspec",
    help="Run a local GGUF model as fast as this machine allows, without changing what it says.",
    epilog='Example: localspec chat "Why is the sky blue?"',
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"localspec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


CHAT_EPILOG = """
Examples:

  localspec chat "Why is the sky blue?"

  git diff | localspec chat "Review this change."

  localspec chat -m model-q8_0.gguf --draft ngram,model-q4_0.gguf

stdout carries the answer and nothing else. Settings come from flags, then LOCALSPEC_CTX and the like, then
config.toml.
Exit codes: 0 ok, 1 error, 2 usage, 3 no model, 130 stopped by Ctrl-C, 141 broken pipe.
"""


def _setting(name: str, text: str, *flags: str) -> Any:
    """An option that LOCALSPEC_NAME can give as well."""
    return typer.Option(*flags, help=text, envvar=f"LOCALSPEC_{name.upper()}", show_envvar=False)


@app.command(epilog=CHAT_EPILOG)
def chat(
    question: Annotated[
        str | None, typer.Argument(help="What to ask. Without: stdin, or a conversation.")
    ] = None,
    model: Annotated[
        str | None, _setting("model", "GGUF to run. [default: the packaged one]", "-m", "--model")
    ] = None,
    draft: Annotated[
        str | None,
        _setting("draft", "Sources of guesses, by comma: none, ngram, the path of a GGUF. [default: ngram]"),
    ] = None,
    draft_len: Annotated[
        int | None, _setting("draft_len", "Always guess this many tokens. [default: up to the source]")
    ] = None,
    accept: Annotated[
        str | None,
        _setting(
            "accept",
            "coupled: a seed's text is the same with any guesses. rejection: keeps more guesses, "
            "the text depends on them, its law does not. [default: coupled]",
        ),
    ] = None,
    system: Annotated[str | None, _setting("system", "System message.")] = None,
    max_tokens: Annotated[
        int | None, _setting("max_tokens", "Longest answer. [default: the context]", "-n", "--max-tokens")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End the answer before this text. Repeatable.")
    ] = None,
    temp: Annotated[float | None, _setting("temp", "Temperature, 0 is greedy. [default: 0.8]")] = None,
    top_k: Annotated[int | None, _setting("top_k", "0 is off. [default: 40]")] = None,
    top_p: Annotated[float | None, _setting("top_p", "1 is off. [default: 0.95]")] = None,
    min_p: Annotated[float | None, _setting("min_p", "0 is off. [default: 0.05]")] = None,
    repeat_penalty: Annotated[float | None, _setting("repeat_penalty", "1 is off. [default: 1]")] = None,
    presence_penalty: Annotated[float | None, _setting("presence_penalty", "0 is off. [default: 0]")] = None,
    seed: Annotated[int | None, _setting("seed", "[default: random, printed]")] = None,
    ctx: Annotated[int | None, _setting("ctx", "Context. [default: the model's, at most 8192]")] = None,
    threads: Annotated[
        int | None, _setting("threads", "[default: physical cores]", "-t", "--threads")
    ] = None,
    gpu_layers: Annotated[int | None, _setting("gpu_layers", "Layers on the GPU. [default: all]")] = None,
    kv_type: Annotated[
        str | None, _setting("kv_type", "Cache: f16, q8_0, bf16, f32, ... [default: f16]")
    ] = None,
    flash_attn: Annotated[str | None, _setting("flash_attn", "auto, on or off. [default: auto]")] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Talk on after the first answer, also after a pipe.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the text.")] = False,
    color: Annotated[str | None, _setting("color", "auto, always or never. [default: auto]")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Nothing on stderr but errors.")] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "-v", "--verbose", count=True, help="-v: how the model was loaded. -vv: llama.cpp's log."
        ),
    ] = 0,
) -> None:
    """Ask a model one thing, or talk with it."""
    given = dict(locals())
    from localspec import config

    verbosity = -1 if quiet else verbose
    terminal = Terminal.standard(color or "auto", verbosity)
    with _outcome(terminal):
        settings = config.load({name: given[name] for name in config.names()})
        terminal.err_color = Terminal.standard(settings.color).err_color
        sent = read_stdin()
        terminal.progress("loading ...")
        from localspec.chat.loop import chat as run

        raise typer.Exit(run(settings, terminal, question, sent, interactive=interactive, as_json=json))


@contextmanager
def _outcome(terminal: Terminal) -> Iterator[None]:
    """The one place where an error becomes a line on stderr and an exit code."""
    status = ExitStatus.ERROR
    try:
        yield
        terminal.out.flush()
        return
    except LocalspecError as error:
        terminal.complain(error.message, error.hint)
        status = error.exit_status
    except _BadCommandLine as error:
        command = error.ctx.command_path if error.ctx else "localspec"
        terminal.complain(error.format_message().removesuffix("."), f"try {command} -h")
        status = ExitStatus.USAGE
    except KeyboardInterrupt:
        status = ExitStatus.INTERRUPTED
    except BrokenPipeError:
        status = ExitStatus.BROKEN_PIPE
    except OSError as error:
        terminal.complain(f"cannot go on: {error}")
    try:
        terminal.out.flush()
    except OSError:
        silence(terminal.out)
    sys.exit(status)


def main() -> None:
    """The console script. Without arguments: the help."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # typer's pydantic searches every package
    with _outcome(Terminal.standard("auto")):
        status = app(sys.argv[1:] or ["--help"], prog_name="localspec", standalone_mode=False)
    sys.exit(status)
