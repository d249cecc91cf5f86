"""Low-bit copies of a GGUF, made by llama.cpp: what a model needs to be its own draft.

llama_model_quantize cannot be stopped and aborts the process on some files, so it runs in a child process,
`python -m localspec.llama.quantize`, that dies with its parent. A copy gets its name when it is whole and on
the disk; until then it is NAME.part beside it. Knows bytes and types, not whether a copy is worth having.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from filelock import FileLock, Timeout

from localspec.engine.types import Cancelled
from localspec.errors import LocalspecError, UsageError
from localspec.llama.library import LOG, api

FTYPES = {
    "q8_0": api.LLAMA_FTYPE_MOSTLY_Q8_0,
    "q4_0": api.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q4_k": api.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "q3_k": api.LLAMA_FTYPE_MOSTLY_Q3_K_M,
    "q2_k": api.LLAMA_FTYPE_MOSTLY_Q2_K,
    "iq4_nl": api.LLAMA_FTYPE_MOSTLY_IQ4_NL,  # both i-quants take thirty times as long to make
    "iq3_s": api.LLAMA_FTYPE_MOSTLY_IQ3_S,
}
"""The kinds of copies that need no importance matrix. Lower ones come out as garbage or not at all."""

HEADER_ROOM = 32 * 2**20
"""Bytes allowed for a copy's metadata, which the plan leaves out: twice that of the largest vocabulary."""

_POLL = 0.1
_TENSOR = re.compile(r"\[\s*(\d+)/\s*(\d+)\]")
_SIZE = re.compile(r"(model|quant) size\s*=\s*([\d.]+) MiB \(([\d.]+) BPW\)")
_PACKAGE_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class CopySize:
    """What a copy would come to: bytes of its tensors, and real bits per weight of it and of its source.

    The real bits differ from the kind's name: k-quants fall back to wider types where a row's length is no
    multiple of 256, and the output matrix is kept wider (Q2_K of a model of 576 columns: 5.1 bits).
    """

    bytes: int
    bits: float
    bits_source: float


def planned_size(source: Path, kind: str, *, cancelled: Callable[[], bool] = lambda: False) -> CopySize:
    """The size a `kind` copy of `source` will have, from its header alone. Under a second.

    Raises UsageError for a kind not in FTYPES, LocalspecError if llama.cpp cannot read the file.
    """
    _check_kind(kind)
    sizes = {}
    with closing(_run(source, None, kind, 1, cancelled)) as log:
        for line in log:
            if found := _SIZE.search(line):
                sizes[found[1]] = (float(found[2]), float(found[3]))
    (_, bits_source), (mebibytes, bits) = sizes["model"], sizes["quant"]
    return CopySize(bytes=round(mebibytes * 2**20), bits=bits, bits_source=bits_source)


def quantize(
    source: Path,
    destination: Path,
    kind: str,
    *,
    threads: int,
    cancelled: Callable[[], bool] = lambda: False,
    on_progress: Callable[[float], None] = lambda _: None,
) -> Path:
    """Make `destination`, a copy of `source` (or of the shards it is the first of) in one of the FTYPES.

    A destination that exists is kept: it is whole. `on_progress` receives the share of tensors done.
    Raises UsageError for an unknown kind, LocalspecError when the copy cannot be made, Cancelled soon after
    `cancelled()` turns true; none of them leaves anything behind but a lock file.
    """
    _check_kind(kind)
    destination.parent.mkdir(parents=True, exist_ok=True)
    with _alone_in(destination.parent, cancelled):
        if destination.exists():
            return destination
        bytes_copy = planned_size(source, kind, cancelled=cancelled).bytes
        _check_room(bytes_copy + HEADER_ROOM, source, destination.parent, kind)
        part = destination.with_name(destination.name + ".part")
        try:
            with closing(_run(source, part, kind, threads, cancelled)) as log:
                for line in log:
                    if found := _TENSOR.search(line):
                        on_progress(int(found[1]) / int(found[2]))
            _publish(part, destination)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)
    return destination


def _check_kind(kind: str) -> None:
    if kind not in FTYPES:
        raise UsageError(f"no {kind!r} copy can be made of a model", f"one of {', '.join(FTYPES)}")


def _check_room(needed: int, source: Path, folder: Path, kind: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise LocalspecError(
            f"a {kind} copy of {source.name} needs {_mebibytes(needed)}, {_mebibytes(free)} free in {folder}",
            "free some space, or go without a self-draft",
        )


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


@contextmanager
def _alone_in(folder: Path, cancelled: Callable[[], bool]) -> Iterator[None]:
    """Hold the folder's lock, so that a .part file found in it is nobody's and free space stays counted."""
    lock = FileLock(folder / ".lock")
    while not lock.is_locked:
        if cancelled():
            raise Cancelled
        with suppress(Timeout):
            lock.acquire(timeout=_POLL)
    try:
        yield
    finally:
        lock.release()


def _publish(part: Path, destination: Path) -> None:
    """Give a finished file its name: after a crash it is there whole or not at all."""
    with part.open("r+b") as file:
        os.fsync(file.fileno())
    part.replace(destination)
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(destination.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _run(
    source: Path, part: Path | None, kind: str, threads: int, cancelled: Callable[[], bool]
) -> Generator[str, None, None]:
    """Run the child and yield its log, line by line; without `part` it only plans.

    The child has ended when this generator has, be it closed early.
    """
    path = os.pathsep.join([str(_PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    arguments = [str(source), str(part or ""), str(FTYPES[kind]), str(threads)]
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "localspec.llama.quantize", *arguments],
        stdin=subprocess.PIPE,  # held open: the child ends when we do
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        encoding="utf-8",
        errors="replace",
    )
    log = []
    with child:
        try:
            for line in _follow(child.stderr or (), cancelled):
                log.append(line)
                yield line
        except BaseException:
            child.kill()
            raise
    if child.returncode != 0:
        raise _failure(log, child.returncode, source, kind)


def _follow(stream: Iterable[str], cancelled: Callable[[], bool]) -> Iterator[str]:
    """The lines of `stream`, read by a thread so that `cancelled` is asked all the while."""
    lines: SimpleQueue[str | None] = SimpleQueue()

    def read() -> None:
        with suppress(OSError, ValueError):  # closed under us
            for line in stream:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        if cancelled():
            raise Cancelled
        with suppress(Empty):
            line = lines.get(timeout=_POLL)
            if line is None:
                return
            yield line


def _failure(log: Sequence[str], status: int, source: Path, kind: str) -> LocalspecError:
    """What the child's end means for the user; llama.cpp calls a full disk an "iostream error"."""
    reasons = [line.partition("failed to quantize: ")[2].strip() for line in log]
    reasons += [line.strip() for line in log if "GGML_ASSERT" in line]
    reason = next(filter(None, reasons), f"llama.cpp ended with status {status}")
    what = f"cannot make a {kind} copy of {source.name}"
    if "iostream" in reason or "basic_ios" in reason:
        return LocalspecError(f"{what}: writing it failed", "is the disk full, or a limit on file sizes set?")
    return LocalspecError(f"{what}: {reason}", "the file may be damaged or newer than this llama.cpp")


def _child(source: str, part: str, ftype: str, threads: str) -> int:
    """Quantise, the log on stderr; llama.cpp's status. Ends at once, its file removed, when stdin does."""
    for name in ("SIGINT", "SIGHUP"):  # the parent's to answer
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(part,), daemon=True).start()
    LOG.echo = True
    params = api.llama_model_quantize_default_params()
    params.ftype, params.nthread = int(ftype), int(threads)
    params.allow_requantize, params.dry_run = True, not part
    return int(api.llama_model_quantize(source.encode(), part.encode(), ctypes.byref(params)))


def _end_with_parent(part: str) -> None:
    os.read(0, 1)
    with suppress(OSError):
        Path(part).unlink()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(_child(*sys.argv[1:]))
