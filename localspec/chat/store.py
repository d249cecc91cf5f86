"""The folder of sessions: which names there are, one writer a session, and files that open safely.

Knows nothing of what is in a session.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout

from localspec import config
from localspec.errors import LocalspecError, UsageError, reason

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SUFFIX = ".jsonl"


def path_of(name: str) -> Path:
    """Where the session `name` is or would be. UsageError when it is no name, such as a path."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} cannot name a session", "give up to 64 letters, digits, dots, dashes, underscores"
        )
    return config.sessions_folder() / (name + SUFFIX)


def names() -> list[str]:
    """Of all kept sessions, in no order."""
    try:
        with os.scandir(config.sessions_folder()) as entries:
            files = [entry.name for entry in entries if entry.is_file()]
    except OSError:
        return []
    found = (file.removesuffix(SUFFIX) for file in files if file.endswith(SUFFIX))
    return [name for name in found if NAME.fullmatch(name)]


def check_exists(name: str) -> None:
    """UsageError when there is no session `name`."""
    if not path_of(name).is_file():
        raise UsageError(f"there is no session {name}", "localspec sessions lists them")


def take(name: str) -> FileLock:
    """The lock of a session; makes the folder, which only its owner can look into."""
    folder = config.sessions_folder()
    with told("open", name):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if stat.S_IMODE(folder.stat().st_mode) != 0o700:
            folder.chmod(0o700)
        lock = FileLock(folder / f".{name}.lock", mode=0o600)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise LocalspecError(
                f"session {name} is open in another localspec", "leave that one first, or begin a new session"
            ) from error
    return lock


def open_file(path: Path, flags: int) -> IO[bytes]:
    """The regular file at `path`; a pipe in its place would not be waited for."""
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path} is not a file")
    return os.fdopen(handle, "rb" if flags == os.O_RDONLY else "r+b")


@contextmanager
def told(what: str, name: str) -> Iterator[None]:
    """Say what could not be done with a session when the disk refuses."""
    try:
        yield
    except OSError as error:
        hint = f"look at {config.sessions_folder()}: is it writable, is the disk full?"
        raise LocalspecError(f"cannot {what} session {name}: {reason(error)}", hint) from error


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` last."""
    with suppress(OSError):  # Windows cannot open folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
