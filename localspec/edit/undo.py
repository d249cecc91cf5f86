"""Edits with the exact bytes from before them, so that each can be taken back; no git needed.

One folder an edit among our state: `edit.json`, `before`, and for files written in place also `after`. It is
complete on the disk, and appears at once, before the file is touched. Knows bytes, not what they mean.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path

from localspec import config
from localspec.edit.files import RawFile, read_raw
from localspec.edit.writing import overwrite, private_folder, replace, stale, temporary_name
from localspec.errors import FileChanged, LocalspecError, UsageError, reason

MOST_BYTES = 200 * 10**6
MOST_EDITS = 1000
"""Beyond either the oldest edits are forgotten; the last one never is."""

_GIT_SECONDS = 5.0
_BLOCK = 4096
_ID = re.compile(r"\d{20}-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class Entry:
    """An edit that was made: sha256 of the file's bytes before and after it, and how many bytes each has.

    `id` sorts by time and begins with it, nanoseconds since 1970. `path` is absolute and without symlinks.
    """

    id: str
    path: str
    before: str
    after: str
    bytes_before: int
    bytes_after: int

    @property
    def time(self) -> float:
        """Seconds since 1970."""
        return _nanoseconds(self.id) / 1e9

    @property
    def folder(self) -> Path:
        return _store() / self.id


def write(file: RawFile, new: bytes) -> Entry:
    """Make `new` the bytes of `file` as `writing.replace` does it, and remember the old ones."""
    saved: list[Entry] = []
    try:
        replace(file, new, lambda: saved.append(save(file, new)))
    except BaseException:
        for entry in saved:  # an edit that was not made is none
            with suppress(LocalspecError):
                if read_raw(entry.path).sha256 == entry.before != entry.after:
                    _forget(entry.folder)
        raise
    _clean_up()
    return saved[0]


def save(file: RawFile, new: bytes) -> Entry:
    """Put the bytes of `file` on the disk before `new` replace them. Raises LocalspecError if it cannot."""
    hashes = (file.sha256, hashlib.sha256(new).hexdigest())
    contents = {"before": file.raw} | ({"after": new} if file.nlink > 1 else {})
    try:
        store = private_folder("undo")
        made = store / temporary_name()
        os.mkdir(made, 0o700)
        try:
            for name, data in contents.items():
                _write_new(made / name, data)
            entry = Entry(_new_id(), str(file.path), *hashes, len(file.raw), len(new))
            _write_new(made / "edit.json", json.dumps(asdict(entry)).encode())
            _sync(made)
            os.rename(made, entry.folder)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        _sync(store)
    except OSError as error:
        what = f"cannot save the bytes of {file.name} for undo in {config.state_folder()}: {reason(error)}"
        raise LocalspecError(what, "nothing was written; LOCALSPEC_HOME names another folder") from error
    return entry


def entries(path: str | None = None) -> list[Entry]:
    """Edits that can be undone, the oldest first; of all files, or of the one that `path` leads to."""
    wanted = None if path is None else os.path.realpath(path)
    found = (_entry(name) for name in _ids())
    return [entry for entry in found if entry and wanted in (None, entry.path)]


def undo(path: str | None = None) -> Entry:
    """Take back the last edit of the file `path`, None: of any file; once more takes back the one before.

    Returns the edit. Raises FileChanged, with nothing written, if the file is no longer what the edit made of
    it, UsageError if there is nothing to undo, LocalspecError if the file cannot be written.
    """
    never_made = []
    for entry in reversed(entries(path)):
        file = _file_now(entry)
        if file.sha256 == entry.before != entry.after:
            never_made.append(entry)  # a crash between remembering and writing, or undoing and forgetting
            continue
        if file.sha256 != entry.after and not _is_mixture(entry, file.raw):
            raise FileChanged(f"{entry.path} is no longer what the edit made of it", _copy_hint(entry))
        replace(file, _bytes_before(entry), lambda: None)
        for done in (entry, *(one for one in never_made if one.path == entry.path)):
            _forget(done.folder)
        return entry
    where = "" if path is None else f" for {path}"
    raise UsageError(f"there is nothing to undo{where}", "localspec edits lists what can be undone")


def _file_now(entry: Entry) -> RawFile:
    if not os.path.lexists(entry.path):
        raise FileChanged(f"{entry.path} is gone since it was edited", _copy_hint(entry))
    file = read_raw(entry.path)
    if str(file.path) != entry.path:
        raise FileChanged(f"{entry.path} has become a link since it was edited", _copy_hint(entry))
    return file


def _copy_hint(entry: Entry) -> str:
    copy = shlex.join(["cp", str(entry.folder / "before"), entry.path])
    return f"localspec undo FILE takes back another's; the bytes from before are still there: {copy}"


def _bytes_before(entry: Entry) -> bytes:
    try:
        raw = (entry.folder / "before").read_bytes()
    except OSError as error:
        raise LocalspecError(f"cannot read {entry.folder}: {reason(error)}", "nothing was written") from error
    if hashlib.sha256(raw).hexdigest() != entry.before:
        raise LocalspecError(
            f"{entry.folder / 'before'} is damaged", "nothing was written; look at it yourself"
        )
    return raw


def _is_mixture(entry: Entry, raw: bytes) -> bool:
    """Whether `raw` is what a crash leaves of a write in place: each byte that of before or of after."""
    try:
        before, after = ((entry.folder / name).read_bytes() for name in ("before", "after"))
    except OSError:
        return False
    if not min(len(before), len(after)) <= len(raw) <= max(len(before), len(after)):
        return False
    for start in range(0, len(raw), _BLOCK):
        part = raw[start : start + _BLOCK]
        one, other = (data[start : start + len(part)] for data in (before, after))
        if part not in (one, other) and any(
            byte not in pair for byte, *pair in zip_longest(part, one, other)
        ):
            return False
    return True


def _store() -> Path:
    return config.state_folder() / "undo"


def _ids() -> list[str]:
    try:
        return sorted(name for name in os.listdir(_store()) if _ID.fullmatch(name))
    except FileNotFoundError:
        return []


def _new_id() -> str:
    """Later than all there are, even if the clock was set back."""
    latest = max((_nanoseconds(name) for name in _ids()), default=0)
    return f"{max(time.time_ns(), latest + 1):020d}-{secrets.token_hex(4)}"


def _nanoseconds(name: str) -> int:
    return int(name.partition("-")[0])


def _entry(name: str) -> Entry | None:
    """The edit in the folder `name`, None if what is there cannot be one."""
    try:
        raw = json.loads((_store() / name / "edit.json").read_bytes())
        entry = Entry(**raw)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    texts = (entry.path, entry.before, entry.after)
    sizes = (entry.bytes_before, entry.bytes_after)
    is_one = entry.id == name and all(type(x) is str for x in texts) and all(type(x) is int for x in sizes)
    return entry if is_one and os.path.isabs(entry.path) else None


def _write_new(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        overwrite(fd, data)
    finally:
        os.close(fd)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _forget(folder: Path) -> None:
    """Remove a saved edit, so that it is gone at once or not at all."""
    gone = folder.with_name(temporary_name())
    with suppress(OSError):
        os.rename(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)


def _clean_up() -> None:
    """Forget the oldest edits beyond what is kept, and what dead processes left."""
    with suppress(OSError):
        for name in stale(_store()):
            shutil.rmtree(_store() / name, ignore_errors=True)
        total = 0
        for count, name in enumerate(reversed(_ids())):
            folder = _store() / name
            total += sum(item.stat().st_size for item in os.scandir(folder))
            if count and (count >= MOST_EDITS or total > MOST_BYTES):
                _forget(folder)


def dirty(path: str) -> bool | None:
    """Whether `path` differs from the last commit, so that git could not give its bytes back; None: no git.

    Only reads objects: no hook, filter, pager or monitor of the repository runs. Line endings may differ.
    """
    file = Path(os.path.realpath(path))
    if not file.is_file() or _git(file.parent, "rev-parse", "--is-inside-work-tree") != b"true\n":
        return None
    committed = re.match(
        rb"\d+ blob ([0-9a-f]+)\t", _git(file.parent, "ls-tree", "-z", "HEAD", "--", file.name)
    )
    raw = file.read_bytes()
    return not committed or committed[1].decode() not in (
        hashlib.new(
            "sha1" if len(committed[1]) == 40 else "sha256",
            b"blob %d\0" % len(data) + data,
            usedforsecurity=False,
        ).hexdigest()
        for data in (raw, raw.replace(b"\r\n", b"\n"))
    )


def _git(folder: Path, *arguments: str) -> bytes:
    """What git prints, b"" if it fails, takes too long or is not there."""
    settings = ("safe.bareRepository=explicit", "core.fsmonitor=false", "core.hooksPath=/dev/null")
    options = [part for setting in settings for part in ("-c", setting)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
    command = ["git", "--no-pager", "--literal-pathspecs", *options, "-C", str(folder), *arguments]
    try:
        return subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_GIT_SECONDS,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return b""
