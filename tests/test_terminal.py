"""What reaches the screen and what reaches a pipe; Ctrl-C while C code runs."""

from __future__ import annotations

import ctypes
import io
import os
import pty
import signal
import sys
import termios
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from localspec.errors import UsageError
from localspec.ui.interrupt import on_interrupt
from localspec.ui.terminal import Terminal, read_stdin, sanitise, wants_color

# name: (what a model, a file name or an error message may contain, what is left of it on a screen)
ATTACKS = {
    "OSC 52, clipboard": ("a\x1b]52;c;cm0gLXJm\x07b", "a]52;c;cm0gLXJmb"),
    "OSC 8, link": ("\x1b]8;;http://evil\x1b\\here\x1b]8;;\x1b\\", "]8;;http://evil\\here]8;;\\"),
    "OSC 0, title": ("\x1b]0;root\x07", "]0;root"),
    "CSI, clear and move": ("\x1b[2J\x1b[1;1Hok", "[2J[1;1Hok"),
    "CSI, asks for the cursor": ("\x1b[6n", "[6n"),
    "DCS, asks for settings": ("\x1bP$qm\x1b\\", "P$qm\\"),
    "C1 CSI": ("\x9b31mred", "31mred"),
    "C1 OSC and ST": ("\x9d52;c;eA==\x9c", "52;c;eA=="),
    "next line, C1": ("a\x85b", "ab"),
    "bell": ("ding\x07", "ding"),
    "overwrites by CR": ("rm -rf /\rls       ", "rm -rf /ls       "),
    "overwrites by BS": ("yes\b\b\bno", "yesno"),
    "delete": ("a\x7fb", "ab"),
    "NUL": ("a\0b", "ab"),
    "other character set": ("\x0e\x1b(0lqk\x0f", "(0lqk"),
    "form feed and vertical tab": ("a\x0cb\x0bc", "abc"),
    "right to left": ("exe.\u202etxt\u2069\u200f", "exe.txt"),
    "zero width": ("a\u200bb\ufeffc\u2060d\u00ade", "abcde"),
    "tags": ("a\U000e0041b", "ab"),
    "line and paragraph separator": ("a\u2028b\u2029c", "abc"),
    "surrogate": ("a\udc9bb", "ab"),
}
HARMLESS = "é中👩\u200d🚀\u200c ~\tx\n⅋ e\u0301 \ue0b0"
attacks = pytest.mark.parametrize(("text", "left"), ATTACKS.values(), ids=ATTACKS)


def terminal(*, tty: bool = True, color: bool = False, verbosity: int = 0) -> Terminal:
    """Both streams in memory, with what a terminal 80 columns wide or a file would get."""
    return Terminal(io.StringIO(), io.StringIO(), tty, tty, color, verbosity, err_live=tty)


def written(stream: object) -> str:
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


@attacks
def test_screen_gets_visible_text_only(text: str, left: str) -> None:
    assert sanitise(text) == left
    for cut in range(len(text) + 1):
        screen = terminal()
        screen.write(text[:cut])
        screen.write(text[cut:])
        assert written(screen.out) == left


def test_harmless_text_stays_as_it_is() -> None:
    assert sanitise(HARMLESS) == HARMLESS
    assert sanitise("") == ""


@attacks
def test_messages_are_one_harmless_line(text: str, left: str) -> None:
    for message in (f"no file {text} here", f"{text}\nerror: all is lost\n"):
        for show in (Terminal.note, Terminal.complain, Terminal.progress):
            screen = terminal()
            show(screen, message)
            raw = written(screen.err).replace("\r\x1b[J", "").rstrip("\r\n")
            assert raw.isprintable(), show
    screen = terminal()
    screen.complain("cannot open", f"rename {text}!")
    assert written(screen.err).removesuffix("\n").isprintable()


@attacks
def test_pipe_gets_every_byte(text: str, left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = text.encode("utf-8", "replace")
    text = raw.decode()
    ours, theirs = os.pipe()
    with open(theirs, "w", encoding="utf-8") as out, open(ours, "rb") as reader:
        monkeypatch.setattr(sys, "stdout", out)
        pipe = Terminal.standard("always")
        assert (pipe.out_tty, pipe.out_pipe) == (False, True)
        for char in text + HARMLESS:
            pipe.write(char)
        pipe.note("figures")
        out.close()
        assert reader.read() == raw + HARMLESS.encode()


@pytest.mark.parametrize(
    ("choice", "env", "color", "live"),
    [
        ("auto", {"TERM": "xterm"}, True, True),
        ("auto", {}, True, True),
        ("auto", {"TERM": "xterm", "NO_COLOR": "1"}, False, True),
        ("auto", {"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ("auto", {"TERM": "dumb"}, False, False),
        ("auto", {"TERM": "dumb", "FORCE_COLOR": "1"}, True, False),
        ("never", {"TERM": "xterm", "FORCE_COLOR": "1"}, False, True),
        ("always", {"TERM": "dumb", "NO_COLOR": "1"}, True, False),
    ],
)
def test_colour_and_cursor_moves_are_two_things(
    choice: str,
    env: dict[str, str],
    color: bool,
    live: bool,
    tty: io.TextIOWrapper,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", tty)
    screen = Terminal.standard(choice, env=env)
    assert (screen.err_tty, screen.err_color, screen.live) == (True, color, live)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    nowhere = Terminal.standard(choice, env=env)
    assert not nowhere.live
    assert nowhere.err_color is (choice == "always" or (choice == "auto" and bool(env.get("FORCE_COLOR"))))


def test_no_color_wins_over_force_color_and_the_flag_over_both() -> None:
    both = {"NO_COLOR": "1", "FORCE_COLOR": "1"}
    assert not wants_color("auto", True, both)
    assert wants_color("always", False, both)
    assert not wants_color("auto", False, {})


def test_quiet_and_llama_log_leave_no_room_for_a_live_line() -> None:
    assert [terminal(verbosity=v).live for v in (-1, 0, 1, 2)] == [False, True, True, False]


@pytest.fixture
def tty() -> Iterator[io.TextIOWrapper]:
    """A terminal of 30 columns."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (10, 30))
    with open(slave, "w", encoding="utf-8") as stream:
        yield stream
    os.close(master)


def test_width_is_that_of_the_terminal_in_use(tty: io.TextIOWrapper) -> None:
    elsewhere = io.StringIO()
    assert Terminal(elsewhere, tty, False, True, False).columns == 30
    assert Terminal(tty, elsewhere, True, False, False).columns == 30
    assert Terminal(elsewhere, elsewhere, False, False, False).columns == 80
    termios.tcsetwinsize(tty.fileno(), (10, 44))
    screen = Terminal(tty, tty, True, True, False)
    assert screen.columns == 44
    termios.tcsetwinsize(tty.fileno(), (0, 0))
    assert screen.columns == 80


def test_missing_and_narrow_streams_do_not_stop_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", raw := io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    screen = Terminal.standard("auto")
    screen.write("lost")
    screen.note("é · 中")
    assert raw.buffer.getvalue() == b"? ? ?\n"  # type: ignore[attr-defined]
    screen.out.close()


def test_nobody_reading_stderr_does_not_cost_the_answer() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    screen = terminal()
    with open(theirs, "w", encoding="utf-8") as screen.err:
        screen.progress("reading")
        screen.note("figures")
        screen.write("answer")
    assert written(screen.out) == "answer"


def test_notes_and_errors() -> None:
    screen = terminal(color=True)
    screen.note("a  note")
    screen.detail("unseen")
    screen.complain("no model", "try -m")
    assert written(screen.err) == "\x1b[2ma note\x1b[22m\n\x1b[31merror:\x1b[39m no model; try -m\n"
    quiet, chatty = terminal(verbosity=-1), terminal(verbosity=1)
    for screen in quiet, chatty:
        screen.note("a note")
        screen.detail("a detail")
        screen.complain("no model")
    assert written(quiet.err) == "error: no model\n"
    assert written(chatty.err) == "a note\na detail\nerror: no model\n"


def test_notes_fold_between_words_on_a_terminal_only() -> None:
    note = "10 tokens · " + "x" * 61 + " · a-b-c-d /a/path/" + "y" * 80
    screen, file = terminal(), terminal(tty=False)
    screen.note(note)
    file.note(note)
    assert written(file.err) == note + "\n"
    first, second, third = written(screen.err).splitlines()
    assert (first, second, third) == (note[:75], note[76:83], note[84:])


@pytest.mark.parametrize(
    ("out_tty", "err_tty", "start"),
    [(True, True, "\n"), (True, False, ""), (False, True, ""), (False, False, "")],
)
def test_message_after_broken_off_answer_starts_its_own_row(out_tty: bool, err_tty: bool, start: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    screen = Terminal(out, err, out_tty, err_tty, err_color=False)
    screen.write("half a line")
    screen.write("")
    screen.complain("no memory")
    screen.complain("again")
    screen.write("whole line\n")
    screen.note("fine")
    assert err.getvalue() == f"{start}error: no memory\nerror: again\nfine\n"
    assert out.getvalue() == "half a linewhole line\n"


def test_progress_is_one_row_that_makes_way() -> None:
    screen = terminal()
    screen.progress("")
    assert written(screen.err) == ""
    screen.progress("loading\n" + "中" * 80)
    row = "loading " + "中" * 35 + "…"
    assert written(screen.err) == f"\r\x1b[J{row}\r"
    screen.note("loaded")
    screen.note("ready")
    assert written(screen.err) == f"\r\x1b[J{row}\r\r\x1b[J\rloaded\nready\n"
    screen.progress("reading")
    screen.complain("no")
    assert written(screen.err).endswith("\r\x1b[Jreading\r\r\x1b[J\rerror: no\n")
    for silent in terminal(tty=False), terminal(verbosity=-1):
        silent.progress("loading")
        assert written(silent.err) == ""


def test_stdin_is_read_when_something_was_sent(
    tty: io.TextIOWrapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sent(raw: bytes) -> str | None:
        ours, theirs = os.pipe()
        os.write(theirs, raw)
        os.close(theirs)
        with open(ours, encoding="utf-8") as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            return read_stdin()

    assert sent("é\n".encode()) == "é\n"
    assert sent(b"") == ""
    with pytest.raises(UsageError, match="0xff at 2"):
        sent(b"ab\xff")
    with open(os.devnull, encoding="utf-8") as null:
        for nothing in (None, tty, null):
            monkeypatch.setattr(sys, "stdin", nothing)
            assert read_stdin() is None
    assert read_stdin() is None  # closed


@pytest.fixture
def _plain_handler() -> Iterator[None]:
    """Python's own Ctrl-C, and an end to waiting for ever."""

    def give_up(*_: object) -> None:
        raise TimeoutError

    old = signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGALRM, give_up)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGINT, old[0])
    signal.signal(signal.SIGALRM, old[1])


def press_in(seconds: float) -> SimpleNamespace:
    """Ctrl-C from another thread, so that it does not end the main thread's sleep in C."""
    press = SimpleNamespace(at=0.0)

    def run() -> None:
        time.sleep(seconds)
        press.at = time.perf_counter()
        signal.raise_signal(signal.SIGINT)

    press.thread = threading.Thread(target=run)
    press.thread.start()
    return press


@pytest.mark.usefixtures("_plain_handler")
def test_interrupt_is_heard_while_c_code_runs() -> None:
    heard: list[tuple[float, threading.Thread]] = []
    delays = []
    for _ in range(5):  # the machine may be busy once
        with on_interrupt(lambda: heard.append((time.perf_counter(), threading.current_thread()))):
            press = press_in(0.02)
            ctypes.CDLL(None).usleep(200_000)
            awake = time.perf_counter()
        press.thread.join()
        at, thread = heard.pop()
        assert not heard
        assert thread is not threading.main_thread()
        delays.append(at - press.at)
        if at < awake and delays[-1] < 0.05:
            break
    else:
        pytest.fail(f"heard after {delays} s")


@pytest.mark.usefixtures("_plain_handler")
def test_second_interrupt_raises_and_everything_is_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs)
    heard = threading.Event()

    def press_twice() -> None:
        with on_interrupt(heard.set):
            signal.raise_signal(signal.SIGINT)
            assert heard.wait(5)
            signal.raise_signal(signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt):
            press_twice()
        assert signal.getsignal(signal.SIGINT) is before
        assert signal.set_wakeup_fd(-1) == theirs
    finally:
        signal.set_wakeup_fd(-1)
        os.close(ours)
        os.close(theirs)


@pytest.mark.usefixtures("_plain_handler")
def test_interrupt_in_the_last_moment_is_heard() -> None:
    for _ in range(100):
        heard = threading.Event()
        with on_interrupt(heard.set):
            signal.raise_signal(signal.SIGINT)
        assert heard.is_set()


@pytest.mark.usefixtures("_plain_handler")
def test_interrupts_while_stop_is_busy_do_not_block_the_end() -> None:
    stop = threading.Event()
    timer = threading.Timer(0.1, stop.set)

    def press_twice() -> None:
        with on_interrupt(stop.wait):
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.02)  # the watcher is in stop() by now
            timer.start()
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        press_twice()
    timer.join()


@pytest.mark.usefixtures("_plain_handler")
def test_interrupt_block_leaks_nothing() -> None:
    def open_things() -> tuple[int, int]:
        return len(os.listdir("/dev/fd")), threading.active_count()

    before = open_things()
    for _ in range(1000):
        with on_interrupt(lambda: None):
            pass
    assert open_things() == before


@pytest.mark.usefixtures("_plain_handler")
def test_interrupt_block_in_another_thread_changes_nothing() -> None:
    seen: list[object] = []

    def work() -> None:
        before = threading.active_count()
        with on_interrupt(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))
            seen.append(threading.active_count() - before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler, 0]
