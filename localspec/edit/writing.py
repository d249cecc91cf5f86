"""Replacing a file: its old bytes or its new bytes after any error, signal or crash; links and mode stay.

Lock, compare with what was read, remember, write a new file beside it, compare again, rename. POSIX. Knows
neither what the bytes mean nor where the old ones are remembered.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shlex
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from localspec import config
from localspec.edit.files import RawFile, read_raw
from localspec.errors import FileChanged, LocalspecError, UsageError, reason

LOCK_SECONDS = 2.0
"""How long another localspec that writes the same file is waited for."""

_TEMPORARY = re.compile(r"\.localspec-(\d{1,9})-[0-9a-f]{16}\.tmp")


def replace(file: RawFile, new: bytes, remember: Callable[[], None]) -> None:
    """Make `new` the bytes of `file`, all or nothing; `remember` is called just before, with the lock held.

    Ctrl-C waits until it is done. A file with several names (`nlink` > 1) is written in place: the only case
    in which a crash may leave a mixture. Raises FileChanged, with nothing written, if the file is not what
    was read or another localspec is writing it; LocalspecError with the cause if it cannot be written.
    """
    with _alone(file), _interrupt_later():
        _refuse_changed(file)
        try:
            folder = os.open(file.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                for name in stale(folder):
                    with suppress(OSError):
                        os.unlink(name, dir_fd=folder)
                remember()
                _refuse_changed(file)
                (_write_in_place if file.nlink > 1 else _write_beside)(file, new, folder)
                _sync_folder(file, folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise LocalspecError(f"cannot write {file.name}: {reason(error)}", _state(file)) from error


def _write_beside(file: RawFile, new: bytes, folder: int) -> None:
    name = temporary_name()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    fd = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        try:
            overwrite(fd, new, lambda: _keep_attributes(fd, file.path))
        finally:
            os.close(fd)
        _refuse_changed(file)
        os.replace(name, file.path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise


def _write_in_place(file: RawFile, new: bytes, folder: int) -> None:
    fd = os.open(file.path.name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        overwrite(fd, new)
    except OSError:
        with suppress(OSError):
            overwrite(fd, file.raw)
        raise
    finally:
        os.close(fd)


def overwrite(fd: int, data: bytes, before_sync: Callable[[], None] = lambda: None) -> None:
    """Make `data` all that the open file has, and flush it to the disk."""
    place, left = 0, memoryview(data)
    while left:
        written = os.pwrite(fd, left, place)
        place, left = place + written, left[written:]
    os.ftruncate(fd, len(data))
    before_sync()
    os.fsync(fd)


def _keep_attributes(fd: int, path: Path) -> None:
    """Give the new file group, owner, attributes and mode of the one at `path`, as far as it is allowed."""
    info = os.lstat(path)
    mode = stat.S_IMODE(info.st_mode)
    try:
        os.fchown(fd, -1, info.st_gid)
    except OSError:
        mode = mode & ~0o2070 | (mode & 0o007) << 3  # another group gets no more than everybody
    try:
        os.fchown(fd, info.st_uid, -1)
    except OSError:
        mode &= ~stat.S_ISUID
    if sys.platform == "linux":
        with suppress(OSError):
            for name in os.listxattr(path, follow_symlinks=False):
                with suppress(OSError):
                    os.setxattr(fd, name, os.getxattr(path, name, follow_symlinks=False))
    os.fchmod(fd, mode)


def _sync_folder(file: RawFile, folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that flush folders by themselves
            what = f"{file.name} is written, but its folder cannot be flushed to the disk: {reason(error)}"
            raise LocalspecError(what, "see to the disk before you rely on it") from error


def _refuse_changed(file: RawFile) -> None:
    try:
        now = read_raw(file.name)
    except UsageError as error:
        raise FileChanged(
            f"{file.name} has changed since it was read: {error.message}", error.hint
        ) from error
    if (now.path, now.sha256, now.nlink > 1) != (file.path, file.sha256, file.nlink > 1):
        raise FileChanged(
            f"{file.name} has changed since it was read", "run the edit again: nothing was written"
        )


def _state(file: RawFile) -> str:
    """What became of `file` in a write that failed, and what to do."""
    with suppress(UsageError):
        if read_raw(file.name).sha256 == file.sha256:
            return "the file is as it was; put that right and try again"
    return f"look at the file; this gives its old bytes back: localspec undo {shlex.quote(file.name)}"


def temporary_name() -> str:
    """A new name for what is being written, which tells who writes it."""
    return f".localspec-{os.getpid()}-{secrets.token_hex(8)}.tmp"


def stale(folder: int | Path) -> list[str]:
    """Names in `folder` that are left of processes which died while they wrote."""
    found = ((name, _TEMPORARY.fullmatch(name)) for name in os.listdir(folder))
    return [name for name, match in found if match and not _is_other_process(int(match[1]))]


def _is_other_process(pid: int) -> bool:
    if pid == os.getpid():  # it is not writing now: this was another process with our number
        return False
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno != errno.ESRCH
    return True


@contextmanager
def _alone(file: RawFile) -> Iterator[None]:
    """Hold the lock of this file. Locks are few and stay; that two files share one only makes them wait."""
    key = hashlib.sha256(os.fsencode(file.path)).hexdigest()[:2]
    try:
        lock = FileLock(private_folder("locks") / f"{key}.lock", timeout=LOCK_SECONDS)
        lock.acquire()
    except Timeout as error:
        raise FileChanged(f"another localspec is writing {file.name}", "run the edit again") from error
    except OSError as error:
        what = f"cannot lock {file.name}, with a file in {config.state_folder()}: {reason(error)}"
        raise LocalspecError(what, "nothing was written; LOCALSPEC_HOME names another folder") from error
    try:
        yield
    finally:
        lock.release()


def private_folder(name: str) -> Path:
    """The folder `name` among our state, made if it is missing; nobody else may look into it."""
    folder = config.state_folder() / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)
    return folder


@contextmanager
def _interrupt_later() -> Iterator[None]:
    """Ctrl-C in the block is raised at its end. Only the main thread gets any."""
    old = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or old is None:
        yield
        return
    presses: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: presses.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)
        if presses:
            signal.raise_signal(signal.SIGINT)
