"""Where a result goes: over the file it is for, into a new file, or to stdout as the bytes it is.

A new file appears complete or not at all. Knows bytes and patches, not what they mean.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from localspec.edit.diff import hunks, unified
from localspec.edit.files import RawFile, TextFile, read_raw
from localspec.edit.undo import Entry, write
from localspec.edit.writing import overwrite, temporary_name
from localspec.errors import FileChanged, LocalspecError, UsageError, reason
from localspec.ui.diff import render
from localspec.ui.terminal import Terminal

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def existing(name: str, *, may_replace: bool) -> RawFile | None:
    """What stands at `name`, where a result is to go; None: nothing. Raises UsageError if it may not."""
    if not os.path.lexists(name):
        folder = os.path.dirname(name) or "."
        if (
            not os.path.isdir(folder)
            or not os.access(folder, os.W_OK | os.X_OK)
            or not os.path.basename(name)
        ):
            raise UsageError(
                f"{name!r} cannot be made: {folder} is no folder one may write to", "check --out"
            )
        return None
    if not may_replace:
        raise UsageError(f"{name} exists", "give -y to replace it, or another --out")
    return read_raw(name)


def write_to(name: str, old: RawFile | None, source: RawFile, new: bytes) -> Entry | None:
    """Write `new` to `name`, where `old` stood; a new file gets the mode of `source`, less the umask."""
    if old is not None:
        return write(old, new)
    try:
        _create(name, new, source.mode & 0o777)
    except FileExistsError as error:
        raise FileChanged(f"{name} has come into being meanwhile", "nothing was written") from error
    except OSError as error:
        raise LocalspecError(f"cannot write {name}: {reason(error)}", "nothing was written there") from error
    return None


def _create(name: str, data: bytes, mode: int) -> None:
    folder = os.open(os.path.dirname(name) or ".", os.O_RDONLY | os.O_DIRECTORY)
    base, temporary = Path(name).name, temporary_name()
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=folder)
        try:
            try:
                overwrite(fd, data)
            finally:
                os.close(fd)
            _rename_new(temporary, base, folder)
        finally:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
        os.fsync(folder)
    finally:
        os.close(folder)


def _rename_new(old: str, new: str, folder: int) -> None:
    """Rename unless there is such a name already: FileExistsError."""
    try:
        os.link(old, new, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, dir_fd=folder))
        os.replace(old, new, src_dir_fd=folder, dst_dir_fd=folder)


def patch(file: TextFile, after: str) -> str:
    """The change as `git apply` takes it; a BOM is a character of the first line."""
    mark = "\ufeff" if file.bom and file.encoding == "utf-8" else ""
    return unified(mark + file.text, mark + after, _from_here(file.name))


def _from_here(name: str) -> str:
    """A file's name without dots on the way, from the current folder where it is below that."""
    path = os.path.normpath(name)
    inside = os.path.isabs(path) and Path(path).is_relative_to(os.getcwd())
    return os.path.relpath(path) if inside else path


def show_patch(terminal: Terminal, file: TextFile, after: str) -> None:
    """The change on stdout: rows for a terminal, else a patch in the file's own encoding."""
    if terminal.out_tty:
        terminal.out.write(render(hunks(file.text, after), terminal.columns, terminal.err_color))
        terminal.out.flush()
        return
    like_ascii = "\n".encode(file.encoding) == b"\n"
    write_bytes(terminal, patch(file, after).encode(file.encoding if like_ascii else "utf-8"))


def write_bytes(terminal: Terminal, raw: bytes, encoding: str = "utf-8") -> None:
    """`raw` to stdout as it is; where stdout is a terminal as text that cannot drive it."""
    if terminal.out_tty or not hasattr(terminal.out, "buffer"):
        terminal.write(raw.decode(encoding, errors="replace"))
        return
    terminal.out.flush()
    terminal.out.buffer.write(raw)
    terminal.out.buffer.flush()
