"""The commands that change files: edit, undo, edits."""

from __future__ import annotations

from typing import Annotated

import typer

from localspec.cli.common import (
    Ctx,
    Exact,
    FlashAttn,
    GpuLayers,
    Json,
    KvType,
    Model,
    Quiet,
    Threads,
    Verbose,
    open_terminal,
    option,
    outcome,
)
from localspec.ui.terminal import Terminal


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command(epilog=EDIT_EPILOG)(edit)
    app.command()(undo)
    app.command()(edits)


EDIT_EPILOG = """
Examples:

  localspec edit parse.py -i "Add type hints."

  localspec edit config.toml --lines 10-20 -i "Sort the keys." --diff

  localspec edit - -i "Translate the comments into English." < a.py > b.py

  localspec edit parse.py --reply answer.txt

The change is shown and confirmed before it is written; localspec undo takes it back.
Exit codes: 0 ok, 1 error, 2 usage, 3 no model, 4 does not fit memory, 5 not applied, 6 the file changed
meanwhile, 130 stopped by Ctrl-C.
"""


def edit(
    files: Annotated[
        list[str], typer.Argument(help="The files to change, one after another; - is a filter.")
    ],
    instruction: Annotated[
        str | None,
        typer.Option("-i", "--instruction", help="What to change. [default: asked for, or read from stdin]"),
    ] = None,
    lines: Annotated[str | None, typer.Option(help="Change only these lines, as in 40-90.")] = None,
    file: Annotated[
        list[str] | None, typer.Option("-f", "--file", help="A file to read, not to change. Repeatable.")
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Print the patch, write nothing.")] = False,
    yes: Annotated[
        bool, typer.Option("-y", "--yes", help="Write without asking, unless it looks wrong.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="With -y: also what looks wrong.")] = False,
    form: Annotated[
        str, typer.Option("--format", help="How the model answers: whole, blocks or auto.")
    ] = "auto",
    out: Annotated[str | None, typer.Option(help="Write the result there; the file stays as it is.")] = None,
    reply: Annotated[
        str | None,
        typer.Option(help="Take the model's answer from this file, - for stdin; no model is loaded."),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Of the files. [default: UTF-8, or UTF-16 by its mark]")
    ] = None,
    model: Model = None,
    draft: Annotated[str | None, option("Who guesses, as for chat. [default: auto]")] = None,
    max_tokens: Annotated[
        int | None,
        option("Longest answer. [default: the file's length and some]", "-n", "--max-tokens"),
    ] = None,
    temp: Annotated[float | None, option("Temperature. [default: 0, greedy]")] = None,
    seed: Annotated[int | None, option("[default: random, printed]")] = None,
    ctx: Ctx = None,
    threads: Threads = None,
    gpu_layers: GpuLayers = None,
    kv_type: KvType = None,
    flash_attn: FlashAttn = None,
    exact: Exact = None,
    think: Annotated[
        bool | None,
        option("Let a reasoning model think first. [default: not]", "--think/--no-think"),
    ] = None,
    json: Json = False,
    color: Annotated[str | None, option("auto, always or never. [default: auto]")] = None,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Let a model change files: shown, confirmed, written whole or not at all."""
    given = dict(locals())
    from localspec import config

    terminal = open_terminal(color, -1 if quiet else verbose)
    with outcome(terminal):
        given["temp"] = temp or 0.0  # config.toml's is for talking
        settings = config.load({name: given[name] for name in config.names() if name in given})
        terminal.err_color = Terminal.standard(settings.color).err_color
        from localspec.edit.command import edit as run
        from localspec.edit.inputs import Options

        options = Options(
            files=tuple(files),
            instruction=instruction,
            lines=lines,
            context=tuple(file or ()),
            diff=diff,
            yes=yes,
            force=force,
            format=form,
            out=out,
            reply=reply,
            encoding=encoding,
            as_json=json,
        )
        raise typer.Exit(run(options, settings, terminal))


def undo(
    file: Annotated[str | None, typer.Argument(help="The file. [default: the one edited last]")] = None,
) -> None:
    """Take back the last edit of a file: its exact bytes return."""
    terminal = open_terminal()
    with outcome(terminal):
        from localspec.edit.command import undo as run

        raise typer.Exit(run(file, terminal))


def edits(json: Json = False) -> None:
    """The edits that can be taken back, the last one first."""
    terminal = open_terminal()
    with outcome(terminal):
        from localspec.edit.command import edits as run

        raise typer.Exit(run(terminal, json))
