"""/edit: the code of an answer into a file, with somebody at the keys."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from localspec.edit.command import take
from localspec.edit.reply import BadReply
from localspec.edit.undo import undo
from localspec.errors import UsageError
from localspec.ui.keys import Keys
from localspec.ui.terminal import Terminal

ANSWER = "Here it is:\n```python\ndef plus(a, b):\n    return a + b\n```\nIt adds.\n"
CODE = "def plus(a, b):\n    return a + b\n"


def give(name: Path, typed: str, answer: str = ANSWER) -> str:
    """Take `answer` into a file while `typed` is typed; what is shown."""
    reads, writes = os.pipe()
    os.write(writes, typed.encode())
    os.close(writes)
    err = io.StringIO()
    try:
        take(str(name), answer, Terminal(io.StringIO(), err, False, True, False), Keys(reads, single=False))
    finally:
        os.close(reads)
    return err.getvalue()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))


def test_a_new_file_is_shown_and_made(tmp_path: Path) -> None:
    shown = give(tmp_path / "new.py", "y\n")
    assert "+def plus(a, b):" in shown
    assert (tmp_path / "new.py").read_text() == CODE


def test_or_not(tmp_path: Path) -> None:
    give(tmp_path / "new.py", "n\n")
    assert not (tmp_path / "new.py").exists()


def test_a_file_that_is_there_is_changed_and_can_be_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_bytes(b"def add(a, b):\r\n    return a + b\r\n")
    give(path, "y\n")
    assert path.read_bytes() == CODE.replace("\n", "\r\n").encode()
    undo(str(path))
    assert path.read_bytes() == b"def add(a, b):\r\n    return a + b\r\n"


def test_what_looks_wrong_is_not_made_by_enter(tmp_path: Path) -> None:
    give(
        tmp_path / "new.py",
        "\n",
        "```python\ndef f():\n    # ... rest of the code unchanged\n    pass\n```\n",
    )
    assert not (tmp_path / "new.py").exists()


def test_an_answer_without_code_or_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadReply):
        give(tmp_path / "new.py", "y\n", "I cannot do that, because it is not clear what you mean.")
    with pytest.raises(UsageError):
        give(tmp_path / "no" / "new.py", "y\n")
