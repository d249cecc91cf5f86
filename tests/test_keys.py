"""One key or one line from a terminal, and the terminal afterwards as before."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select

import pytest

from localspec.ui.keys import ENTER, Keys, hushed, keyboard


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal: the person's, the program's."""
    master, slave = pty.openpty()
    yield master, slave
    os.close(master)
    os.close(slave)


KEYS = {
    "a letter": (b"y", "y"),
    "a capital": (b"Y", "Y"),
    "Enter": (b"\r", ENTER),
    "Ctrl-D": (b"\x04", None),
    "a letter beyond ASCII": ("é".encode(), "é"),
    "four bytes": ("🚀".encode(), "🚀"),
    "up": (b"\x1b[A", ""),
    "F1": (b"\x1bOP", ""),
    "delete": (b"\x1b[3~", ""),
    "Alt-y": (b"\x1by", ""),
    "Escape": (b"\x1b", ""),
    "backspace": (b"\x7f", ""),
    "Ctrl-L": (b"\x0c", ""),
    "no UTF-8": (b"\xff", "\ufffd"),
    "half a character": (b"\xc3", "\ufffd"),
}


@pytest.mark.parametrize(("typed", "key"), KEYS.values(), ids=KEYS)
def test_a_key_counts_at_once(typed: bytes, key: str | None, terminal: tuple[int, int]) -> None:
    master, slave = terminal
    before = termios.tcgetattr(slave)
    press(master, slave, typed)
    assert Keys(slave).key() == key
    assert termios.tcgetattr(slave) == before


def press(master: int, slave: int, typed: bytes) -> None:
    """As if typed while a key is awaited: before that, the terminal would wait for a line or act on it."""
    settings = termios.tcgetattr(slave)
    raw = termios.tcgetattr(slave)
    raw[3] &= ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(slave, termios.TCSANOW, raw)
    os.write(master, typed)
    select([slave], [], [])  # it arrives by way of another thread
    termios.tcsetattr(slave, termios.TCSANOW, settings)


def test_keys_typed_ahead_are_kept_one_by_one(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    press(master, slave, b"y\x1b[An")
    keys = Keys(slave)
    assert [keys.key() for _ in range(3)] == ["y", "", "n"]


def test_what_was_typed_before_the_question_can_be_forgotten(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    press(master, slave, b"yyy")
    keys = Keys(slave)
    keys.forget()
    press(master, slave, b"n")
    assert keys.key() == "n"


def test_the_end_typed_ahead_is_the_end(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    os.write(master, b"\x04")
    assert Keys(slave).key() is None


def test_ctrl_c_that_comes_as_a_key_interrupts(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    settings = termios.tcgetattr(slave)
    settings[3] &= ~termios.ISIG
    termios.tcsetattr(slave, termios.TCSANOW, settings)
    press(master, slave, b"\x03")
    with pytest.raises(KeyboardInterrupt):
        Keys(slave).key()
    assert termios.tcgetattr(slave) == settings


def test_the_terminal_is_restored_when_it_hangs_up(terminal: tuple[int, int]) -> None:
    _, slave = terminal
    before = termios.tcgetattr(slave)
    handlers = [signal.getsignal(number) for number in SIGNALS]

    def hang_up() -> None:
        until_unbuffered(slave)
        send(signal.SIGHUP)

    with meanwhile(hang_up), pytest.raises(SystemExit) as left:
        Keys(slave).key()
    assert left.value.code == 128 + signal.SIGHUP
    assert termios.tcgetattr(slave) == before
    assert [signal.getsignal(number) for number in SIGNALS] == handlers


def test_a_terminal_that_has_gone_is_left_alone() -> None:
    master, slave = pty.openpty()
    os.close(master)
    with pytest.raises(termios.error):
        termios.tcgetattr(slave)
    keys = Keys(slave)
    with hushed(slave):
        keys.forget()
    assert keys.key() is None
    os.close(slave)


def test_back_from_a_stop_keys_count_at_once_again(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    cooked = termios.tcgetattr(slave)

    def stopped_and_continued() -> None:
        until_unbuffered(slave)
        termios.tcsetattr(slave, termios.TCSANOW, cooked)  # as a shell does
        send(signal.SIGCONT)
        until_unbuffered(slave)
        os.write(master, b"y")

    with meanwhile(stopped_and_continued):
        assert Keys(slave).key() == "y"
    assert termios.tcgetattr(slave) == cooked


SIGNALS = (signal.SIGTERM, signal.SIGCONT, signal.SIGHUP)


@contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join()


def send(number: signal.Signals) -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, number)


def until_unbuffered(slave: int) -> None:
    while termios.tcgetattr(slave)[3] & termios.ICANON:
        os.sched_yield()


def test_a_key_is_read_in_any_thread(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    press(master, slave, b"y")
    got: list[str | None] = []
    thread = threading.Thread(target=lambda: got.append(Keys(slave).key()))
    thread.start()
    thread.join()
    assert got == ["y"]


def pipe_of(typed: bytes) -> int:
    read, write = os.pipe()
    os.write(write, typed)
    os.close(write)
    return read


def test_where_keys_cannot_be_read_alone_lines_are() -> None:
    fd = pipe_of(b"yes\n\n  no \nq")
    keys = Keys(fd)
    assert [keys.key() for _ in range(5)] == ["y", ENTER, "n", "q", None]
    os.close(fd)


def test_a_dumb_terminal_is_asked_for_lines(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    with os.fdopen(os.dup(slave)) as stdin, keyboard(stdin, env={"TERM": "dumb"}) as keys:
        assert keys
        os.write(master, b"no\n")
        assert keys.key() == "n"
        assert not keys.single


def test_a_line_leaves_the_next_for_the_next_question(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    os.write(master, "use é\nmore\n\x04".encode())
    keys = Keys(slave)
    assert (keys.line(), keys.line(), keys.line()) == ("use é", "more", None)


def test_a_file_or_pipe_as_stdin_is_not_asked_but_the_terminal(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    with os.fdopen(pipe_of(b"y\n")) as stdin, keyboard(stdin, os.ttyname(slave), env={}) as keys:
        assert keys
        press(master, slave, b"n")
        assert keys.key() == "n"
        opened = keys.fd
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened)


def test_without_a_terminal_nobody_is_asked(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none"), os.devnull):
        with os.fdopen(pipe_of(b"y\n")) as stdin, keyboard(stdin, path, env={}) as keys:
            assert keys is None
    with keyboard(None, str(tmp_path), env={}) as keys:
        assert keys is None


ASK = """
import os, sys
from localspec.ui.keys import keyboard
terminal = os.open(sys.argv[1], os.O_RDWR)  # a session's first terminal controls it
with keyboard(sys.stdin) as keys:
    try:
        print(keys.key())
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.parametrize(("typed", "said"), [(b"y", "y\n"), (b"\x03", "interrupted\n")])
def test_a_program_with_a_pipe_as_stdin_asks_at_its_terminal(
    typed: bytes, said: str, terminal: tuple[int, int]
) -> None:
    master, slave = terminal
    before = termios.tcgetattr(slave)
    command = [sys.executable, "-c", ASK, os.ttyname(slave)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        until_unbuffered(slave)
        os.write(master, typed)
        assert child.communicate()[0] == said
    assert termios.tcgetattr(slave) == before
