"""The command line: every command's flags, and where errors are printed. Imports lazily: --help is quick."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from localspec import __version__
from localspec.errors import ExitStatus, LocalspecError
from localspec.ui.terminal import Terminal, read_stdin, silence

_BadCommandLine: Any = typer.BadParameter.__mro__[2]  # click's ClickException: typer may bring its own click

_ROOT_OPTIONS = not sys.argv[1:] or sys.argv[1].startswith("-")
"""Whether options before the command can be meant. Merely having them costs each command the import of
pydantic, by which typer finds that they were not given."""

app = typer.Typer(
    name="localspec",
    help="Run a local GGUF model as fast as this machine allows, without changing what it says.",
    epilog='Example: localspec chat "Why is the sky blue?"',
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=_ROOT_OPTIONS,
    add_help_option=_ROOT_OPTIONS,
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
Exit codes: 0 ok, 1 error, 2 usage, 3 no model, 4 does not fit memory, 130 stopped by Ctrl-C, 141 broken pipe.
"""


def _setting(name: str, text: str, *flags: str) -> Any:
    """An option that LOCALSPEC_NAME can give as well."""
    return typer.Option(*flags, help=text, envvar=f"LOCALSPEC_{name.upper()}", show_envvar=False)


_Model = Annotated[
    str | None,
    _setting(
        "model", "Catalogue name, org/repo[:QUANT] or path. [default: the best one here]", "-m", "--model"
    ),
]
_Ctx = Annotated[int | None, _setting("ctx", "Context. [default: the model's, at most 8192]")]
_Threads = Annotated[int | None, _setting("threads", "[default: physical cores]", "-t", "--threads")]
_GpuLayers = Annotated[int | None, _setting("gpu_layers", "Layers on the GPU. [default: what fits]")]
_KvType = Annotated[str | None, _setting("kv_type", "Cache: f16, q8_0, bf16, ... [default: what fits]")]
_FlashAttn = Annotated[str | None, _setting("flash_attn", "auto, on or off. [default: auto]")]
_Tokens = Annotated[
    int | None, typer.Option(min=1, max=100_000, help="Longest answer. [default: 200, or max_tokens if set]")
]
_Seed = Annotated[int | None, _setting("seed", "[default: 0]")]
_Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Nothing on stderr but errors.")]
_Verbose = Annotated[
    int,
    typer.Option("-v", "--verbose", count=True, help="-v: how the model was loaded. -vv: llama.cpp's log."),
]
_Exact = Annotated[
    bool | None,
    _setting("exact", "Guess only where passes are proven to compute the same, bit for bit.", "--exact"),
]


@app.command(epilog=CHAT_EPILOG)
def chat(
    question: Annotated[
        str | None, typer.Argument(help="What to ask. Without: stdin, or a conversation.")
    ] = None,
    model: _Model = None,
    draft: Annotated[
        str | None,
        _setting("draft", "Who guesses: auto, none, or a list of ngram, self, a model. [default: auto]"),
    ] = None,
    draft_len: Annotated[
        int | None, _setting("draft_len", "Always guess this many tokens. [default: as many as pay]")
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
    ctx: _Ctx = None,
    threads: _Threads = None,
    gpu_layers: _GpuLayers = None,
    kv_type: _KvType = None,
    flash_attn: _FlashAttn = None,
    exact: _Exact = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Talk on after the first answer, also after a pipe.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the text.")] = False,
    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Underline accepted guesses, on a terminal.")
    ] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="End with what guessing brought, as /stats in a conversation.")
    ] = False,
    color: Annotated[str | None, _setting("color", "auto, always or never. [default: auto]")] = None,
    quiet: _Quiet = False,
    verbose: _Verbose = 0,
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

        modes = {"interactive": interactive, "as_json": json, "show_drafts": show_drafts, "stats": stats}
        raise typer.Exit(run(settings, terminal, question, sent, **modes))


VERIFY_EPILOG = """
Example: localspec verify -m model-q4_k_m.gguf --exact --temps 0,0.8 --json

Exit codes: 0 identical but for near ties, 1 DEFECT or error, others as for chat.
"""


@app.command(epilog=VERIFY_EPILOG)
def verify(
    model: _Model = None,
    draft: Annotated[str | None, _setting("draft", "Who guesses, as for chat. [default: auto]")] = None,
    draft_len: Annotated[int | None, _setting("draft_len", "As for chat.")] = None,
    accept: Annotated[str | None, _setting("accept", "coupled or rejection. [default: coupled]")] = None,
    temps: Annotated[str, typer.Option(help="Temperatures.")] = "0,0.8",
    tokens: _Tokens = None,
    prompts: Annotated[
        str | None, typer.Option(help="A file of prompts, JSON lines. [default: one of each family]")
    ] = None,
    seed: _Seed = None,
    ctx: _Ctx = None,
    threads: _Threads = None,
    gpu_layers: _GpuLayers = None,
    kv_type: _KvType = None,
    flash_attn: _FlashAttn = None,
    exact: _Exact = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: _Quiet = False,
    verbose: _Verbose = 0,
) -> None:
    """Does guessing change the text? Decode prompts with and without, and certify what came of it."""
    given = dict(locals())
    from localspec import config

    terminal = Terminal.standard("auto", -1 if quiet else verbose)
    with _outcome(terminal):
        settings = config.load({name: given[name] for name in config.names() if name in given})
        terminal.progress("loading ...")
        from pathlib import Path

        from localspec.bench import check
        from localspec.bench.workloads import parse_temps

        file = Path(prompts) if prompts else None
        wanted = check.Wanted(parse_temps(temps), tokens or settings.max_tokens or 200, file)
        raise typer.Exit(check.verify(settings, terminal, wanted, as_json=json))


BENCH_EPILOG = """
Examples:

  localspec bench -m model-q8_0.gguf --draft ngram,model-q4_0.gguf --family code --family chat

  localspec bench -m model-q8_0.gguf --force answers.jsonl --curves machines.json --json

Prompts: JSON lines with "prompt" or "turns"; for --force with "prompt" and "output". Curves: {"NAME": {"T":
{"1": 1.0, "2": 1.1}, "draft": 0.1}}, in passes over one token.
"""


@app.command(epilog=BENCH_EPILOG)
def bench(
    model: _Model = None,
    draft: Annotated[
        str | None,
        _setting("draft", "Who guesses, as for chat; PATH@greedy also guesses greedily. [default: auto]"),
    ] = None,
    prompts: Annotated[str | None, typer.Option(help="A file of prompts. [default: built-in ones]")] = None,
    force: Annotated[str | None, typer.Option(help="A file of prompts with the answers to take.")] = None,
    family: Annotated[list[str] | None, typer.Option(help="Only prompts of this family. Repeatable.")] = None,
    temps: Annotated[str | None, typer.Option(help="Temperatures. [default: 0,0.8, with --force 0]")] = None,
    tokens: _Tokens = None,
    per_family: Annotated[
        int | None, typer.Option(min=1, help="Prompts of each family. [default: 1; all of a file]")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each setting.")] = 1,
    settings: Annotated[
        str | None, typer.Option(help="none, ngram-7, draft-4, hybrid, auto, ... [default: all usual ones]")
    ] = None,
    curves: Annotated[str | None, typer.Option(help="Cost tables for virtual clocks.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    png: Annotated[str | None, typer.Option(help="Also draw the measurements into this file.")] = None,
    seed: _Seed = None,
    ctx: _Ctx = None,
    threads: _Threads = None,
    gpu_layers: _GpuLayers = None,
    kv_type: _KvType = None,
    quiet: _Quiet = False,
    verbose: _Verbose = 0,
) -> None:
    """How fast is each way of guessing here, against plain decoding and against the possible?"""
    given = dict(locals())
    from localspec import config

    terminal = Terminal.standard("auto", -1 if quiet else verbose)
    with _outcome(terminal):
        wishes = config.load({name: given[name] for name in config.names() if name in given})
        terminal.progress("loading ...")
        from localspec.bench import run
        from localspec.bench.workloads import parse_temps

        options = run.Options(
            prompts=prompts,
            force=force,
            families=tuple(family or ()),
            temps=parse_temps(temps) if temps is not None else None,
            tokens=tokens or wishes.max_tokens or 200,
            per_family=per_family or (None if prompts or force else 1),
            repeats=repeats,
            names=tuple(name.strip() for name in settings.split(",")) if settings is not None else None,
            curves=curves,
        )
        raise typer.Exit(run.bench(options, wishes, terminal, as_json=json, png=png))


models_app = typer.Typer(
    help="The models there are: listed, described, fetched, deleted, paired.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.add_typer(models_app, name="models")

_Name = Annotated[str, typer.Argument(help="Catalogue name, org/repo[:QUANT] or path.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@models_app.command("list")
def models_list(
    here: Annotated[bool, typer.Option("--here", help="Only what is on this machine.")] = False,
    json: _Json = False,
) -> None:
    """The catalogue, and what is on this machine."""
    terminal = Terminal.standard("auto")
    with _outcome(terminal):
        from localspec import manage

        table = [row for row in manage.rows() if row.get("path") or not here]
        _print(terminal, table if json else manage.list_lines(table), as_json=json)


@models_app.command("info")
def models_info(name: _Name, json: _Json = False) -> None:
    """What a model is, read from its header: here, or on the Hub without fetching its weights."""
    terminal = Terminal.standard("auto")
    with _outcome(terminal):
        from localspec import manage

        told = manage.info(manage.know(name, terminal))
        _print(
            terminal, told if json else (f"{key:<20} {value}" for key, value in told.items()), as_json=json
        )


@models_app.command("pull")
def models_pull(name: _Name) -> None:
    """Fetch a model. An interrupted download goes on where it was."""
    terminal = Terminal.standard("auto")
    with _outcome(terminal):
        from localspec import obtain

        terminal.write(f"{obtain.obtain(name, terminal, yes=True)}\n")


@models_app.command("rm")
def models_rm(name: _Name) -> None:
    """Delete a model's download and its low-bit copies; of a path only the copies."""
    terminal = Terminal.standard("auto")
    with _outcome(terminal):
        from localspec import manage

        for path in manage.remove(name):
            terminal.write(f"{path}\n")


@models_app.command("pairs")
def models_pairs(
    name: _Name,
    temp: Annotated[float, typer.Option(help="Temperature the expectation is for.")] = 0.8,
    json: _Json = False,
) -> None:
    """What could guess for a model, best first, with the speed expected of each."""
    terminal = Terminal.standard("auto")
    with _outcome(terminal):
        from localspec import manage

        told = manage.drafts_for(manage.know(name, terminal), temp, terminal)
        rows = (f"{row['draft']:<24} {row['expected']:>5.2f}x  {row['why']}" for row in told)
        _print(terminal, told if json else rows, as_json=json)


@app.command()
def plan(
    name: Annotated[str | None, typer.Argument(help="Catalogue name, org/repo[:QUANT] or path.")] = None,
    vram: Annotated[
        str | None, typer.Option(help="What if there were one GPU of this size, as in 8G.")
    ] = None,
    ctx: Annotated[str | None, typer.Option(help="Context in tokens, as in 32k.")] = None,
    kv_type: _KvType = None,
    gpu_layers: _GpuLayers = None,
    draft: Annotated[str | None, _setting("draft", "none: plan without guesses.")] = None,
    json: _Json = False,
) -> None:
    """How a model would run on this machine, and why; nothing is loaded."""
    terminal = Terminal.standard("auto")
    with _outcome(terminal):
        from localspec import config, manage, obtain
        from localspec.loading import budget

        tokens = manage.parse_size(ctx) if ctx else None
        given = {"ctx": tokens, "kv_type": kv_type, "gpu_layers": gpu_layers, "draft": draft, "model": name}
        settings = config.load(given)
        known = manage.know(settings.model or str(obtain.default_model(terminal, *budget())), terminal)
        found = manage.plan_for(known, settings, vram)
        _print(terminal, manage.plan_dict(found) if json else found.why, as_json=json)


@app.command()
def doctor(json: _Json = False) -> None:
    """What this machine can do, what is wrong, and one fix for each."""
    terminal = Terminal.standard("auto")
    with _outcome(terminal):
        from localspec import config
        from localspec import doctor as doctor_

        report = doctor_.examine()
        findings = doctor_.diagnose(report, config.load({}))
        told = {**report.as_dict(), "findings": [{"problem": f.problem, "fix": f.fix} for f in findings]}
        _print(terminal, told if json else doctor_.lines(report, findings), as_json=json)


def _print(terminal: Terminal, told: Any, *, as_json: bool) -> None:
    """The result on stdout: JSON, or lines."""
    if as_json:
        from json import dumps

        terminal.write(dumps(told, ensure_ascii=False, indent=2) + "\n")
    else:
        terminal.write("".join(f"{line}\n" for line in told))


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
    with _outcome(Terminal.standard("auto")):
        status = app(sys.argv[1:] or ["--help"], prog_name="localspec", standalone_mode=False)
    sys.exit(status)
