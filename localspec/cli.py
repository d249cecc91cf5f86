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
from localspec.ui.terminal import Terminal, read_stdin

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

stdout carries the answer and nothing else. Every option with [env var] can also stand in config.toml.
Exit codes: 0 ok, 1 error, 2 usage, 3 no model, 130 stopped by Ctrl-C, 141 broken pipe.
"""


@app.command(epilog=CHAT_EPILOG)
def chat(
    question: Annotated[
        str | None, typer.Argument(help="What to ask. Without it: stdin, or a conversation.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "-m", "--model", envvar="LOCALSPEC_MODEL", help="GGUF to run. [default: the packaged one]"
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            envvar="LOCALSPEC_DRAFT",
            help="Allowed sources of guesses, by comma: none, ngram, the path of a GGUF. [default: ngram]",
        ),
    ] = None,
    draft_len: Annotated[
        int | None,
        typer.Option(envvar="LOCALSPEC_DRAFT_LEN", help="Always guess this many tokens. [default: adaptive]"),
    ] = None,
    accept: Annotated[
        str | None,
        typer.Option(
            envvar="LOCALSPEC_ACCEPT",
            help="coupled: a seed's text is the same with any guesses. rejection: same law, a few more "
            "guesses kept, text depends on them. [default: coupled]",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("-t", "--threads", envvar="LOCALSPEC_THREADS", help="[default: physical cores]"),
    ] = None,
    gpu_layers: Annotated[
        int | None, typer.Option(envvar="LOCALSPEC_GPU_LAYERS", help="Layers on the GPU. [default: all]")
    ] = None,
    kv_type: Annotated[
        str | None, typer.Option(envvar="LOCALSPEC_KV_TYPE", help="f16, q8_0, bf16, f32, ... [default: f16]")
    ] = None,
    flash_attn: Annotated[
        str | None, typer.Option(envvar="LOCALSPEC_FLASH_ATTN", help="auto, on or off. [default: auto]")
    ] = None,
    ctx: Annotated[
        int | None,
        typer.Option(envvar="LOCALSPEC_CTX", help="Context in tokens. [default: the model's, at most 8192]"),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "-n", "--max-tokens", envvar="LOCALSPEC_MAX_TOKENS", help="Longest answer. [default: the context]"
        ),
    ] = None,
    temp: Annotated[
        float | None, typer.Option(envvar="LOCALSPEC_TEMP", help="Temperature, 0 is greedy. [default: 0.8]")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(envvar="LOCALSPEC_TOP_K", help="0 is off. [default: 40]")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(envvar="LOCALSPEC_TOP_P", help="1 is off. [default: 0.95]")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(envvar="LOCALSPEC_MIN_P", help="0 is off. [default: 0.05]")
    ] = None,
    repeat_penalty: Annotated[
        float | None, typer.Option(envvar="LOCALSPEC_REPEAT_PENALTY", help="1 is off. [default: 1]")
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(envvar="LOCALSPEC_PRESENCE_PENALTY", help="0 is off. [default: 0]")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(envvar="LOCALSPEC_SEED", help="[default: random, printed]")
    ] = None,
    system: Annotated[str | None, typer.Option(envvar="LOCALSPEC_SYSTEM", help="System message.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End the answer before this text. Repeatable.")
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Talk on after the first answer, also after a pipe.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the text.")] = False,
    color: Annotated[
        str | None, typer.Option(envvar="LOCALSPEC_COLOR", help="auto, always or never. [default: auto]")
    ] = None,
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
    except OSError:  # or Python complains about it once more when it leaves
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


def main() -> None:
    """The console script. Without arguments: the help."""
    with _outcome(Terminal.standard("auto")):
        status = app(sys.argv[1:] or ["--help"], prog_name="localspec", standalone_mode=False)
    sys.exit(status)
