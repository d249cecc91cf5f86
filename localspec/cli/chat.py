"""The commands that talk: chat, sessions."""

from __future__ import annotations

from dataclasses import asdict
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
    show,
)
from localspec.errors import UsageError
from localspec.ui.keys import Keys
from localspec.ui.terminal import Terminal, read_stdin


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command(epilog=CHAT_EPILOG)(chat)
    app.add_typer(sessions_app, name="sessions")


CHAT_EPILOG = """
Examples:

  localspec chat "Why is the sky blue?"

  git diff | localspec chat "Review this change."

  localspec chat -f notes.md "What is still open?" > open.txt

  localspec chat --continue

  localspec chat --schema person.json "Invent a person."

  localspec chat --batch prompts.jsonl --out answers.jsonl

stdout carries the answer and nothing else. Settings come from flags, then LOCALSPEC_CTX and the like, then
config.toml.
Exit codes: 0 ok, 1 error, 2 usage, 3 no model, 4 does not fit memory, 130 stopped by Ctrl-C, 141 broken pipe.
"""


def chat(
    question: Annotated[
        str | None, typer.Argument(help="What to ask. Without: stdin, or a conversation.")
    ] = None,
    model: Model = None,
    draft: Annotated[
        str | None,
        option("Who guesses: auto, none, or a list of ngram, self, a model. [default: auto]"),
    ] = None,
    draft_len: Annotated[
        int | None, option("Always guess this many tokens. [default: as many as pay]")
    ] = None,
    accept: Annotated[
        str | None,
        option(
            "coupled: a seed's text is the same with any guesses. rejection: keeps more guesses, "
            "the text depends on them, its law does not. [default: coupled]",
        ),
    ] = None,
    system: Annotated[str | None, option("System message.")] = None,
    max_tokens: Annotated[
        int | None, option("Longest answer. [default: the context]", "-n", "--max-tokens")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End the answer before this text. Repeatable.")
    ] = None,
    temp: Annotated[float | None, option("Temperature, 0 is greedy. [default: 0.8]")] = None,
    top_k: Annotated[int | None, option("0 is off. [default: 40]")] = None,
    top_p: Annotated[float | None, option("1 is off. [default: 0.95]")] = None,
    min_p: Annotated[float | None, option("0 is off. [default: 0.05]")] = None,
    repeat_penalty: Annotated[float | None, option("1 is off. [default: 1]")] = None,
    presence_penalty: Annotated[float | None, option("0 is off. [default: 0]")] = None,
    seed: Annotated[int | None, option("[default: random, printed]")] = None,
    ctx: Ctx = None,
    threads: Threads = None,
    gpu_layers: GpuLayers = None,
    kv_type: KvType = None,
    flash_attn: FlashAttn = None,
    exact: Exact = None,
    file: Annotated[
        list[str] | None,
        typer.Option("-f", "--file", help="A file to ask about, a pattern, or - for stdin. Repeatable."),
    ] = None,
    go_on: Annotated[
        bool, typer.Option("-c", "--continue", help="Go on with the last conversation.")
    ] = False,
    session: Annotated[
        str | None, typer.Option(help="Go on with the conversation of this name, or begin it.")
    ] = None,
    save: Annotated[
        bool | None,
        option("Keep what is said on a terminal, or nothing. [default: keep]", "--save/--no-save"),
    ] = None,
    think: Annotated[
        bool | None,
        option(
            "Let a reasoning model think and show it, or not think. [default: as it likes, folded]",
            "--think/--no-think",
        ),
    ] = None,
    plain: Annotated[bool | None, option("Show answers as they are, not as Markdown.", "--plain")] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Talk on after the first answer, also after a pipe.")
    ] = False,
    schema: Annotated[
        str | None, typer.Option(help="A JSON schema, a file: answers are JSON that fits it.")
    ] = None,
    grammar: Annotated[
        str | None, typer.Option(help="A grammar in llama.cpp's GBNF, a file: answers follow it.")
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(help='Answer a file of prompts, JSON lines such as {"prompt": "..."}; - for stdin.'),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(help="Where --batch puts its answers; goes on after a crash. [default: stdout]"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the text.")] = False,
    json_stream: Annotated[
        bool, typer.Option("--json-stream", help="Print JSON lines: pieces of text, then the figures.")
    ] = False,
    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Underline accepted guesses, on a terminal.")
    ] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="End with what guessing brought, as /stats in a conversation.")
    ] = False,
    vi: Annotated[bool | None, option("Edit the prompt with vi's keys.", "--vi")] = None,
    color: Annotated[str | None, option("auto, always or never. [default: auto]")] = None,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Ask a model one thing, or talk with it."""
    given = dict(locals())
    from localspec import config

    verbosity = -1 if quiet else verbose
    terminal = open_terminal(color, verbosity)
    with outcome(terminal):
        settings = config.load({name: given[name] for name in config.names()})
        terminal.err_color = Terminal.standard(settings.color).err_color
        _refuse_together(json=json, json_stream=json_stream, batch=batch is not None, interactive=interactive)
        _refuse_together(schema=schema is not None, grammar=grammar is not None)
        sent = read_stdin() if batch in (None, "-") else None
        terminal.progress("loading ...")
        from localspec.chat.loop import Options
        from localspec.chat.loop import chat as run

        options = Options(
            interactive=interactive,
            as_json=json,
            as_events=json_stream,
            show_drafts=show_drafts,
            stats=stats,
            files=tuple(file or ()),
            session=session,
            go_on=go_on,
            schema=schema,
            grammar=grammar,
            batch=batch,
            out=out,
        )
        raise typer.Exit(run(settings, terminal, question, sent, options, _take))


def _take(name: str, answer: str, terminal: Terminal, keys: Keys) -> None:
    """What /edit does."""
    from localspec.edit.command import take

    take(name, answer, terminal, keys)


def _refuse_together(**given: bool) -> None:
    """UsageError when two of these options are given."""
    flags = ["--" + name.replace("_", "-") for name, is_given in given.items() if is_given]
    if len(flags) > 1:
        raise UsageError(f"{' and '.join(flags)} exclude each other", f"give {flags[0]} or {flags[1]}")


sessions_app = typer.Typer(rich_markup_mode=None, invoke_without_command=True)
_Session = Annotated[str, typer.Argument(help="Its name; localspec sessions list has them.")]


@sessions_app.callback()
def _sessions(context: typer.Context) -> None:
    """The conversations that are kept: listed, shown, exported, deleted."""
    if context.invoked_subcommand is None:
        sessions_list()


@sessions_app.command("list")
def sessions_list(json: Json = False) -> None:
    """The conversations that are kept, the last one first."""
    terminal = open_terminal()
    with outcome(terminal):
        from localspec.chat import session

        found = session.list_sessions()
        told = [asdict(kept) for kept in found] if json else session.listed(found)
        show(terminal, told, as_json=json)


@sessions_app.command("show")
def sessions_show(name: _Session) -> None:
    """A conversation, as plain text."""
    terminal = open_terminal()
    with outcome(terminal):
        from localspec.chat import session

        terminal.write(session.export(name, "txt"))


@sessions_app.command("export")
def sessions_export(
    name: _Session,
    form: Annotated[str, typer.Option("--format", help="md, json or txt.")] = "md",
) -> None:
    """A conversation as Markdown, JSON or text, on stdout."""
    terminal = open_terminal()
    with outcome(terminal):
        from localspec.chat import session

        terminal.write(session.export(name, form))


@sessions_app.command("rm")
def sessions_rm(name: _Session) -> None:
    """Delete a conversation, and what was kept to resume it quickly."""
    terminal = open_terminal()
    with outcome(terminal):
        from localspec.chat import session, state

        session.remove(name)
        state.forget()
        terminal.note(f"{name} is deleted")
