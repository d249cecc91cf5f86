"""The three standard streams, what each can show, and the one place where hostile text is made harmless."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO

from localspec.errors import UsageError

_JOINERS = "\u200c\u200d"  # zero-width (non-)joiner: emoji and several scripts need them


@dataclass(slots=True)
class Terminal:
    """Standard streams with what is known about each. `out_tty` and `err_tty`: a terminal shows it.

    `verbosity`: -1 quiet (errors only), 0 notes, 1 details, 2 llama.cpp's log.
    """

    out: IO[str]
    err: IO[str]
    out_tty: bool
    err_tty: bool
    err_color: bool
    verbosity: int = 0
    _progress: bool = field(default=False, init=False)

    @staticmethod
    def standard(color: str, verbosity: int = 0, env: Mapping[str, str] = os.environ) -> Terminal:
        """The process's own streams; a closed one is replaced, characters it cannot show are not fatal."""
        out, err = (_usable(stream) for stream in (sys.stdout, sys.stderr))
        err_color = wants_color(color, err.isatty(), env)
        return Terminal(out, err, out.isatty(), err.isatty(), err_color, verbosity)

    @property
    def live(self) -> bool:
        """Whether a line on stderr may be drawn over: someone watches, and the cursor can be moved."""
        return self.err_tty and self.err_color and self.verbosity >= 0

    def write(self, text: str) -> None:
        """The answer: flushed as it comes; on a terminal without anything that could drive it."""
        self.out.write(sanitise(text) if self.out_tty else text)
        self.out.flush()

    def note(self, text: str) -> None:
        """One dim line on stderr, unless quiet."""
        self.progress("")
        if self.verbosity >= 0:
            self.say(f"{self.dim(sanitise(text))}\n")

    def detail(self, text: str) -> None:
        """A note for those who asked for details."""
        if self.verbosity >= 1:
            self.note(text)

    def progress(self, text: str) -> None:
        """Show `text` on a line of its own until the next call; "" clears it."""
        if self.live and (text or self._progress):
            self.say(f"\r{self.dim(sanitise(text))}\x1b[K")
            self._progress = bool(text)

    def complain(self, message: str, hint: str = "") -> None:
        """An error: one line with its cause and the next step."""
        self.progress("")
        head = "\x1b[31merror:\x1b[39m" if self.err_color else "error:"
        self.say(f"{head} {_one_line(message)}{'; ' + _one_line(hint) if hint else ''}\n")

    def dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[22m" if self.err_color and text else text

    def say(self, text: str) -> None:
        """`text` to stderr as it is. That nobody can read it any more must not cost the answer."""
        with contextlib.suppress(OSError):
            self.err.write(text)
            self.err.flush()


def _usable(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return stream


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
