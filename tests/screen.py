"""A program on a terminal of its own: keys go in, and what the terminal shows can be waited for.

    with Screen([sys.executable, "-c", code], columns=20) as screen:
        screen.wait("> ")
        screen.send("hello\\r")
        screen.wait(lambda: screen.rows[-1] == "bye")

Waiting reads what the program writes until the condition holds or the deadline passes, which fails the test
with a picture of the screen. Nothing sleeps.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType

import pyte

PATIENCE = 30.0
"""Seconds until a wait fails: far more than anything takes, for machines with much else to do."""

_OWN_TERMINAL = (  # makes stdin the terminal that Ctrl-C and /dev/tty belong to
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


class Screen:
    """`command` in a pseudo-terminal of the given size, emulated by pyte.

    `env` is added to a plain environment of TERM, PATH, HOME, LANG and what the tests set as LOCALSPEC_*.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 80,
        lines: int = 24,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.raw = ""
        """Everything the program wrote."""
        self._view = pyte.HistoryScreen(columns, lines, history=10_000, ratio=0.5)
        self._stream = pyte.ByteStream(self._view)
        self._master, slave = os.openpty()
        termios.tcsetwinsize(slave, (lines, columns))
        self._child = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _OWN_TERMINAL, *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**_environment(), **(env or {})},
            start_new_session=True,
        )
        os.close(slave)

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        os.close(self._master)

    @property
    def rows(self) -> list[str]:
        """The visible rows without trailing blanks, down to the last that shows anything."""
        rows = [row.rstrip() for row in self._view.display]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    @property
    def scrolled(self) -> list[str]:
        """The rows that left the screen at its top."""
        width = self._view.columns
        return ["".join(row[x].data for x in range(width)).rstrip() for row in self._view.history.top]

    @property
    def text(self) -> str:
        return "\n".join(self.rows)

    @property
    def cursor(self) -> tuple[int, int]:
        """Column and row, from 0."""
        return self._view.cursor.x, self._view.cursor.y

    @property
    def size(self) -> tuple[int, int]:
        return self._view.columns, self._view.lines

    @property
    def cooked(self) -> bool:
        """Whether the terminal itself edits and shows what is typed, as it did at first."""
        flags: int = termios.tcgetattr(self._master)[3]
        return flags & (wanted := termios.ECHO | termios.ICANON | termios.ISIG) == wanted

    def send(self, keys: str) -> None:
        """Type `keys`; Enter is "\\r"."""
        os.write(self._master, keys.encode())

    def paste(self, text: str) -> None:
        """What a terminal sends for a paste when the program asked for brackets."""
        assert self.raw.count("\x1b[?2004h") > self.raw.count("\x1b[?2004l"), "nobody asked for brackets"
        self.send("\x1b[200~" + text.replace("\n", "\r") + "\x1b[201~")

    def resize(self, columns: int, lines: int) -> None:
        """A new size, of which the program hears. Rows are cut or kept, not folded anew."""
        self._view.resize(lines, columns)
        termios.tcsetwinsize(self._master, (lines, columns))

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """Send a signal to the program, as kill does."""
        os.killpg(self._child.pid, number)

    def wait(self, condition: str | Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Read on until the text is in a row of the screen, or the function says yes."""
        holds = condition if callable(condition) else lambda: condition in "\n".join(self._view.display)
        deadline = time.monotonic() + seconds
        while not holds():
            if not self._read(deadline - time.monotonic()) and not holds():
                raise AssertionError(f"{condition!r} never came; the screen:\n{self.picture()}")

    def exit_status(self, seconds: float = PATIENCE) -> int:
        """The program's exit status, negative for a signal, when all it wrote has been read."""
        deadline = time.monotonic() + seconds
        while self._read(deadline - time.monotonic()):
            pass
        return self._child.wait(max(0.0, deadline - time.monotonic()))

    def picture(self) -> str:
        """The screen in a frame, for messages."""
        width = self._view.columns
        body = "\n".join(f"|{row}|" for row in self._view.display)
        return f"+{'-' * width}+\n{body}\n+{'-' * width}+"

    def _read(self, seconds: float) -> bool:
        """Whether anything was read within `seconds`; not when the program is gone."""
        if not select.select([self._master], [], [], max(0.0, seconds))[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return False
        self.raw += data.decode(errors="replace")
        self._stream.feed(data)
        return bool(data)


def _environment() -> dict[str, str]:
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "HF_HOME")
    env = {name: value for name, value in os.environ.items() if name in kept or name.startswith("LOCALSPEC_")}
    return {"LC_ALL": "C.UTF-8", **env, "TERM": "xterm-256color", "PYTHONWARNINGS": "error"}
