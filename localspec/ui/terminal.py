"""The three standard streams, what each can show, and the one place where hostile text is made harmless."""

from __future__ import annotations

import io
import os
import stat
import sys
import textwrap
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO

from localspec.errors import UsageError

_JOINERS = "\u200c\u200d"  # zero-width (non-)joiner: emoji and several scripts need them


@dataclass(slots=True)
class Terminal:
    """Standard streams with what is known about each. `out_tty` and `err_tty`: a terminal shows it.

    `verbosity`: -1 quiet (errors only), 0 notes, 1 details, 2 llama.cpp's log. `out_pipe`: another program
    reads the answer and may print to the terminal meanwhile. `err_live`: the cursor can be moved.
    """

    out: IO[str]
    err: IO[str]
    out_tty: bool
    err_tty: bool
    err_color: bool
    verbosity: int = 0
    out_pipe: bool = False
    err_live: bool = False
    _progress: bool = field(default=False, init=False)
    _mid_row: bool = field(default=False, init=False)

    @staticmethod
    def standard(color: str, verbosity: int = 0, env: Mapping[str, str] = os.environ) -> Terminal:
        """The process's own streams; a closed one is replaced, characters it cannot show are not fatal."""
        out, err = (_usable(stream) for stream in (sys.stdout, sys.stderr))
        out_tty, err_tty = out.isatty(), err.isatty()
        return Terminal(
            out,
            err,
            out_tty,
            err_tty,
            wants_color(color, err_tty, env),
            verbosity,
            out_pipe=_is_pipe(out),
            err_live=err_tty and env.get("TERM") != "dumb",
        )

    @property
    def live(self) -> bool:
        """Whether a line may be drawn over: it can be, is wanted, and no log of llama.cpp runs into it."""
        return self.err_live and 0 <= self.verbosity < 2

    @property
    def columns(self) -> int:
        """Width of the screen, asked anew each time: windows are resized."""
        stream = self.out if self.out_tty else self.err
        try:
            return os.get_terminal_size(stream.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    def write(self, text: str, before: str = "", after: str = "") -> None:
        """The answer: flushed as it comes; on a terminal without anything that could drive it.

        `before` and `after` are cursor moves of ours, sent in one piece with it so that nothing flickers.
        """
        self.out.write(before + (sanitise(text) if self.out_tty else text) + after)
        self.out.flush()
        if text and self.out_tty:
            self._mid_row = not text.endswith("\n")

    def note(self, text: str) -> None:
        """One dim line on stderr, on a terminal folded between words; unless quiet."""
        if self.verbosity < 0:
            return
        line = _one_line(text)
        if self.err_tty:
            line = textwrap.fill(line, self.columns, break_long_words=False, break_on_hyphens=False)
        self._say_line(self.dim(line))

    def detail(self, text: str) -> None:
        """A note for those who asked for details."""
        if self.verbosity >= 1:
            self.note(text)

    def progress(self, text: str) -> None:
        """Show `text` on a row of its own until the next call; "" clears it.

        The cursor waits at its beginning, where it stays when a narrower window folds the row.
        """
        if self.live and (text or self._progress):
            self.say(f"\r\x1b[J{self.fit(text)}\r")
            self._progress = bool(text)

    def complain(self, message: str, hint: str = "") -> None:
        """An error: one line with its cause and the next step."""
        head = "\x1b[31merror:\x1b[39m" if self.err_color else "error:"
        self._say_line(f"{head} {_one_line(message)}{'; ' + _one_line(hint) if hint else ''}")

    @property
    def can_ask(self) -> bool:
        """Whether someone is there to answer: keys and messages both are a terminal's."""
        return self.err_tty and sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()

    def ask(self, question: str) -> bool:
        """A yes or no, no by default. For use where `can_ask`."""
        self.progress("")
        self.say(f"{_one_line(question)} [y/N] ")
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def fit(self, text: str) -> str:
        """`text`, harmless and dim, as one row that leaves the last column free."""
        from rich.cells import cell_len, set_cell_size

        line, width = _one_line(text), self.columns - 1
        return self.dim(line if cell_len(line) <= width else set_cell_size(line, max(0, width - 1)) + "…")

    def dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[22m" if self.err_color and text else text

    def say(self, text: str) -> None:
        """`text` to stderr as it is. That nobody can read it any more must not cost the answer."""
        try:
            self.err.write(text)
            self.err.flush()
        except OSError:
            silence(self.err)

    def _say_line(self, line: str) -> None:
        """A line on a row of its own, even when the answer broke off in mid-row."""
        self.progress("")
        start = "\n" if self._mid_row and self.err_tty else ""
        self._mid_row = False
        self.say(f"{start}{line}\n")


def silence(stream: IO[str]) -> None:
    """Send what `stream` still holds, and all that follows, nowhere: or Python complains when it leaves."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _usable(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return stream


def _is_pipe(stream: IO[str]) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # no file at all
        return False


def wants_color(choice: str, tty: bool, env: Mapping[str, str]) -> bool:
    """--color wins, then NO_COLOR and FORCE_COLOR (not empty), then: a terminal that is not dumb."""
    if choice != "auto":
        return choice == "always"
    if env.get("NO_COLOR"):
        return False
    if env.get("FORCE_COLOR"):
        return True
    return tty and env.get("TERM") != "dumb"


def sanitise(text: str) -> str:
    """`text` without control and format characters, except newline, tab and joiners.

    Works character by character, so a sequence split over several calls loses its ESC all the same.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c for c in text if c in "\n\t" or c in _JOINERS or unicodedata.category(c) not in _HIDDEN)


_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # control, format (bidi, zero width), surrogate, odd line ends


def words_begun(before: str, text: str) -> int:
    """How many words begin in `text`, which goes on behind `before`."""
    goes_on = before[-1:].strip() and text[:1].strip()
    return len(text.split()) - bool(goes_on)


def _one_line(text: str) -> str:
    return sanitise(" ".join(text.split()))


def read_stdin() -> str | None:
    """All of stdin as text when data was sent to it: None on a terminal or a device such as /dev/null.

    Raises UsageError on bytes that are not UTF-8.
    """
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return None
    if stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode):
        return None
    raw = sys.stdin.buffer.read()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"stdin is not UTF-8 (byte 0x{raw[error.start]:02x} at {error.start})",
            "convert it first, e.g. iconv",
        ) from error
