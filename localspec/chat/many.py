"""`localspec chat --batch`: every prompt of a file, answered with one load as if it were asked alone.

Joins batch.py (lines in, lines out, going on after a crash) with a model.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from localspec.chat import attach, batch
from localspec.chat.conversation import Conversation
from localspec.chat.opening import Opener, begun, find_model
from localspec.chat.prompt import Message
from localspec.chat.views import Muted
from localspec.config import Settings
from localspec.engine.types import Cancelled
from localspec.errors import ExitStatus, UsageError, reason


def answer_all(opener: Opener, name: str, out: Path | None, sent: str | None, *, stats: bool) -> ExitStatus:
    """Answer the prompts in the file `name`, "-" for `sent`, to `out` or stdout.

    Everything is checked before the model is loaded. `stats`: end with what guessing brought.
    """
    settings, terminal = opener.settings, opener.terminal
    path = find_model(settings, terminal)
    about = f"{path} {opener.grammar} {_that_matter(settings)}"
    work = batch.read_batch(_lines(name, sent), name, about=about, out=out)
    with ExitStack() as stack:
        try:
            loaded = stack.enter_context(opener.load(settings, path))
        except Cancelled:
            return ExitStatus.INTERRUPTED
        conversation = Conversation(loaded, terminal, opener.show)
        stack.callback(conversation.close)
        first = loaded.seed

        def answer(messages: Sequence[Message], seed: int | None, max_tokens: int | None) -> dict[str, Any]:
            loaded.reseed(first if seed is None else seed)
            system = [] if messages[0].role == "system" else begun(settings)
            conversation.begin([*system, *messages[:-1]])
            found = conversation.ask(messages[-1].content, Muted(terminal), max_tokens)
            return conversation.report(found)

        status = batch.run_batch(work, answer, terminal.out)
        if stats:
            conversation.show_stats()
        return status


def _lines(name: str, sent: str | None) -> list[bytes]:
    """The lines of a batch file, or of what was sent."""
    if name == attach.STDIN:
        if sent is None:
            raise UsageError("--batch - has nothing to read", "localspec chat --batch - < prompts.jsonl")
        return sent.encode().split(b"\n")
    try:
        with open(os.path.expanduser(name), "rb") as file:
            return file.read().split(b"\n")
    except OSError as error:
        raise UsageError(f"cannot read {attach.one_line(name)}: {reason(error)}", "check its path") from error


def _that_matter(settings: Settings) -> str:
    """The settings that answers depend on."""
    return repr(replace(settings, color="auto", plain=False, vi=False, save=True, model=None))
