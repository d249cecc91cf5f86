"""A file as a model may edit it: read as text or refused, and turned back into bytes.

Nothing is guessed: UTF-8, a BOM, or the encoding named, and only what encodes to the same bytes again. Reads
regular files only and waits for nothing. Knows nothing of models, diffs or writing.
"""

from __future__ import annotations

import codecs
import errno
import hashlib
import os
import shlex
import stat
from dataclasses import dataclass, field, fields
from pathlib import Path

from localspec.errors import NotApplied, UsageError, reason

LIMIT_BYTES = 10 * 2**20
"""No model rewrites a larger file."""

_BOMS = {"utf-8": codecs.BOM_UTF8, "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
_BY_BOM = ("utf-8-sig", "utf-16")
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True, slots=True)
class RawFile:
    """A regular file as it was read. `name` as given; `path` absolute, no symlink in it; `mode`: st_mode."""

    name: str
    path: Path
    raw: bytes = field(repr=False)
    sha256: str
    mode: int
    nlink: int


@dataclass(frozen=True, slots=True)
class TextFile(RawFile):
    """`text` is all of `raw` after the BOM (b"" where there is none), with the line endings it has."""

    text: str = field(repr=False)
    encoding: str
    bom: bytes


def nothing(name: str) -> TextFile:
    """What stands for a file that is not there yet."""
    return TextFile(
        name, Path(name).absolute(), b"", hashlib.sha256().hexdigest(), 0o666, 1, "", "utf-8", b""
    )


def read(name: str, encoding: str | None = None, limit_bytes: int = LIMIT_BYTES) -> TextFile:
    """The file `name` as text that `encode` turns into the same bytes; follows symlinks, never blocks.

    `encoding`: a name Python knows; None: UTF-8, or UTF-16 where there is a BOM. Raises UsageError for
    whatever is not a text of that encoding in a regular file that may be replaced, `limit_bytes` at most.
    """
    file = read_raw(name, limit_bytes)
    encoding, bom = _encoding_of(file, encoding)
    try:
        text = file.raw[len(bom) :].decode(encoding)
    except UnicodeError as error:
        raise _undecodable(file, encoding, bom, error) from error
    if (place := text.find("\0")) >= 0:
        raise UsageError(
            f"{name} is binary: it has a NUL at character {place}",
            "edit takes text; UTF-16 without a BOM is read with --encoding utf-16-le or utf-16-be",
        )
    found = {item.name: getattr(file, item.name) for item in fields(RawFile)}
    whole = TextFile(**found, text=text, encoding=encoding, bom=bom)
    if _encoded(whole, text) != file.raw:
        raise UsageError(f"{name} would not come out of {encoding} as it went in", "name another --encoding")
    return whole


def encode(file: TextFile, text: str) -> bytes:
    """`text` in the encoding of `file`, with its BOM. Raises NotApplied where it cannot be put so."""
    try:
        raw = _encoded(file, text)
    except UnicodeEncodeError as error:
        char, line = text[error.start], text.count("\n", 0, error.start) + 1
        raise NotApplied(
            f"the new text has {char!r} (U+{ord(char):04X}) in line {line}, not in {file.encoding}",
            f"ask for a text without it, or convert {file.name} to UTF-8 first",
        ) from error
    new_bom = text.startswith("\ufeff") > file.text.startswith("\ufeff")
    if "\0" in text or new_bom or raw[len(file.bom) :].decode(file.encoding) != text:
        raise NotApplied(f"the new text of {file.name} has a NUL or a BOM in it", "ask again")
    return raw


def _encoded(file: TextFile, text: str) -> bytes:
    return file.bom + text.encode(file.encoding)


def _encoding_of(file: RawFile, named: str | None) -> tuple[str, bytes]:
    """The encoding and the BOM, b"" if there is none."""
    try:
        wanted = codecs.lookup(named).name if named else None
        "a".encode(wanted or "utf-8")  # rot13 and its kind are no text encodings
    except (LookupError, ValueError) as error:
        raise UsageError(
            f"{named!r} is no encoding", "give one like utf-8, utf-16-le, cp1252, shift_jis"
        ) from error
    for encoding, bom in _BOMS.items():
        if file.raw.startswith(bom) and wanted in (None, encoding, *_BY_BOM):
            if file.raw.startswith(codecs.BOM_UTF32_LE) and wanted is None:
                raise UsageError(f"{file.name} is UTF-32 or binary", "name its encoding: --encoding utf-32")
            return encoding, bom
    if wanted == "utf-16":
        raise UsageError(f"{file.name} has no UTF-16 BOM", "say which: --encoding utf-16-le or utf-16-be")
    return "utf-8" if wanted in (None, "utf-8-sig") else wanted, b""


def _undecodable(file: RawFile, encoding: str, bom: bytes, error: UnicodeError) -> UsageError:
    start = len(bom) + getattr(error, "start", 0)
    if b"\0" in file.raw and not encoding.startswith("utf-16"):
        return UsageError(f"{file.name} is binary: it has NUL bytes", "edit takes text files")
    line = file.raw.count(b"\n", 0, start) + 1
    byte = f"byte 0x{file.raw[start]:02X}" if start < len(file.raw) else "the end"
    return UsageError(
        f"{file.name} is not {encoding}: {byte} at {start} (line {line})",
        "name its encoding, such as --encoding cp1252; none is guessed",
    )


def read_raw(name: str, limit_bytes: int | None = None) -> RawFile:
    """The bytes of the regular file that `name` leads to, if it may be replaced. Raises UsageError if not."""
    try:
        path = Path(os.path.realpath(name, strict=True))
        _refuse_kind(name, os.lstat(path).st_mode)
        # what became a pipe or a link since is opened without waiting, and refused
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as stream:
            info = os.fstat(stream.fileno())
            _refuse_kind(name, info.st_mode)
            _refuse_large(name, info.st_size, limit_bytes)
            raw = stream.read() if limit_bytes is None else stream.read(limit_bytes + 1)
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from error
    _refuse_large(name, len(raw), limit_bytes)
    _refuse_read_only(name, path, info.st_mode)
    return RawFile(name, path, raw, hashlib.sha256(raw).hexdigest(), info.st_mode, info.st_nlink)


def _refuse_kind(name: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "not a regular file")
        raise UsageError(f"{name or repr(name)} is {kind}", "edit takes a regular file")


def _refuse_large(name: str, size: int, limit_bytes: int | None) -> None:
    if limit_bytes is not None and size > limit_bytes:
        raise UsageError(
            f"{name} has {size / 2**20:.1f} MiB, at most {limit_bytes / 2**20:.1f} are edited",
            "edit a part of it in a file of its own",
        )


def _refuse_read_only(name: str, path: Path, mode: int) -> None:
    if not mode & 0o222 or not _may(path, os.W_OK):  # root may write everything: the mode is still a wish
        raise UsageError(f"{name} is read-only", f"allow writing first: chmod u+w {shlex.quote(name)}")
    if not _may(path.parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"the folder {path.parent} is read-only, and {path.name} is replaced through a new file in it",
            "allow writing there, or edit a copy elsewhere",
        )


def _may(path: Path, what: int) -> bool:
    return os.access(path, what, effective_ids=os.access in os.supports_effective_ids)


def _unreadable(name: str, error: OSError | ValueError) -> UsageError:
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.ENOENT and os.path.islink(name):
        return UsageError(f"{name} is a link to {os.readlink(name)}, which does not exist", "mend the link")
    if code == errno.ENOENT:
        return UsageError(f"there is no file {name}", "check the name; a new file is begun with: touch")
    if code == errno.ELOOP:
        return UsageError(f"{name} is a link that leads back to itself", "mend the link")
    return UsageError(f"cannot read {name!r}: {reason(error)}", "check its name and its permissions")
