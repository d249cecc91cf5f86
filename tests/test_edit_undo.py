"""Undo: the exact bytes from before, as often as there were edits, and never over somebody's later work."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from localspec import config
from localspec.edit import undo as store
from localspec.edit.files import read_raw
from localspec.edit.undo import Entry, dirty, entries, save, undo, write
from localspec.errors import FileChanged, LocalspecError, UsageError

ODD = b"\xff\0 old\r\n\r"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file.txt"
    path.write_bytes(ODD)
    return path


def edit(path: Path, new: bytes) -> Entry:
    return write(read_raw(str(path)), new)


def ids(found: list[Entry]) -> list[str]:
    return [entry.id for entry in found]


def test_bytes_and_mode_come_back(file: Path) -> None:
    file.chmod(0o751)
    made = edit(file, b"new")
    assert entries() == entries(str(file)) == [made]
    assert (made.path, made.bytes_before, made.bytes_after) == (str(file), len(ODD), 3)
    assert abs(made.time - time.time()) < 3600
    assert undo(str(file)) == made
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (ODD, 0o751)
    assert entries() == []


def test_undo_goes_further_back_each_time(file: Path) -> None:
    texts = [ODD, b"1", b"", b"3", b"1", b"5" * 10_000]
    for text in texts[1:]:
        edit(file, text)
    for text in reversed(texts[:-1]):
        undo(str(file))
        assert file.read_bytes() == text
    with pytest.raises(UsageError, match="nothing to undo for"):
        undo(str(file))


def test_the_last_edit_of_any_file_is_the_default(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"a")
    made = [edit(file, b"1"), edit(other, b"b"), edit(file, b"2")]
    assert entries(str(other)) == [made[1]]
    assert [undo() for _ in made] == made[::-1]
    assert (file.read_bytes(), other.read_bytes()) == (ODD, b"a")
    with pytest.raises(UsageError, match="nothing to undo"):
        undo()


def test_a_link_and_a_relative_name_lead_to_the_same_edits(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    made = edit(link, b"new")
    monkeypatch.chdir(tmp_path)
    assert entries("link") == entries("./file.txt") == [made]
    undo("link")
    assert (file.read_bytes(), link.is_symlink()) == (ODD, True)


def test_later_work_is_not_undone(file: Path) -> None:
    made = edit(file, b"new")
    file.write_bytes(b"later work")
    for name in (None, str(file)):
        with pytest.raises(FileChanged, match="no longer what the edit made of it") as error:
            undo(name)
        assert error.value.exit_status == 6
        assert error.value.hint.endswith(f"cp {made.folder / 'before'} {file}")
    assert file.read_bytes() == b"later work"
    assert (made.folder / "before").read_bytes() == ODD
    file.write_bytes(b"new")
    undo()
    assert file.read_bytes() == ODD


def test_a_file_that_is_gone_or_something_else(file: Path, tmp_path: Path) -> None:
    made = edit(file, b"new")
    file.unlink()
    with pytest.raises(FileChanged, match="is gone") as error:
        undo(str(file))
    assert str(made.folder / "before") in error.value.hint
    assert not file.exists()
    (tmp_path / "new").write_bytes(b"new")
    file.symlink_to(tmp_path / "new")
    with pytest.raises(FileChanged, match="has become a link"):
        undo()
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UsageError, match="named pipe"):
        undo()
    file.unlink()
    file.write_bytes(b"another new one")
    with pytest.raises(FileChanged, match="no longer"):
        undo()


def test_an_edit_that_was_remembered_but_never_made_is_passed_over(file: Path) -> None:
    """As after a crash between the two."""
    edit(file, b"1")
    save(read_raw(str(file)), b"never")
    undo(str(file))
    assert file.read_bytes() == ODD
    save(read_raw(str(file)), b"never")
    with pytest.raises(UsageError, match="nothing to undo"):
        undo(str(file))


def test_an_edit_that_failed_is_forgotten(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(LocalspecError, match="No space left on device"):
            edit(file, b"new")
    assert (file.read_bytes(), entries()) == (ODD, [])


def test_an_edit_that_changes_nothing_can_be_undone_once(file: Path) -> None:
    edit(file, ODD)
    undo()
    with pytest.raises(UsageError):
        undo()


@pytest.mark.parametrize("new", [b"", b"short", b"much longer than it was before" * 1000])
def test_what_a_crash_leaves_of_a_file_with_two_names(file: Path, tmp_path: Path, new: bytes) -> None:
    """It is written in place: any mixture of old and new bytes can be undone, and nothing else."""
    os.link(file, tmp_path / "other")
    edit(file, new)
    longer, shorter = sorted((new, ODD), key=len, reverse=True)
    torn = (shorter[: len(shorter) // 2] + longer[len(shorter) // 2 :])[: len(longer) - 1]
    torn = torn.ljust(len(shorter), b"?") if len(torn) < len(shorter) else torn
    file.write_bytes(torn[:-1] + b"?" if torn else b"?" * (len(longer) + 1))
    with pytest.raises(FileChanged):
        undo()
    file.write_bytes(longer + b"?")
    with pytest.raises(FileChanged):
        undo()
    file.write_bytes(torn)
    undo()
    assert (tmp_path / "other").read_bytes() == ODD
    assert file.samefile(tmp_path / "other")


def test_the_store_is_private(file: Path) -> None:
    made = edit(file, b"new")
    (config.state_folder() / "undo").chmod(0o755)
    edit(file, b"newer")
    for folder in (made.folder, made.folder.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(item.stat().st_mode) for item in made.folder.iterdir()} == {0o600}


def test_order_survives_a_clock_set_back(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [edit(file, b"1")]
    monkeypatch.setattr(time, "time_ns", lambda: 10**9)
    made += [edit(file, b"2"), edit(file, b"3")]
    assert ids(entries()) == ids(made)
    undo()
    undo()
    assert file.read_bytes() == b"1"


def test_the_oldest_are_forgotten_beyond_a_number(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_EDITS", 3)
    made = [edit(file, b"%d" % k) for k in range(5)]
    assert entries() == made[-3:]
    assert len(os.listdir(config.state_folder() / "undo")) == 3


def test_the_oldest_are_forgotten_beyond_a_size(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_BYTES", 30_000)
    made = [edit(file, bytes([65 + k]) * 10_000) for k in range(5)]
    assert entries() == made[-2:]  # and what is said of each comes on top
    last = edit(file, b"x" * 50_000)
    last = edit(file, b"y")
    assert entries() == [last]
    undo()
    assert file.read_bytes() == b"x" * 50_000


def test_what_dead_processes_left_in_the_store_goes(file: Path) -> None:
    left = config.state_folder() / "undo" / f".localspec-{os.getpid()}-{'0' * 16}.tmp"
    left.mkdir(parents=True)
    (left / "before").touch()
    edit(file, b"new")
    assert not left.exists()


@pytest.mark.parametrize(
    "damage",
    [
        {"id": "../../elsewhere"},
        {"path": "relative"},
        {"path": 1},
        {"before": None},
        {"bytes_before": "1"},
        {"more": 1},
        [],
        None,
    ],
)
def test_damaged_entries_are_none(file: Path, damage: Any) -> None:
    made = edit(file, b"1")
    last = edit(file, b"2")
    about = last.folder / "edit.json"
    raw = json.loads(about.read_bytes())
    about.write_text(json.dumps(raw | damage if isinstance(damage, dict) else damage))
    assert entries() == [made]
    about.write_text("{" * 100_000)
    assert entries() == [made]
    shutil.rmtree(last.folder)
    assert entries() == [made]


def test_damaged_bytes_are_not_restored(file: Path) -> None:
    made = edit(file, b"new")
    (made.folder / "before").write_bytes(b"other")
    with pytest.raises(LocalspecError, match="is damaged"):
        undo()
    (made.folder / "before").unlink()
    with pytest.raises(LocalspecError, match="No such file"):
        undo()
    assert file.read_bytes() == b"new"


def test_a_store_that_cannot_be_written_stops_the_edit(file: Path) -> None:
    edit(file, b"1")
    shutil.rmtree(config.state_folder() / "undo")
    (config.state_folder() / "undo").touch()
    with pytest.raises(LocalspecError, match=r"cannot save the bytes of .* for undo") as error:
        edit(file, b"2")
    assert "LOCALSPEC_HOME" in error.value.hint
    assert file.read_bytes() == b"1"


def test_names_that_are_no_text(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 \x1b[0m"))
    path.write_bytes(ODD)
    edit(path, b"new")
    undo(str(path))
    assert path.read_bytes() == ODD


# --- git ----------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if not shutil.which("git"):
        pytest.skip("no git")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    return folder


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, "-C", str(folder), *arguments], check=True, capture_output=True)


def commit(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    git(path.parent, "add", "-f", "--", f"./{path.name}")
    git(path.parent, "commit", "-q", "-m", "x")


def test_dirty_is_what_git_could_not_give_back(repository: Path) -> None:
    path = repository / "file.txt"
    path.write_bytes(b"a\n")
    assert dirty(str(path)) is True  # no commit yet
    commit(path, b"a\n")
    assert dirty(str(path)) is False
    path.write_bytes(b"a\r\n")
    assert dirty(str(path)) is False
    path.write_bytes(b"b\n")
    assert dirty(str(path)) is True
    git(repository, "add", ".")
    assert dirty(str(path)) is True
    (repository / "untracked").touch()
    assert dirty(str(repository / "untracked")) is True


@pytest.mark.parametrize("name", ["-rf", "--help", ":(top)x", "a*b", "sp ace", "é\n", "[x]"])
def test_dirty_of_names_that_look_like_something_else(repository: Path, name: str) -> None:
    folder = repository / "sub"
    folder.mkdir()
    commit(folder / name, b"a")
    assert dirty(str(folder / name)) is False
    (folder / name).write_bytes(b"b")
    assert dirty(str(folder / name)) is True


def test_dirty_without_git(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert dirty(str(file)) is None
    assert dirty(str(tmp_path)) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert dirty(str(file)) is None


def test_dirty_runs_nothing_that_a_repository_names(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = repository / "file.txt"
    commit(path, b"a\n")
    trap = repository / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {repository}/sprung\ncat\n")
    trap.chmod(0o755)
    (repository / ".gitattributes").write_text("* filter=trap diff=trap\n")
    for key in (
        "core.fsmonitor",
        "core.pager",
        "filter.trap.clean",
        "filter.trap.smudge",
        "filter.trap.process",
    ):
        git(repository, "config", key, str(trap))
    for key in (
        "diff.external",
        "diff.trap.textconv",
        "diff.trap.command",
        "core.sshCommand",
        "alias.ls-tree",
    ):
        git(repository, "config", key, str(trap))
    hooks = repository / ".git" / "hooks"
    for name in ("post-index-change", "post-checkout", "reference-transaction"):
        shutil.copy(trap, hooks / name)
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # nor does it believe the environment
    monkeypatch.setenv("GIT_PAGER", str(trap))
    assert dirty(str(path)) is False
    assert not (repository / "sprung").exists()
