"""The models' caches on disk, so that a long conversation goes on without being read again.

A file a session: for each model a header, its tokens and its cache. Everything is checked before llama.cpp
sees a byte of it, since damage there ends the process; what cannot be used only means reading again, and why
comes back in words. It can all be made again, so nothing here raises for the disk's sake.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from localspec import config
from localspec.chat import store
from localspec.errors import reason
from localspec.llama.model import LlamaModel, SavedState

MAGIC = b"localspec caches 1\n"
FEWEST_TOKENS = 256
"""Fewer are read again as fast as they are restored."""
MOST_BYTES = 2 << 30
SPARE_BYTES = 1 << 30
"""What the disk must have left afterwards."""
SUFFIX = ".caches"
LONGEST_HEADER = 1 << 16
STALE = 3600.0
"""Seconds after which an unfinished file of another session is nobody's."""


@dataclass(frozen=True, slots=True)
class Cache:
    """A model whose cache is kept. `fingerprint`: of its file."""

    model: LlamaModel
    fingerprint: str


@dataclass(frozen=True, slots=True)
class _Part:
    """What the header says of a cache: what it is bound to, its tokens, its bytes, their sha256 together."""

    bound: dict[str, Any]
    tokens: int
    bytes: int
    sha256: str


def folder() -> Path:
    """Where states are kept. May not exist yet."""
    return config.state_folder() / "caches"


def forget() -> None:
    """Remove the states of sessions that are no longer there."""
    tidy(folder(), store.names())


def save(
    folder: Path,
    session: str,
    caches: Mapping[str, Cache],
    conditions: str,
    *,
    known: Collection[str],
    most_bytes: int = MOST_BYTES,
) -> str:
    """Keep `caches` (by what they are for: "target", "draft") of `session`. "", or why that was not done.

    `conditions`: all that computing depends on besides the files, see `loading.conditions_of`. `known`: the
    sessions there are; states of others are removed, then the oldest until all fit `most_bytes`.
    """
    tidy(folder, known)
    caches = {name: cache for name, cache in caches.items() if cache.model.tokens}
    if all(len(cache.model.tokens) < FEWEST_TOKENS for cache in caches.values()):
        return f"there are fewer than {FEWEST_TOKENS} tokens to keep"
    if not all(cache.fingerprint for cache in caches.values()):
        return "it is not known which file the model is"
    own, part = _path(folder, session), folder / f".{session}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                why = _write(file, own, caches, conditions, most_bytes)
            if not why:
                os.replace(part, own)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        return f"the disk refuses: {reason(error)}"
    return why


def restore(folder: Path, session: str, caches: Mapping[str, Cache], conditions: str) -> str:
    """Take over the caches kept of `session`. "", or why some must be read again.

    Those are as they were, or empty if llama.cpp refused them; the others are taken over all the same. The
    file may have more caches than are asked for: a draft model that is loaded later asks then.
    """
    try:
        with store.open_file(_path(folder, session), os.O_RDONLY) as file:
            places = _find_parts(file)
            whys = [_restore(file, places, name, cache, conditions) for name, cache in caches.items()]
    except FileNotFoundError:
        return "no state was kept"
    except (OSError, ValueError) as error:
        return f"the state that was kept cannot be used ({error})"
    return next(filter(None, whys), "")


def tokens_kept(folder: Path, session: str, name: str, fingerprint: str, conditions: str) -> Sequence[int]:
    """The tokens of the cache kept as `name` for such a model; none if there is none to be used.

    A look, by which nothing is decided but what reading would cost: the cache itself is not checked.
    """
    with suppress(OSError, ValueError), store.open_file(_path(folder, session), os.O_RDONLY) as file:
        start, part = _find_parts(file).get(name, (0, None))
        wanted = {"model": fingerprint, "version or machine": conditions}
        if part and wanted.items() <= part.bound.items():
            file.seek(start)
            tokens: list[int] = np.frombuffer(file.read(4 * part.tokens), dtype="<i4").tolist()
            return tokens
    return ()


def tidy(folder: Path, known: Collection[str]) -> None:
    """Remove the states of sessions that are no longer there, and what was never finished."""
    for path in _files(folder, ".part"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE:
                path.unlink()
    for path in _files(folder, SUFFIX):
        if path.name.removesuffix(SUFFIX) not in known:
            with suppress(OSError):
                path.unlink()


def _restore(
    file: IO[bytes], places: Mapping[str, tuple[int, _Part]], name: str, cache: Cache, conditions: str
) -> str:
    if name not in places:
        return f"no state of the {name} was kept"
    start, part = places[name]
    bound = _bound(cache, conditions)
    differs = [what for what, value in bound.items() if part.bound.get(what) != value]
    if differs:
        return f"the {name} was kept under another {differs[0]}"
    file.seek(start)
    raw_tokens, data = file.read(4 * part.tokens), file.read(part.bytes)
    if _digest(raw_tokens, data) != part.sha256:
        return f"the state kept of the {name} is damaged"
    tokens = np.frombuffer(raw_tokens, dtype="<i4")
    if part.tokens > cache.model.n_ctx or not ((tokens >= 0) & (tokens < cache.model.n_vocab)).all():
        return f"the state kept of the {name} is of another model"
    if not cache.model.restore(SavedState(tuple(tokens.tolist()), data)):
        return f"llama.cpp refuses the state kept of the {name}"
    return ""


def _bound(cache: Cache, conditions: str) -> dict[str, Any]:
    """What must be the same for a state to be the one that would be computed now; names for users."""
    options = cache.model.options
    return {
        "model": cache.fingerprint,
        "version or machine": conditions,
        "cache type": options.kv_type,
        "flash attention": options.flash_attn,
        "context size": cache.model.n_ctx,
        "placement on GPUs": [options.gpu_layers, *options.split],
    }


def _size(part: _Part) -> int:
    return 4 * part.tokens + part.bytes


def _digest(*blocks: bytes) -> str:
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()


def _write(file: IO[bytes], own: Path, caches: Mapping[str, Cache], conditions: str, most_bytes: int) -> str:
    """Write all to `file`. "", or why it must not be kept.

    Not forced to the disk: what a power cut leaves is checked anyway.
    """
    file.write(MAGIC)
    whys = (_add(file, own, name, cache, conditions, most_bytes) for name, cache in caches.items())
    return next(filter(None, whys), "")


def _add(file: IO[bytes], own: Path, name: str, cache: Cache, conditions: str, most_bytes: int) -> str:
    """Write one cache, which is in memory only while this runs. "", or why it must not be kept."""
    state = cache.model.save()
    raw_tokens = np.array(state.tokens, dtype="<i4").tobytes()
    digest = _digest(raw_tokens, state.data)
    part = _Part(_bound(cache, conditions), len(state.tokens), len(state.data), digest)
    blocks = _header(name, part), raw_tokens, state.data
    why = _make_room(own, file.tell(), sum(map(len, blocks)), most_bytes)
    for block in () if why else blocks:
        file.write(block)
    return why


def _header(name: str, part: _Part) -> bytes:
    """The sha256 of the line that follows, and that line."""
    line = json.dumps({"name": name, **dataclasses.asdict(part)}).encode()
    return _digest(line).encode() + b" " + line + b"\n"


def _find_parts(file: IO[bytes]) -> dict[str, tuple[int, _Part]]:
    """Where each cache starts, and what it should be. ValueError when the file is not exactly that."""
    if file.readline(len(MAGIC)) != MAGIC:
        raise ValueError("it is of another version, or damaged")
    found, size = {}, os.fstat(file.fileno()).st_size
    while file.tell() < size:
        digest, _, line = file.readline(LONGEST_HEADER).removesuffix(b"\n").partition(b" ")
        if digest.decode("ascii", "replace") != _digest(line):
            raise ValueError("a header is damaged")
        name, part = _read_header(line)
        found[name] = file.tell(), part
        if file.seek(_size(part), os.SEEK_CUR) > size:
            raise ValueError("it is cut short")
    return found


def _read_header(line: bytes) -> tuple[str, _Part]:
    try:
        said = json.loads(line)
        name, part = said["name"], _Part(said["bound"], said["tokens"], said["bytes"], said["sha256"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("a header is damaged") from error
    if not (isinstance(name, str) and isinstance(part.bound, dict)):
        raise ValueError("a header is damaged")
    if not all(type(n) is int and 0 <= n < 2**48 for n in (part.tokens, part.bytes)):
        raise ValueError("a header is damaged")
    return name, part


def _make_room(own: Path, written: int, more: int, most_bytes: int) -> str:
    """Remove the oldest states of other sessions until `more` bytes fit too. "", or why they do not."""
    size = written + more
    if size > most_bytes:
        return f"it would take {size / 2**20:.0f} MiB, at most {most_bytes / 2**20:.0f} are kept"
    others = [(path.stat().st_mtime, path.stat().st_size, path) for path in _files(own.parent, SUFFIX)]
    others = sorted(other for other in others if other[2] != own)
    left = sum(kept for _, kept, _ in others)
    for _, kept, path in others:
        if left + size <= most_bytes:
            break
        path.unlink(missing_ok=True)
        left -= kept
    free = shutil.disk_usage(own.parent).free
    if free < more + SPARE_BYTES:
        return f"it would take {more / 2**20:.0f} MiB more, the disk has {free / 2**20:.0f} left"
    return ""


def _path(folder: Path, session: str) -> Path:
    assert store.NAME.fullmatch(session), "sessions check their names"
    return folder / (session + SUFFIX)


def _files(folder: Path, suffix: str) -> list[Path]:
    with suppress(OSError):
        return [path for path in folder.iterdir() if path.name.endswith(suffix)]
    return []
