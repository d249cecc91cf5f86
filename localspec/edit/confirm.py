"""From a proposed text to the exact text that may be written: the questions asked about an edit.

Knows questions and answers; what is shown and typed goes through a Desk, so the whole conversation is a
function of the keys. `AtTerminal` is the desk of a person. It never writes to the file.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from localspec.edit.diff import Hunk, hunks, select, split_hunk
from localspec.errors import LocalspecError
from localspec.ui.diff import render
from localspec.ui.keys import ENTER, Keys
from localspec.ui.terminal import Terminal, sanitise

_HELP = """\
y - yes, write the file as shown
n - no, leave the file as it is
h - choose among the changes, one by one
e - change the new text in your editor, then look at it again
r - have it written again, if you like with one more line of instruction
? - this
"""
_HUNK_HELP = """\
y - apply this change
n - leave it out
q - leave out this and all that follow
a - apply this and all that follow
d - leave out this and all that follow
s - split it into smaller ones
? - this
"""


@dataclass(frozen=True, slots=True)
class Accepted:
    """This text, to the byte, was shown and confirmed."""

    text: str


@dataclass(frozen=True, slots=True)
class Declined:
    """The file stays as it is."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The model is to try again; `instruction` is what to add to what was asked, "" for nothing."""

    instruction: str


Decision = Accepted | Declined | Retry


@dataclass(frozen=True, slots=True)
class Change:
    """A text and what is to take its place. `check`: what speaks against a text, in a sentence each.

    `name`: of the file, for the question.
    """

    before: str
    after: str
    check: Callable[[str], Sequence[str]] = lambda _: ()
    name: str = "this"


class Desk(Protocol):
    """Where the questions are asked. `key` is ENTER for the default and None at the end; so is `line`.

    `edit` gives the text as a person left it; None when that failed, which it has then said.
    """

    def show(self, changes: Sequence[Hunk]) -> None: ...
    def say(self, text: str) -> None: ...
    def key(self) -> str | None: ...
    def line(self) -> str | None: ...
    def edit(self, text: str) -> str | None: ...


def confirm(change: Change, desk: Desk) -> Decision:
    """Show the change and ask until there is a decision; the end of the keyboard declines.

    Enter does what stands in capitals: yes, or no if something speaks against the text. What an editor made
    of it, and a choice of hunks that something speaks against, is shown and asked about anew.
    Raises KeyboardInterrupt at Ctrl-C.
    """
    while change.after != change.before:
        answer = _ask_about(change, desk)
        if not isinstance(answer, str):
            return answer
        change = replace(change, after=answer)
    desk.say("Nothing is changed.\n")
    return Declined()


def _ask_about(change: Change, desk: Desk) -> Decision | str:
    """A decision, or another text to ask about."""
    desk.show(hunks(change.before, change.after))
    concerns = change.check(change.after)
    desk.say("".join(f"{concern}\n" for concern in concerns))
    yes, no = ("[y]es", "[N]o") if concerns else ("[Y]es", "[n]o")
    while True:
        desk.say(f"Write {change.name}? {yes} {no} [h]unks [e]ditor [r]etry [?] ")
        key = desk.key()
        match ("n" if concerns else "y") if key == ENTER else key and key.lower():
            case None | "n":
                return Declined()
            case "y":
                return Accepted(change.after)
            case "h":
                return _chosen(change, desk)
            case "e":
                edited = desk.edit(change.after)
                if edited is not None and edited != change.after:
                    return edited
                desk.say("The text is as it was.\n")
            case "r":
                desk.say("What should be different? (Enter: only try again) ")
                if (line := desk.line()) is not None:
                    return Retry(line.strip())
            case _:
                desk.say(_HELP)


def _chosen(change: Change, desk: Desk) -> Decision | str:
    """What the walk through the hunks decides; a text if it must be asked about once more."""
    text = _walk(change, desk)
    if text is None:
        return Declined()
    if text == change.after or (text != change.before and not change.check(text)):
        return Accepted(text)
    return text


def _walk(change: Change, desk: Desk) -> str | None:
    """The old text with the hunks chosen one by one, as in `git add -p`; None at the end of the keyboard."""
    ahead = list(hunks(change.before, change.after))
    chosen: list[Hunk] = []
    seen = 0
    while ahead:
        parts = split_hunk(ahead[0])
        splits = len(parts) > 1
        desk.show(ahead[:1])
        desk.say(
            f"({seen + 1}/{seen + len(ahead)}) Apply this change [y,n,q,a,d{',s' if splits else ''},?]? "
        )
        key = desk.key()
        match key and key.lower():
            case None:
                return None
            case "y" | "n" as answer:
                chosen += ahead[:1] if answer == "y" else []
                seen, ahead = seen + 1, ahead[1:]
            case "a":
                chosen, ahead = chosen + ahead, []
            case "q" | "d":
                ahead = []
            case "s" if splits:
                ahead[:1] = parts
            case _:
                desk.say(_HUNK_HELP)
    return select(change.before, chosen, range(len(chosen)))


class EditorFailed(LocalspecError):
    """The editor could not be started, gave up, or left something that is no text."""


@dataclass(frozen=True, slots=True)
class AtTerminal:
    """A desk at a terminal: `name` of the file, for the editor to know its kind by."""

    terminal: Terminal
    keys: Keys
    name: str
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def show(self, changes: Sequence[Hunk]) -> None:
        """The changes; keys pressed before they were to be seen cannot have meant them."""
        self.terminal.progress("")
        self.terminal.say(render(changes, self.terminal.columns, self.terminal.err_color))
        self.keys.forget()

    def say(self, text: str) -> None:
        self.terminal.say(sanitise(text))

    def key(self) -> str | None:
        key = self.keys.key()
        if self.keys.single or key is None:  # else the terminal has echoed the line
            self.say(f"{(key or '').strip()}\n")
        return key

    def line(self) -> str | None:
        return self.keys.line()

    def edit(self, text: str) -> str | None:
        try:
            return in_editor(text, self.name, self.env, self.keys.fd, self.terminal.err.fileno())
        except EditorFailed as error:
            self.terminal.complain(error.message, error.hint)
            return None


def in_editor(text: str, name: str, env: Mapping[str, str], stdin: int, stdout: int) -> str:
    """`text` after $VISUAL, $EDITOR or vi, which sees it, to the byte, in a private file called `name`.

    Raises EditorFailed.
    """
    try:
        command = shlex.split(env.get("VISUAL") or env.get("EDITOR") or "") or ["vi"]
        with tempfile.TemporaryDirectory(
            prefix="localspec-"
        ) as folder:  # 0700: what editors leave beside it, too
            path = Path(folder, Path(name).name or "text")
            path.touch(0o600)
            path.write_bytes(text.encode())
            with _interrupts_left_to_child():
                status = subprocess.run([*command, path], stdin=stdin, stdout=stdout, check=False).returncode
            if status:
                raise EditorFailed(f"{command[0]} ended with status {status}")
            return path.read_bytes().decode()
    except (OSError, ValueError) as error:  # quotes that do not end, no such program, no UTF-8
        raise EditorFailed(f"editing failed: {error}", "set VISUAL or EDITOR to a command") from error


@contextmanager
def _interrupts_left_to_child() -> Iterator[None]:
    """Ctrl-C, which some editors use as a key, also reaches us; signals only reach the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN: a child would inherit that
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
