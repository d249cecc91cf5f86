"""`localspec chat`: one answer, or a plain prompt loop that keeps the conversation."""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import ExitStack
from typing import IO

from localspec.app import Loaded, open_target
from localspec.chat.conversation import Conversation
from localspec.chat.prompt import quote
from localspec.config import Settings, is_text
from localspec.engine.types import Cancelled
from localspec.errors import ExitStatus, LocalspecError, UsageError
from localspec.llama.library import LOG, CancelFlag
from localspec.loading import Hear, budget
from localspec.obtain import default_model, obtain
from localspec.policy import draft_model
from localspec.ui.interrupt import on_interrupt
from localspec.ui.terminal import Terminal


def chat(
    settings: Settings,
    terminal: Terminal,
    question: str | None,
    sent: str | None,
    *,
    interactive: bool,
    as_json: bool,
    show_drafts: bool = False,
    stats: bool = False,
) -> ExitStatus:
    """Answer `question` about `sent` (the text on stdin, if any), or talk until the user leaves.

    `interactive` talks on after the first answer; keys then come from the terminal even if stdin was a pipe.
    `show_drafts` underlines accepted guesses, `stats` ends with what /stats says.
    """
    prompt = _first_prompt(question, sent)
    if prompt is None and as_json:
        raise UsageError(
            "--json needs a question", 'for example: localspec chat --json "why is the sky blue?"'
        )
    cancel = CancelFlag()
    with ExitStack() as stack:
        keys = stack.enter_context(_keyboard(sent)) if prompt is None or interactive else None
        try:
            loaded = stack.enter_context(_load(settings, terminal, cancel))
        except Cancelled:
            return ExitStatus.INTERRUPTED
        conversation = Conversation(loaded, terminal, show_drafts)
        status = ExitStatus.OK
        if prompt is not None:
            status = _one_answer(conversation, prompt, as_json=as_json)
        if keys is not None:
            status = _talk(conversation, keys)
        if stats:
            conversation.show_stats()
        return status


def _first_prompt(question: str | None, sent: str | None) -> str | None:
    """Question and stdin as one prompt; stdin becomes a delimited block before the question."""
    for text, what in ((question, "the question"), (sent, "stdin")):
        if text is not None and not text.strip():
            raise UsageError(f"{what} is empty", "give some text, or </dev/null if nothing is meant to come")
        if text is not None and not is_text(text):
            raise UsageError(f"{what} has NUL bytes or is not UTF-8", "only text can be asked about")
    if question is not None and sent is not None:
        return f"{quote(sent, 'stdin')}\n{question}"
    return question if question is not None else sent


def _load(settings: Settings, terminal: Terminal, cancel: CancelFlag) -> Loaded:
    LOG.echo = terminal.verbosity >= 2
    named = draft_model(settings.draft)
    path = obtain(settings.model, terminal) if settings.model else default_model(terminal, *budget())
    draft = obtain(named, terminal) if named else None
    hear = Hear(note=terminal.note, detail=terminal.detail, progress=terminal.progress)
    with on_interrupt(cancel.set):
        loaded = open_target(settings, path, draft, cancel=cancel, hear=hear)
    terminal.progress("")
    target = loaded.target
    terminal.detail(
        f"{target.path}: context {target.n_ctx} of {target.n_ctx_train} tokens, "
        f"{target.options.threads} threads, "
        f"{target.options.kv_type} KV cache, flash attention {target.options.flash_attn}, "
        f"guesses from {', '.join(loaded.guessers.sources) or 'nothing'}"
    )
    return loaded


def _keyboard(sent: str | None) -> IO[str]:
    """Where keys come from: stdin, or the terminal itself when stdin was a pipe."""
    if sent is None and isinstance(sys.stdin, io.TextIOWrapper) and sys.stdin.isatty():
        sys.stdin.reconfigure(errors="replace")
        return sys.stdin
    try:
        return open("CONIN$" if sys.platform == "win32" else "/dev/tty", encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(
            "there is no terminal to talk on", 'ask one thing: localspec chat "question"'
        ) from error


def _one_answer(conversation: Conversation, prompt: str, *, as_json: bool) -> ExitStatus:
    terminal = conversation.terminal
    try:
        with on_interrupt(conversation.loaded.cancel.set):
            answer = conversation.ask(prompt, stream=not as_json)
    finally:
        conversation.loaded.cancel.clear()
    if as_json:
        terminal.out.write(json.dumps(conversation.report(answer), ensure_ascii=False) + "\n")
        terminal.out.flush()
    else:
        terminal.write("" if answer.text.endswith("\n") else "\n")
    conversation.summarise(answer)
    return ExitStatus.INTERRUPTED if answer.finish_reason == "cancelled" else ExitStatus.OK


def _talk(conversation: Conversation, keys: IO[str]) -> ExitStatus:
    """The prompt loop: one line, one answer, until Ctrl-D. Ctrl-C stops an answer or clears the line."""
    terminal = conversation.terminal
    terminal.note("Ctrl-D leaves, Ctrl-C stops an answer, /stats shows what guessing brought")
    while True:
        try:
            line = _read_line(keys, terminal)
        except KeyboardInterrupt:
            terminal.say("\n")
            terminal.note("Ctrl-D leaves")
            continue
        if line is None:
            terminal.say("\n")
            return ExitStatus.OK
        try:
            _obey(conversation, line.strip())
        except LocalspecError as error:
            terminal.complain(error.message, error.hint)


def _obey(conversation: Conversation, line: str) -> None:
    """What a line asks for: figures, an answer, or nothing if it is empty.

    Raises UsageError for a command there is not; a path such as /etc/hosts is none.
    """
    if line == "/stats":
        conversation.show_stats()
    elif re.match(r"/\w+(\s|$)", line):
        raise UsageError(f"unknown command {line.split(maxsplit=1)[0]}", "// sends a leading slash")
    elif line:
        _one_answer(conversation, line[1:] if line.startswith("//") else line, as_json=False)


def _read_line(keys: IO[str], terminal: Terminal) -> str | None:
    """One line without its end, None at end of input."""
    if keys is sys.stdin and terminal.out_tty:
        import readline  # noqa: F401 -- gives input() its line editing

        try:
            return input("> ")
        except EOFError:
            return None
    terminal.say("> ")
    return keys.readline() or None
