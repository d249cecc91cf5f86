"""Many prompts with one load of a model: JSON lines in, JSON lines out, in order.

All is checked before a model is loaded. With an output file a run that was cut short goes on where it ended:
what was answered stays, a torn last line is cut off. How a prompt is answered is the caller's.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from localspec import config
from localspec.chat.prompt import Message
from localspec.config import is_text
from localspec.engine.types import Cancelled
from localspec.errors import ExitStatus, LocalspecError, UsageError, reason
from localspec.ui.interrupt import on_interrupt

KEYS = {"id", "prompt", "messages", "system", "seed", "max_tokens"}
MOST_SHOWN = 10
"""Bad lines that one error names."""
Ask = Callable[[Sequence[Message], int | None, int | None], dict[str, Any]]
"""(messages, seed, max_tokens) -> the JSON object of the answer; None: the session's own setting."""
Write = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt. `id`: the user's, else its place from 0; `digest`: of all its answer depends on."""

    id: str | int
    messages: tuple[Message, ...]
    seed: int | None
    max_tokens: int | None
    digest: str


@dataclass(frozen=True, slots=True)
class Batch:
    """What is to be done. `done`: so many of `jobs`, the first ones, are answered in `out` already.

    `failed`: how many of those with an error; `bytes`: of whole lines in `out`, which has `size` bytes.
    """

    jobs: tuple[Job, ...]
    out: Path | None = None
    done: int = 0
    failed: int = 0
    bytes: int = 0
    size: int = 0


def read_batch(lines: Iterable[bytes], name: str, *, about: str = "", out: Path | None = None) -> Batch:
    """The prompts in `lines` (of the file `name`), and what `out` has of their answers.

    `about`: what else answers depend on, such as the model and its settings. Raises UsageError that names
    every line which is no prompt, or when `out` holds answers to others.
    """
    jobs: list[Job] = []
    wrong: list[str] = []
    for number, raw in enumerate(lines, 1):
        if raw.strip():
            try:
                jobs.append(_job(raw, len(jobs), about))
            except ValueError as error:
                wrong.append(f"line {number} {error}")
    twice = [str(given) for given, n in Counter(job.id for job in jobs).items() if n > 1]
    wrong += [f"id {given[:40]!r} is given twice" for given in twice]
    if wrong:
        shown = "; ".join(wrong[:MOST_SHOWN]) + (
            f"; and {len(wrong) - MOST_SHOWN} more" * (len(wrong) > MOST_SHOWN)
        )
        raise UsageError(f"{name}: {shown}", 'a line is for example {"prompt": "Why is the sky blue?"}')
    if not jobs:
        raise UsageError(f"{name} has no prompts", 'give one a line: {"prompt": "Why is the sky blue?"}')
    return _resumed(Batch(tuple(jobs), out)) if out else Batch(tuple(jobs))


def run_batch(batch: Batch, answer: Ask, stdout: IO[str], stop: threading.Event | None = None) -> ExitStatus:
    """Answer what is not done, in order, to `batch.out` or `stdout`, each line before the next is begun.

    A prompt that fails gets {"error": ...} and the rest goes on; the exit status is then 1. The first Ctrl-C
    sets `stop`: the current answer is finished and the run ends. A second ends it at once.
    """
    stop = stop or threading.Event()
    failed = batch.failed
    with ExitStack() as stack:
        write = stack.enter_context(_appending(batch, batch.out)) if batch.out else _to(stdout)
        stack.enter_context(on_interrupt(stop.set))
        for place, job in enumerate(batch.jobs[batch.done :], batch.done):
            if stop.is_set():
                return ExitStatus.INTERRUPTED
            try:
                found = answer(job.messages, job.seed, job.max_tokens)
            except (Cancelled, KeyboardInterrupt):
                return ExitStatus.INTERRUPTED
            except LocalspecError as error:
                found = {"error": error.message, "hint": error.hint}
                failed += 1
            if found.get("finish_reason") == "cancelled":  # half an answer would count as one
                return ExitStatus.INTERRUPTED
            write({"index": place, "id": job.id, "digest": job.digest, **found})
    return ExitStatus.ERROR if failed else ExitStatus.OK


@contextmanager
def _appending(batch: Batch, out: Path) -> Iterator[Write]:
    """Adds lines to the output file, which is this process's alone meanwhile; each is on the disk at once."""
    with ExitStack() as stack:
        try:
            stack.enter_context(_alone(out))
            file = stack.enter_context(out.open("r+b" if out.exists() else "xb", buffering=0))
            if file.seek(0, os.SEEK_END) != batch.size:
                raise LocalspecError(f"{out} was changed just now", "give the same command again")
            file.truncate(batch.bytes)
            file.seek(batch.bytes)
        except OSError as error:
            raise _refused(out, error) from error

        def write(line: dict[str, Any]) -> None:
            left = memoryview(_dump(line).encode("utf-8", "replace"))
            try:
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except OSError as error:
                raise _refused(out, error) from error

        yield write


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold the lock of an output file; it stands in our own folder, not beside the user's file."""
    folder = config.cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256(os.fsencode(out.resolve())).hexdigest()
    try:
        with FileLock(folder / f"{key[:32]}.lock", timeout=0):
            yield
    except Timeout as error:
        raise LocalspecError(f"another localspec is writing {out}", "wait for it") from error


def _to(stdout: IO[str]) -> Write:
    def write(line: dict[str, Any]) -> None:
        stdout.write(_dump(line))
        stdout.flush()

    return write


def _dump(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False) + "\n"


def _refused(out: Path, error: OSError) -> LocalspecError:
    return LocalspecError(
        f"cannot write {out}: {reason(error)}", "then the same command goes on where it ended"
    )


def _resumed(batch: Batch) -> Batch:
    """`batch` with what its output file has of it. Nothing is changed yet."""
    assert batch.out
    try:
        if batch.out.exists() and not stat.S_ISREG(batch.out.stat().st_mode):
            raise UsageError(f"{batch.out} is no file", "name a new file, or leave --out away for stdout")
        raw = batch.out.read_bytes()
    except FileNotFoundError:
        return batch
    except OSError as error:
        raise _refused(batch.out, error) from error
    *lines, torn = raw.split(b"\n")
    answers = [_answered(line) for line in lines]
    for number, (found, job) in enumerate(zip_longest(answers, batch.jobs[: len(lines)])):
        if job is None or (found.get("id"), found.get("digest")) != (job.id, job.digest):
            raise _not_ours(batch.out, number)
    begun = b'{"index": %d, ' % len(lines)
    if not (torn.startswith(begun) or begun.startswith(torn)) or (torn and len(lines) == len(batch.jobs)):
        raise _not_ours(batch.out, len(lines))
    failed = sum("error" in found for found in answers)
    return Batch(batch.jobs, batch.out, len(lines), failed, len(raw) - len(torn), len(raw))


def _not_ours(out: Path, number: int) -> UsageError:
    return UsageError(
        f"line {number + 1} of {out} is no answer to prompt {number + 1} under these settings",
        "name another file with --out, or remove that one",
    )


def _answered(raw: bytes) -> dict[str, Any]:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return line if isinstance(line, dict) else {}


def _job(raw: bytes, place: int, about: str) -> Job:
    """The prompt in a line. ValueError says what is wrong with it."""
    try:
        line = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError("is not JSON") from error
    if not isinstance(line, dict):
        raise ValueError("is no JSON object")
    if unknown := sorted(line.keys() - KEYS):
        raise ValueError(f"has the unknown key {unknown[0][:40]!r}")
    given = line.get("id", place)
    if type(given) is not int and not (isinstance(given, str) and is_text(given)):
        raise ValueError("has an id that is no text or whole number")
    messages = _messages(line)
    seed = _whole(line, "seed", 0, 2**63 - 1)
    max_tokens = _whole(line, "max_tokens", 1, 2**24)
    said = [[message.role, message.content] for message in messages]
    digest = hashlib.sha256(json.dumps([said, seed, max_tokens, about]).encode()).hexdigest()
    return Job(given, messages, seed, max_tokens, digest[:16])


def _messages(line: dict[str, Any]) -> tuple[Message, ...]:
    if ("prompt" in line) == ("messages" in line):
        raise ValueError('needs either "prompt" or "messages"')
    given = line.get("messages", [{"role": "user", "content": line.get("prompt")}])
    if not isinstance(given, list):
        raise ValueError("has messages that are no list")
    found = [_message(message) for message in given]
    system = line.get("system")
    if system is not None:
        if not isinstance(system, str) or not is_text(system):
            raise ValueError("has a system message that is no text")
        found.insert(0, Message("system", system))
    if any(message.role == "system" for message in found[1:]):
        raise ValueError("has more than one system message, or one that is not the first")
    if not found or found[-1].role != "user" or not found[-1].content.strip():
        raise ValueError("has no question at its end")
    return tuple(found)


def _message(given: object) -> Message:
    if not isinstance(given, dict) or given.keys() != {"role", "content"}:
        raise ValueError("has a message that is not a role and a content")
    role, content = given["role"], given["content"]
    if role not in ("system", "user", "assistant"):
        raise ValueError("has a message whose role is not system, user or assistant")
    if not isinstance(content, str) or not is_text(content):
        raise ValueError("has a message that is no text")
    return Message(role, content)


def _whole(line: dict[str, Any], name: str, low: int, high: int) -> int | None:
    value = line.get(name)
    if value is not None and (type(value) is not int or not low <= value <= high):
        raise ValueError(f"has a {name} that is no whole number from {low} to {high}")
    return value
