"""Answers from the keyboard: one key, or one line.

Knows terminals, not questions. Keys are read unbuffered from the terminal itself, also when stdin is a pipe;
its settings are changed only while a key is awaited and restored whatever ends that, signals included.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import IO, Any

ENTER = "\n"
_CTRL_C = "\x03"
_ENDS = ("\x04", "\0", "\x1a")  # Ctrl-D; one that Linux took for the end of a line; Ctrl-Z on Windows
_REST = 0.05
"""Seconds that the bytes of one key may be apart."""
_LOOK = 0.25
"""Seconds after which a signal is seen at the latest."""
_IFLAG, _LFLAG = 0, 3  # in what tcgetattr returns


@dataclass(frozen=True, slots=True)
class Keys:
    """A keyboard at the open descriptor `fd`. `single`: a key counts at once, else a line must be ended."""

    fd: int
    single: bool = True

    def key(self) -> str | None:
        """The next key: a character, ENTER, "" for one that is neither (arrows), None at Ctrl-D or the end.

        Raises KeyboardInterrupt at Ctrl-C. Without `single` it is the first character of a line.
        """
        if self.single and os.isatty(self.fd):
            return _meaning(_pressed(self.fd))
        line = self.line()
        return line if line is None else (line.strip()[:1] or ENTER)

    def line(self) -> str | None:
        """The next line without its end, edited and echoed by the terminal; None at the end."""
        raw = b""
        while not raw.endswith(b"\n"):
            byte = os.read(self.fd, 1)  # no more: what follows belongs to the next question
            if not byte:
                break
            raw += byte
        return raw.decode(errors="replace").rstrip("\r\n") if raw else None

    def forget(self) -> None:
        """Drop what was typed before the question was asked."""
        if not os.isatty(self.fd):
            return
        if sys.platform == "win32":
            import msvcrt

            while msvcrt.kbhit():
                msvcrt.getwch()
        else:
            import termios

            with suppress(termios.error):  # the terminal has gone
                termios.tcflush(self.fd, termios.TCIFLUSH)


@contextmanager
def keyboard(
    stdin: IO[Any] | None, terminal: str = "/dev/tty", env: Mapping[str, str] = os.environ
) -> Iterator[Keys | None]:
    """The keyboard at `stdin`, or that of the process where that is none; None if nobody can be asked."""
    single = env.get("TERM") != "dumb"
    if stdin is not None and not stdin.closed and stdin.isatty():
        yield Keys(stdin.fileno(), single)
        return
    path = "CONIN$" if sys.platform == "win32" else terminal
    try:
        fd = os.open(path, os.O_RDWR | getattr(os, "O_NOCTTY", 0))
    except OSError:
        yield None
        return
    try:
        yield Keys(fd, single) if os.isatty(fd) else None
    finally:
        os.close(fd)


def _meaning(key: str) -> str | None:
    if key == _CTRL_C:
        raise KeyboardInterrupt
    if not key or key in _ENDS:
        return None
    if key in "\r\n":
        return ENTER
    return key if len(key) == 1 and key.isprintable() else ""


if sys.platform == "win32":

    def _pressed(_: int) -> str:
        import msvcrt

        key = msvcrt.getwch()
        return key + msvcrt.getwch() if key in "\0\xe0" else key  # a function key comes as two

    @contextmanager
    def hushed(_: int) -> Iterator[None]:
        """Keys that nobody reads do not show there anyway."""
        yield

else:

    def _pressed(fd: int) -> str:
        """The characters of one key as a terminal sends them; "" at the end."""
        with _unbuffered(fd):
            while not select.select([fd], [], [], _LOOK)[0]:
                pass  # a signal that comes just before a read begins would wait for the next key
            raw = os.read(fd, 1)
            while raw and not _is_whole(raw) and select.select([fd], [], [], _REST)[0]:
                more = os.read(fd, 1)
                if not more:
                    break
                raw += more
        return raw.decode(errors="replace")

    def _is_whole(raw: bytes) -> bool:
        """Whether `raw` is all of a key: of a character in UTF-8, or of an escape sequence."""
        if raw[:1] == b"\x1b":
            return len(raw) > 1 and (raw[1:2] not in b"[O" or (len(raw) > 2 and 0x40 <= raw[-1] <= 0x7E))
        needed = next((n for n, lead in ((4, 0xF0), (3, 0xE0), (2, 0xC0)) if raw[0] >= lead), 1)
        return len(raw) >= needed

    @contextmanager
    def hushed(fd: int) -> Iterator[None]:
        """What is typed on the terminal `fd` is not echoed, and kept as it came for whoever reads next."""
        import termios

        def quiet() -> None:
            now = termios.tcgetattr(fd)
            now[_IFLAG] &= ~termios.ICRNL
            now[_LFLAG] &= ~(termios.ECHO | termios.ICANON)
            termios.tcsetattr(fd, termios.TCSANOW, now)

        with _changed(fd, quiet):
            yield

    @contextmanager
    def _unbuffered(fd: int) -> Iterator[None]:
        """Each key counts at once and is not echoed; afterwards all is as before."""
        import termios
        import tty

        with _changed(fd, lambda: tty.setcbreak(fd, termios.TCSANOW)):
            yield

    @contextmanager
    def _changed(fd: int, change: Callable[[], object]) -> Iterator[None]:
        """`change` the terminal's settings, again behind a Ctrl-Z; afterwards all is as before."""
        import termios

        try:
            before = termios.tcgetattr(fd)
        except termios.error:  # the terminal has gone
            before = None
        if before is None:
            yield
            return

        def enter(*_: object) -> None:
            change()

        def leave(number: int, _: FrameType | None) -> None:
            raise SystemExit(128 + number)  # on its way out it restores all there is to restore

        with _handling({signal.SIGCONT: enter, signal.SIGTERM: leave, signal.SIGHUP: leave}):
            try:
                enter()
                yield
            finally:
                with suppress(termios.error):  # the terminal has gone
                    termios.tcsetattr(fd, termios.TCSANOW, before)

    @contextmanager
    def _handling(
        handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], None]],
    ) -> Iterator[None]:
        """Handlers of ours for the signals that have none yet; signals only reach the main thread."""
        ours = threading.current_thread() is threading.main_thread()
        free = [number for number in handlers if ours and signal.getsignal(number) is signal.SIG_DFL]
        try:
            for number in free:
                signal.signal(number, handlers[number])
            yield
        finally:
            for number in free:
                signal.signal(number, signal.SIG_DFL)
