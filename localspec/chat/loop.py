"""`localspec chat`: one answer, a batch of them, or a conversation.

Knows what the command line asks for; models and sessions are opening.py's, answers conversation.py's.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from localspec import config
from localspec.chat import attach
from localspec.chat.conversation import Conversation
from localspec.chat.many import answer_all
from localspec.chat.opening import Opener
from localspec.chat.views import Events, Muted, Show
from localspec.config import Settings, is_text
from localspec.engine.types import Cancelled
from localspec.errors import ExitStatus, UsageError
from localspec.llama.grammar import read_grammar
from localspec.models import catalog
from localspec.ui.interrupt import ENDING, on_interrupt
from localspec.ui.keys import Keys
from localspec.ui.terminal import Terminal

if TYPE_CHECKING:  # it takes long to import
    from localspec.chat.talk import Take


@dataclass(frozen=True, slots=True)
class Options:
    """What `localspec chat` is asked for besides Settings.

    `interactive`: talk on after the first answer; keys then come from the terminal even if stdin was a pipe.
    `files`: as --file gives them. `session`: the name of one to go on with or to begin; `go_on`: with the
    last one. `schema`, `grammar`: files that say what answers must look like. `batch`: a file of prompts, and
    `out`, where their answers go. `stats` ends with what /stats says.
    """

    interactive: bool = False
    as_json: bool = False
    as_events: bool = False
    show_drafts: bool = False
    stats: bool = False
    files: tuple[str, ...] = ()
    session: str | None = None
    go_on: bool = False
    schema: str | None = None
    grammar: str | None = None
    batch: str | None = None
    out: str | None = None


def chat(
    settings: Settings,
    terminal: Terminal,
    question: str | None,
    sent: str | None,
    options: Options,
    take: Take | None = None,
) -> ExitStatus:
    """Answer `question` about `sent` (the text on stdin, if any), or talk until the user leaves.

    `take`: what /edit does, see talk.py.
    """
    asks = question is not None or sent is not None
    _check(options, question, asks)
    grammar = read_grammar(_path(options.schema), _path(options.grammar))
    show = Show(settings.plain, options.show_drafts, settings.think is True)
    opener = Opener(settings, terminal, show, grammar)
    if options.batch is not None:
        return answer_all(opener, options.batch, _path(options.out), sent, stats=options.stats)
    _check_text(question, sent)
    with ExitStack() as stack:
        keys = stack.enter_context(_keyboard(sent)) if not asks or options.interactive else None
        stack.enter_context(_leaving_on_signals())
        keep = keys is not None or terminal.out_tty
        try:
            conversation = opener.open(stack, options.session, go_on=options.go_on, keep=keep)
        except Cancelled:
            return ExitStatus.INTERRUPTED
        status = _answer_one(conversation, options, question, sent) if asks else ExitStatus.OK
        if keys is not None:
            status = _talk(opener, keys, () if asks else options.files, take)
        if options.stats:
            opener.conversation.show_stats()
        return status


def _answer_one(
    conversation: Conversation, options: Options, question: str | None, sent: str | None
) -> ExitStatus:
    """The answer to the question on the command line, as text or JSON."""
    terminal, cancel = conversation.terminal, conversation.loaded.cancel
    view = Events(terminal) if options.as_events else Muted(terminal) if options.as_json else None
    try:
        with on_interrupt(cancel.set):
            answer = conversation.ask(_message(conversation, options.files, question, sent), view)
    finally:
        cancel.clear()
    if isinstance(view, Events):
        view.event({"type": "end", **conversation.report(answer)})
    elif options.as_json:
        terminal.out.write(json.dumps(conversation.report(answer), ensure_ascii=False) + "\n")
        terminal.out.flush()
    else:
        conversation.end_row(answer)
    conversation.summarise(answer)
    return ExitStatus.INTERRUPTED if answer.finish_reason == "cancelled" else ExitStatus.OK


def _message(conversation: Conversation, files: Sequence[str], question: str | None, sent: str | None) -> str:
    """Files, then stdin as a block, then the question. What alone comes on stdin is the question itself."""
    if question is None:
        named = [file for file in files if file != attach.STDIN]
        blocks = attach.attach("", named, room=conversation.room, count=conversation.count)
        return f"{blocks}{sent}"
    if sent is not None and attach.STDIN not in files:
        files = (*files, attach.STDIN)
    return attach.attach(question, files, room=conversation.room, count=conversation.count, sent=sent)


def _talk(opener: Opener, keys: IO[str], files: Sequence[str], take: Take | None) -> ExitStatus:
    """The prompt loop. `files` go with the first message."""
    from localspec.chat.repl import Prompt
    from localspec.chat.talk import Talk

    settings = opener.settings
    prompt = Prompt(
        opener.terminal,
        keys,
        history_path=config.state_folder() / "history" if settings.save else None,
        toolbar=lambda: talk.toolbar(),  # noqa: PLW0108 -- there is no talk yet
        models=lambda: sorted(catalog.load()),
        vi=settings.vi,
    )
    single = os.environ.get("TERM") != "dumb"
    board = Keys(keys.fileno(), single)
    talk = Talk(opener.conversation, prompt, board, opener.reopen, opener.go_on, take)
    return talk.run(files)


def _check(options: Options, question: str | None, asks: bool) -> None:
    """UsageError where options contradict each other."""
    many = options.batch is not None
    if many and question is not None:
        raise UsageError("--batch takes its prompts from the file", "leave the question away")
    one_only = {"--file": options.files, "--session": options.session, "--continue": options.go_on}
    for flag, given in one_only.items():
        if many and given:
            raise UsageError(f"{flag} is for one conversation, --batch for many", "leave one of them away")
    if options.out is not None and not many:
        raise UsageError("--out is for the answers of --batch", 'localspec chat "question" > FILE')
    if not (asks or many) and (options.as_json or options.as_events):
        flag = "--json" if options.as_json else "--json-stream"
        raise UsageError(
            f"{flag} needs a question", f'for example: localspec chat {flag} "why is the sky blue?"'
        )


def _check_text(question: str | None, sent: str | None) -> None:
    for text, what in ((question, "the question"), (sent, "stdin")):
        if text is not None and not text.strip():
            none = ", or </dev/null if nothing is meant to come" if text is sent else ""
            raise UsageError(f"{what} is empty", f"give some text{none}")
        if text is not None and not is_text(text):
            raise UsageError(f"{what} has NUL bytes or is not UTF-8", "only text can be asked about")


def _path(name: str | None) -> Path | None:
    return Path(name).expanduser() if name is not None else None


@contextmanager
def _leaving_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the program as leaving does: nothing half-written, the terminal as before."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _keyboard(sent: str | None) -> Iterator[IO[str]]:
    """Where keys come from: stdin, or the terminal itself when stdin was a pipe."""
    if sent is None and isinstance(sys.stdin, io.TextIOWrapper) and sys.stdin.isatty():
        sys.stdin.reconfigure(errors="replace")
        yield sys.stdin
        return
    path = "CONIN$" if sys.platform == "win32" else "/dev/tty"
    try:
        keys = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115 -- closed below
    except OSError as error:
        raise UsageError(
            "there is no terminal to talk on", 'ask one thing: localspec chat "question"'
        ) from error
    with keys:
        yield keys
