"""A file is its old bytes or its new bytes: whichever call fails, whenever the process is killed, whoever
else writes. Run as a program, this is the parent of the processes that are killed (it has no threads, so it
can fork).
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from localspec.edit import writing
from localspec.edit.files import read_raw
from localspec.edit.undo import entries, undo, write
from localspec.errors import ExitStatus, LocalspecError, UsageError

OLD, NEW = b"old\n" * 500, b"new text\r\n" * 300
CALLS = ["open", "close", "pwrite", "ftruncate", "fsync", "fchown", "fchmod"]
CALLS += ["mkdir", "rmdir", "unlink", "rename", "replace"]
CALLS += ["listxattr"] if sys.platform == "linux" else []


def edit(path: Path, new: bytes) -> None:
    write(read_raw(str(path)), new)


def error_of(work: Callable[[], object]) -> LocalspecError | None:
    try:
        work()
    except LocalspecError as error:
        return error
    return None


def start(folder: Path, names: int = 1) -> Path:
    """A file of OLD bytes with so many names, no edit remembered."""
    shutil.rmtree(os.environ["LOCALSPEC_HOME"], ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = folder / "file"
    path.write_bytes(OLD)
    for k in range(1, names):
        os.link(path, folder / f"file{k}")
    return path


def check_sound(path: Path) -> None:
    """Whatever happened: the file is whole, undo does what it should, and the next edit works."""
    found = path.read_bytes()
    assert found in (OLD, NEW)
    if found == NEW:
        undo(str(path))
        assert path.read_bytes() == OLD
    else:
        error = error_of(lambda: undo(str(path)))
        assert isinstance(error, UsageError)
        assert "nothing to undo" in error.message
    edit(path, NEW)
    assert path.read_bytes() == NEW
    undo()
    assert path.read_bytes() == OLD
    assert all(name.startswith("file") for name in os.listdir(path.parent))
    assert not [
        name for name in os.listdir(Path(os.environ["LOCALSPEC_HOME"]) / "state/undo") if "tmp" in name
    ]


@contextmanager
def at_call(n: int, fault: Callable[[], object]) -> Iterator[list[str]]:
    """`fault` instead of the n-th of the calls that reach the disk; gives the names of those made."""
    made: list[str] = []
    real = {name: getattr(os, name) for name in CALLS}

    def wrap(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            made.append(name)
            if len(made) == n:
                if name == "close":
                    real[name](*arguments)
                fault()
            return real[name](*arguments, **named)

        return call

    try:
        for name in CALLS:
            setattr(os, name, wrap(name))
        yield made
    finally:
        for name, function in real.items():
            setattr(os, name, function)


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """No flushing to the disk and no waiting for locks, where neither is what is tested."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(writing, "LOCK_SECONDS", 0.0)


def test_each_step_is_on_the_disk_before_the_next(tmp_path: Path) -> None:
    path = start(tmp_path / "folder")
    raw = read_raw(str(path))
    with at_call(0, lambda: None) as calls:
        write(raw, NEW)
    told = [name for name in calls if name in ("pwrite", "fsync", "fchmod", "rename", "replace")]
    remembered = [*["pwrite", "fsync"] * 2, "fsync", "rename", "fsync"]  # two files, their folder, its folder
    assert told == [*remembered, "pwrite", "fchmod", "fsync", "replace", "fsync"]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("names", [1, 2])
@pytest.mark.parametrize(
    "code",
    [
        errno.ENOSPC,
        *(
            pytest.param(code, marks=pytest.mark.slow)
            for code in (errno.EIO, errno.EACCES, errno.EINTR, errno.EROFS)
        ),
    ],
)
def test_every_call_may_fail(tmp_path: Path, code: int, names: int) -> None:
    """Each in turn: an error that names the cause, or the edit is made all the same."""

    def fault() -> NoReturn:
        raise OSError(code, os.strerror(code))

    failed = []
    for n in range(1, 1000):
        path = start(tmp_path / "folder", names)
        raw = read_raw(str(path))
        files_open = open_files()
        with at_call(n, fault) as calls:
            error = error_of(partial(write, raw, NEW))
        assert open_files() == files_open, calls[n - 1]
        if error:
            failed.append(calls[n - 1])
            assert os.strerror(code) in error.message, (failed[-1], error.message)
            assert error.hint
        else:
            assert path.read_bytes() == NEW
        check_sound(path)
        if len(calls) < n:
            break
    assert {"open", "close", "pwrite", "ftruncate", "fsync", "mkdir", "rename"} <= set(failed)
    assert ("replace" in failed) == (names == 1)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("names", [1, 2])
def test_every_call_of_undo_may_fail(tmp_path: Path, names: int) -> None:

    def fault() -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for n in range(1, 1000):
        path = start(tmp_path / "folder", names)
        edit(path, NEW)
        with at_call(n, fault) as calls:
            error = error_of(undo)
        assert path.read_bytes() == OLD if error is None else os.strerror(errno.EIO) in error.message
        check_sound(path)
        if len(calls) < n:
            break
    assert n > 15


def program(mode: str, folder: Path) -> str:
    """Run this file as a program; its asserts are ours."""
    env = os.environ | {"LOCALSPEC_HOME": str(folder / "home")}
    command = [sys.executable, __file__, mode, str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["killed_at_each_call", "killed_at_each_call_in_place", "killed_in_undo"])
def test_killed_at_each_call(tmp_path: Path, mode: str) -> None:
    assert int(program(mode, tmp_path)) > 20


@pytest.mark.slow
def test_killed_at_any_time(tmp_path: Path) -> None:
    old, new = map(int, program("killed_at_random", tmp_path).split())
    assert old + new == 200
    assert (
        min(old, new) > 5
    )  # it is killed before and after, more seldom so where others keep the machine busy


def test_one_of_ten_wins(tmp_path: Path) -> None:
    program("ten_at_once", tmp_path)


def test_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    program("files_limited", tmp_path)


# --- the program --------------------------------------------------------------------------------------------


def fork(work: Callable[[], object]) -> int:
    """A child that does `work`; it exits with 0, or the exit status of the error."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except LocalspecError as error:
        sys.stderr.write(f"{error.message}; {error.hint}\n")
        os._exit(error.exit_status)
    except BaseException as error:
        sys.stderr.write(f"{error!r}\n")
        os._exit(99)
    os._exit(0)


def wait(pid: int) -> int:
    """The exit status, negative: the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(folder: Path, names: int, undoing: bool) -> int:
    """Kill a process before each of its calls in turn; how many there were."""
    for n in range(1, 1000):
        path = start(folder / "files", names)
        if undoing:
            edit(path, NEW)

        def work(n: int = n, path: Path = path) -> None:
            with at_call(n, kill_self):
                undo() if undoing else edit(path, NEW)

        status = wait(fork(work))
        assert status in (0, -signal.SIGKILL), status
        if path.read_bytes() not in (OLD, NEW):
            assert names > 1
            undo(str(path))
            assert path.read_bytes() == OLD
        check_sound(path)
        if status == 0:
            return n
    raise AssertionError("never done")


def killed_at_each_call(folder: Path) -> None:
    print(killed(folder, 1, undoing=False))


def killed_at_each_call_in_place(folder: Path) -> None:
    print(killed(folder, 2, undoing=False))


def killed_in_undo(folder: Path) -> None:
    print(killed(folder, 1, undoing=True) + killed(folder, 2, undoing=True))


def killed_at_random(folder: Path) -> None:
    """Two hundred times at a random moment, from before an edit until after; how often OLD, NEW was left."""
    rng, left = random.Random(1), {OLD: 0, NEW: 0}
    took = []
    for _ in range(20):
        path = start(folder / "files")
        begin = time.perf_counter()
        assert wait(fork(partial(edit, path, NEW))) == 0
        took.append(time.perf_counter() - begin)
    usual = sorted(took)[10]
    for _ in range(200):
        path = start(folder / "files")
        pid = fork(partial(edit, path, NEW))
        time.sleep(rng.uniform(0, 1.5 * usual))
        os.kill(pid, signal.SIGKILL)
        assert wait(pid) in (0, -signal.SIGKILL)
        left[path.read_bytes()] += 1
        check_sound(path)
    print(left[OLD], left[NEW])


def text_of(turn: int, process: int) -> bytes:
    return f"round {turn}, process {process}\n".encode()


def ten_at_once(folder: Path) -> None:
    """All read the file before the first writes it: one is the winner, for the others it has changed."""
    path = start(folder / "files")
    texts = [OLD]
    for turn in range(5):
        ready, go = os.pipe(), os.pipe()
        children = []
        for k in range(10):

            def work(text: bytes = text_of(turn, k), ready: int = ready[1], go: tuple[int, int] = go) -> None:
                os.close(go[1])
                raw = read_raw(str(path))
                os.write(ready, b".")
                os.read(go[0], 1)
                write(raw, text)

            children.append(fork(work))
        for _ in children:
            os.read(ready[0], 1)
        os.close(go[1])
        statuses = [wait(pid) for pid in children]
        assert sorted(statuses) == [ExitStatus.OK] + [ExitStatus.FILE_CHANGED] * 9, statuses
        texts.append(text_of(turn, statuses.index(0)))
        assert path.read_bytes() == texts[-1]
        for fd in (*ready, go[0]):
            os.close(fd)
    assert len(entries()) == 5
    assert os.listdir(path.parent) == ["file"]
    for text in reversed(texts[:-1]):
        undo()
        assert path.read_bytes() == text


def files_limited(folder: Path) -> None:
    """No file may grow beyond a size: as a full disk, but for whoever runs the tests."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    for limit, names, says in (
        (2500, 1, "cannot write"),
        (2500, 2, "cannot"),
        (1000, 1, "cannot save the bytes"),
    ):
        path = start(folder / "files", names)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        error = error_of(partial(edit, path, NEW))
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert error is not None
        assert says in error.message
        assert os.strerror(errno.EFBIG) in error.message
        assert path.read_bytes() == OLD
        check_sound(path)


if __name__ == "__main__":
    modes = (killed_at_each_call, killed_at_each_call_in_place, killed_in_undo, killed_at_random, ten_at_once)
    {mode.__name__: mode for mode in (*modes, files_limited)}[sys.argv[1]](Path(sys.argv[2]))
