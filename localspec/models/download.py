"""One file over HTTP, whole and right or not at all: resume, retry, check, rename.

Bytes collect in NAME.HASH.part beside the target, so a later run goes on where this one stopped, and a
file that changed meanwhile has another HASH and starts anew. Only what has the expected size and sha256
gets the final name. Knows nothing of the Hub: requests are made by the `Get` it is given.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from localspec.errors import DownloadError, reason

CHUNK = 2**20
PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each further try; after as many failures in a row without a new byte it is given up."""
LONGEST_WAIT = 30.0
"""A server that asks for more seconds than this is not waited for."""
RESTARTS = 3
RESUMES = "run the same again: it goes on where it stopped"


class Reply(Protocol):
    """What is needed of an HTTP response: httpx2.Response has it."""

    @property
    def status_code(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    def iter_raw(self) -> Iterator[bytes]: ...


Get = Callable[[Mapping[str, str]], AbstractContextManager[Reply]]
"""Request headers -> the response, streamed, of status 200, 206 or 416. Raises Dropped or DownloadError."""


class Dropped(Exception):
    """The connection broke, or the server is busy for `wait` seconds; `error` is what to say in the end."""

    def __init__(self, error: DownloadError, wait: float = 0.0) -> None:
        super().__init__(error.message)
        self.error = error
        self.wait = wait


@dataclass(slots=True)
class Patience:
    """Decides whether to try again. `sleep` is time.sleep but in tests."""

    sleep: Callable[[float], None] = time.sleep
    failures: int = 0

    def after(self, dropped: Dropped) -> None:
        """Wait before the next try, or raise what `dropped` means for the user."""
        if self.failures >= len(PAUSES) or dropped.wait > LONGEST_WAIT:
            raise dropped.error from dropped
        self.sleep(max(PAUSES[self.failures], dropped.wait))
        self.failures += 1


@dataclass(frozen=True, slots=True)
class Expected:
    """What the file must turn out to be. `name` is for messages."""

    name: str
    size: int
    sha256: str


def download(
    expected: Expected,
    target: Path,
    get: Get,
    *,
    lock_file: Path,
    on_bytes: Callable[[int], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
    patience: Patience | None = None,
) -> None:
    """Bring `expected` to `target`. `on_bytes` hears how many bytes are here, `note` gets remarks.

    A target of the right size is taken to be right: only checked files ever get the name. Raises
    DownloadError; whatever is raised, KeyboardInterrupt too, the bytes so far stay in the .part file.
    `lock_file` keeps two processes from fetching the same file.
    """
    with _disk_errors(target), _alone(lock_file, expected.name, note):
        if not (target.is_file() and target.stat().st_size == expected.size):
            path = part_file(target, expected.sha256)
            target.parent.mkdir(parents=True, exist_ok=True)
            for other in set(target.parent.glob(f"{glob.escape(target.name)}.*.part")) - {path}:
                other.unlink()  # of a version that the Hub no longer has
            with _Part.open(path, expected, on_bytes) as part:
                _complete(part, get, patience or Patience())
            os.replace(path, target)
            _sync_folder(target.parent)
        on_bytes(expected.size)


def part_file(target: Path, sha256: str) -> Path:
    """Where the bytes of `target` collect: its name, the content's name, .part."""
    return target.with_name(f"{target.name}.{sha256[:12]}.part")


class _Wrong(DownloadError):
    """All bytes are here and wrong: none is worth keeping."""


def _unlike(name: str, what: str) -> tuple[str, str]:
    hint = "run the same again; if it stays so, a mirror (HF_ENDPOINT) or something on the way alters files"
    return f"{name} as sent is not what the Hub lists: {what}", hint


@dataclass(slots=True)
class _Part:
    """The bytes so far, on disk and in the hash. `stitched`: they did not all come in one response."""

    file: FileIO
    expected: Expected
    on_bytes: Callable[[int], None]
    hash: hashlib._Hash = field(default_factory=hashlib.sha256)
    size: int = 0
    stitched: bool = False
    etag: str = ""
    restarts: int = 0

    @staticmethod
    @contextmanager
    def open(path: Path, expected: Expected, on_bytes: Callable[[int], None]) -> Iterator[_Part]:
        """The .part file at `path`, with what an earlier run left in it; removed if it proves wrong."""
        try:
            with FileIO(path, "a+") as file:
                part = _Part(file, expected, on_bytes)
                file.seek(0)
                while chunk := file.read(CHUNK):
                    part._count(chunk)
                    part.stitched = True
                yield part
        except _Wrong:
            path.unlink()
            raise

    def write(self, chunk: bytes) -> None:
        left = memoryview(chunk)
        while left:
            left = left[self.file.write(left) :]
        self._count(chunk)
        if self.size > self.expected.size:
            raise _Wrong(*_unlike(self.expected.name, f"more than {self.expected.size} bytes"))

    def _count(self, chunk: bytes) -> None:
        self.hash.update(chunk)
        self.size += len(chunk)
        self.on_bytes(self.size)

    def restart(self) -> None:
        """Throw the bytes away: they belong to another version of the file."""
        self.restarts += 1
        if self.restarts > RESTARTS:
            raise DownloadError(f"the server never sends {self.expected.name} whole", "try again later")
        self.file.truncate(0)
        self.hash, self.size, self.stitched, self.etag = hashlib.sha256(), 0, False, ""

    def range_headers(self) -> dict[str, str]:
        """Ask for what is missing; for everything if the file is no longer the one the bytes came from."""
        if not self.size:
            return {}
        strong = self.etag.startswith('"')
        return {"Range": f"bytes={self.size}-", **({"If-Range": self.etag} if strong else {})}

    def continued_by(self, reply: Reply) -> bool:
        """Whether the body goes on exactly where the bytes end, in the same version of the file."""
        etag = reply.headers.get("etag", "")
        same = not (etag and self.etag) or etag == self.etag
        return reply.status_code == 206 and same and content_range(reply)[0] == self.size > 0


def content_range(reply: Reply) -> tuple[int | None, int | None]:
    """First byte and size of the whole file, as far as the response says them."""
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", reply.headers.get("content-range", "").strip())
    if found:
        return int(found[1]), int(found[2]) if found[2] != "*" else None
    length = reply.headers.get("content-length", "")
    return None, int(length) if reply.status_code == 200 and length.isdecimal() else None


def _complete(part: _Part, get: Get, patience: Patience) -> None:
    """Fetch what is missing and check the whole; what was put together of several pieces gets a second go."""
    expected = part.expected
    _fill(part, get, patience)
    if part.stitched and part.hash.hexdigest() != expected.sha256:
        part.restart()
        _fill(part, get, patience)
    if (found := part.hash.hexdigest()) != expected.sha256:
        what = f"its sha256 begins {found[:12]}, not {expected.sha256[:12]}"
        raise _Wrong(*_unlike(expected.name, what))
    os.fsync(part.file.fileno())


def _fill(part: _Part, get: Get, patience: Patience) -> None:
    if part.size > part.expected.size:
        part.restart()
    while part.size != part.expected.size:
        before = part.size
        try:
            _receive(part, get)
        except Dropped as dropped:
            if part.size > before:
                patience.failures = 0
            patience.after(dropped)


def _receive(part: _Part, get: Get) -> None:
    """One request. Returns with nothing new where the bytes so far had to be thrown away first."""
    name, size = part.expected.name, part.expected.size
    with get(part.range_headers()) as reply:
        total = content_range(reply)[1]
        if total not in (None, size):  # a login page of some network, perhaps: what is here may still be good
            raise DownloadError(*_unlike(name, f"{total} bytes, not {size}"))
        if reply.status_code == 200:
            if part.size:
                part.restart()
        elif part.continued_by(reply):
            part.stitched = True
        else:
            part.restart()
            return
        part.etag = reply.headers.get("etag", "")
        for chunk in reply.iter_raw():
            part.write(chunk)
    if part.size < size:
        raise Dropped(DownloadError(f"{name} broke off at {part.size} of {size} bytes", RESUMES))


@contextmanager
def _alone(lock_file: Path, name: str, note: Callable[[str], None]) -> Iterator[None]:
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(lock_file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        note(f"waiting: another localspec is fetching {name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            message, hint = f"no room for {target}: {reason(error)}", f"free some space, then {RESUMES}"
        else:
            message, hint = f"cannot write {target}: {reason(error)}", "see to that folder"
        raise DownloadError(message, f"{hint}; LOCALSPEC_HOME can name another folder") from error


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
