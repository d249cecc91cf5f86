"""What ends `localspec chat` from outside leaves a whole session with the question, and a usable terminal."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest
import tiny
from chats import COMMAND, ENV, ask, begun, chat, leave, prompted, saying, shown
from screen import Screen

STORY = "Write a long song about the sea. Repeat the chorus after every verse."
KEEP = ("--session", "kept")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


def messages(folder: Path, name: str = "kept") -> list[str]:
    """What a session's file has, every line of which must be whole."""
    text = (folder / f"home/sessions/{name}.jsonl").read_text()
    assert text.endswith("\n")
    found: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    return [line["content"] for line in found if "role" in line]


def at_the_prompt(screen: Screen) -> None:
    prompted(screen)
    screen.send("half a thou")
    screen.wait("> half a thou")


def while_reading(screen: Screen) -> None:
    prompted(screen)
    screen.paste("the sea was calm. " * 1000)
    screen.send("\r")
    screen.wait("reading the prompt")


def while_answering(screen: Screen) -> None:
    prompted(screen)
    screen.send(f"{STORY}\r")
    screen.wait("tokens/pass lately")


def while_asked(screen: Screen) -> None:
    prompted(screen)
    ask(screen, "word " * 50)
    screen.send("word " * 120 + "\r")
    screen.wait("[n]ot now?")


SMALL = ("--ctx", "256", "-n", "40")
PHASES: dict[str, tuple[Callable[[Screen], None], tuple[str, ...], int]] = {
    "prompt": (at_the_prompt, (), 0),
    "reading": (while_reading, (), 1),  # no answer is kept where none had begun
    "answering": (while_answering, (), 2),
    "asked": (while_asked, SMALL, 2),
}


@pytest.mark.parametrize(
    ("phase", "number"),
    [
        ("prompt", signal.SIGTERM),
        ("answering", signal.SIGHUP),
        pytest.param("prompt", signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param("answering", signal.SIGTERM, marks=pytest.mark.slow),
        *(
            pytest.param(phase, number, marks=pytest.mark.slow)
            for phase in ("reading", "asked")
            for number in (signal.SIGTERM, signal.SIGHUP)
        ),
    ],
)
def test_a_signal_that_ends_it(phase: str, number: signal.Signals, tmp_path: Path) -> None:
    enter, options, asked = PHASES[phase]
    with begun(*KEEP, *options) as screen:
        before = screen.cooked
        enter(screen)
        assert before is not screen.cooked
        screen.interrupt(number)
        assert screen.exit_status() == 128 + number, screen.picture()
        assert before is screen.cooked is True
        assert "Traceback" not in screen.raw
        assert "Exception" not in screen.raw
        assert screen.raw.count("\x1b[?2004h") == screen.raw.count("\x1b[?2004l")
        assert screen.raw.count("\x1b[?7l") == screen.raw.count("\x1b[?7h")
        assert "\x1b[?25l" not in screen.raw.rpartition("\x1b[?25h")[2]
    if asked:
        assert len(messages(tmp_path)) == asked
    else:
        assert not (tmp_path / "home/sessions/kept.jsonl").exists()


def test_killed_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    with begun(*KEEP) as screen:
        while_answering(screen)
        screen.interrupt(signal.SIGKILL)
        assert screen.exit_status() == -signal.SIGKILL
    assert messages(tmp_path) == [STORY]


ABORTING = """
import os, sys
from localspec.ui.stream import MarkdownStream
pieces = []
write = MarkdownStream.write
def writing(self, text, **options):
    write(self, text, **options)
    pieces.append(text)
    if len(pieces) > 5:
        os.abort()
MarkdownStream.write = writing
from localspec.cli import main
main()
"""


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_an_abort_in_the_middle_of_an_answer(model: Path, tmp_path: Path) -> None:
    """As llama.cpp ends where it asserts. The shell then restores the terminal."""
    (tmp_path / "run.py").write_text(ABORTING)
    with Screen(["bash", "--norc", "--noprofile", "-i"], env=ENV | {"PS1": "READY "}, columns=200) as screen:
        screen.wait("READY")
        screen.send(f"ulimit -c 0; {sys.executable} {tmp_path}/run.py chat -t 1 -m {model} --session kept\r")
        prompted(screen)
        screen.send("hello\r")
        screen.wait(lambda: screen.rows[-1] == "READY")
        screen.send("stty -a\r")
        screen.wait(lambda: screen.rows[-1] == "READY" and "speed" in screen.text)
        flags = screen.text.rpartition("speed")[2].split()
        assert {"icanon", "echo", "isig", "icrnl"} <= set(flags)
    assert messages(tmp_path) == ["hello"]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_stopped_and_continued_by_the_shell(model: Path, tmp_path: Path) -> None:
    text = " ".join(f"word{i}" for i in range(400))
    says = " ".join(saying(tmp_path, text))
    command = f"{' '.join(COMMAND)} chat -t 1 -m {model} --session kept {says}"
    with Screen(["bash", "--norc", "--noprofile", "-i"], env=ENV | {"PS1": "READY "}, columns=200) as screen:
        screen.wait("READY")
        screen.send(f"{command}\r")
        prompted(screen)
        screen.send("hello\r")
        screen.wait("word50")
        screen.send("\x1a")
        screen.wait(lambda: screen.rows[-1] == "READY")
        screen.send("fg\r")
        screen.wait("word300")
        assert not screen.cooked
        prompted(screen)
        leave_and_exit(screen)
    assert messages(tmp_path) == ["hello", text]


def leave_and_exit(screen: Screen) -> None:
    screen.send("\x04")
    screen.wait(lambda: screen.rows[-1] == "READY")
    screen.send("exit\r")
    assert screen.exit_status() == 0


@pytest.mark.slow
def test_ctrl_c_stops_an_answer_soon() -> None:
    with begun() as screen:
        while_answering(screen)
        start = time.monotonic()
        screen.send("\x03")
        screen.wait("· stopped")
        assert time.monotonic() - start < 2
        prompted(screen)
        leave(screen)


# Several at once


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), stdin=DEVNULL, capture_output=True, text=True, check=False)


def test_two_chats_with_one_session(model: Path, tmp_path: Path) -> None:
    options = ("-m", str(model), *saying(tmp_path, "Yes."))
    with chat(*options, *KEEP) as screen:
        ask(screen, "one")
        for again in (KEEP, ("-c",)):
            done = run(*COMMAND, "chat", "-t", "1", *options, *again, "two")
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr == (
                "error: session kept is open in another localspec; leave that one first, "
                "or begin a new session\n"
            )
        ask(screen, "four")
        leave(screen)
    assert messages(tmp_path) == ["one", "Yes.", "four", "Yes."]


@pytest.mark.slow
def test_taking_up_a_session_that_is_open(model: Path, tmp_path: Path) -> None:
    options = ("-m", str(model), *saying(tmp_path, "Yes."))
    with chat(*options, *KEEP) as screen, chat(*options, "--session", "other") as second:
        ask(screen, "one")
        ask(second, "/sessions kept")
        assert "session kept is open in another localspec" in second.text
        ask(second, "three")
        leave(second)
        leave(screen)
    assert messages(tmp_path, "other") == ["three", "Yes."]


@pytest.mark.slow
def test_ten_chats_at_once(model: Path, tmp_path: Path) -> None:
    options = ("-t", "1", "-m", str(model), *saying(tmp_path, "Yes."))
    names = [f"s{i}" for i in range(10)]
    children = [
        subprocess.Popen([*COMMAND, "chat", *options, "--session", name, name], stdin=DEVNULL, stdout=PIPE)
        for name in names
    ]
    outcomes = [(child.communicate()[0], child.returncode) for child in children]
    assert outcomes == [(b"Yes.\n", 0)] * 10
    assert [messages(tmp_path, name) for name in names] == [[name, "Yes."] for name in names]
    with chat(*options, lines=40) as screen:
        ask(screen, "/sessions")
        assert all(f"\n{name} " in shown(screen) for name in names)
        leave(screen)
