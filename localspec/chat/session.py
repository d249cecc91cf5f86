"""Sessions: conversations on disk, one file of JSON lines each, to which lines are only ever added.

A message is on the disk when `add` returns. Whatever ends the program, at most the last line is lost: one
without its end is not read, and cut off before the next is written. One process at a time writes a session.
What the lines mean is transcript.py's.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

from localspec.chat import store, transcript
from localspec.chat.prompt import Message
from localspec.chat.transcript import Header, Transcript
from localspec.errors import LocalspecError, UsageError

MOST_BYTES = 1 << 28
"""A larger file is not read: no conversation is that long."""
LONGEST_HEADER = 1 << 20
TAIL = 1 << 12
"""Bytes at a file's end in which `list_sessions` looks for the last line, before it takes more."""
FORMS = {"md": transcript.as_markdown, "json": transcript.as_json, "txt": transcript.as_text}
"""What a conversation can be exported as."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A session in a list. `when`: seconds since 1970 of its last line; `title`: its first words."""

    name: str
    when: float
    title: str
    messages: int
    model: str


@dataclass(slots=True)
class Session:
    """An open session; nothing is on the disk before its first message. Close it, or use it in a `with`.

    `transcript` is the conversation as it stands. Every method that changes it writes first, and raises
    LocalspecError when it cannot; the conversation is then as it was.
    """

    name: str
    transcript: Transcript
    now: Callable[[], float] = time.time
    _lock: FileLock | None = None
    _bytes: int = 0  # of whole lines on the disk
    _torn: bool = False  # behind them may be a part of one
    _model: tuple[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self._model = self.transcript.model, self.transcript.fingerprint

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others open the session. Twice does no harm."""
        if self._lock:
            self._lock.release()

    @property
    def path(self) -> Path:
        return store.path_of(self.name)

    @property
    def unanswered(self) -> str | None:
        """The question at the end that never got its answer, if there is one."""
        return self.transcript.unanswered

    def messages(self, n_vocab: int) -> list[Message]:
        """The conversation for the model in use, which has `n_vocab` tokens; see Transcript.messages."""
        return self.transcript.messages(self._model[1], n_vocab)

    def use(self, model: str, fingerprint: str) -> None:
        """From now on messages are this model's. Written with the next one."""
        self._model = model, fingerprint

    def add(self, message: Message, *, stopped: bool = False, seed: int | None = None) -> None:
        """Keep a message. `stopped`: the user cut it short."""
        if self._model != (self.transcript.model, self.transcript.fingerprint):
            self._change({"model": self._model[0], "fingerprint": self._model[1]})
        self._change(transcript.message_line(message, stopped, seed))

    def undo(self, turns: int = 1) -> None:
        """Take back the last `turns` questions and what followed them. A summary is not taken back."""
        self._change({"undo": turns})

    def clear(self) -> None:
        """Begin anew under the same name and system message."""
        self._change({"clear": True})

    def summarise(self, text: str, keep: int) -> None:
        """Put `text` in place of all but the last `keep` turns, as `window.compacted` does."""
        self._change({"summary": text, "keep": keep})

    def set_system(self, text: str) -> None:
        """Another system message from now on, "" for none."""
        self._change({"system": text})

    def _change(self, line: dict[str, Any]) -> None:
        line = transcript.parse(transcript.dump(line | {"time": round(self.now(), 3)}))  # as it will be read
        after = self.transcript.after(line)
        line["n"] = len(after.said)
        if self._bytes:
            self._append(transcript.dump(line))
        elif "role" in line:
            after.header = self._begin(line)
        self.transcript = after

    def _begin(self, line: dict[str, Any]) -> Header:
        """Make the file, whole with its first message."""
        found = self.transcript
        title = transcript.title_of(line["content"])
        header = Header(found.model, found.fingerprint, found.system, line["time"], title)
        raw = transcript.dump(transcript.header_line(header)) + transcript.dump(line)
        lock = store.take(self.name)
        try:
            self._make(raw)
        except BaseException:
            lock.release()
            raise
        self._lock, self._bytes = lock, len(raw)
        return header

    def _make(self, raw: bytes) -> None:
        part = self.path.with_name(f".{self.name}.part")
        with store.told("keep", self.name):
            if self.path.exists():
                raise UsageError(
                    f"there is a session {self.name} by now", f"go on with it: --session {self.name}"
                )
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self.path)
            store.sync_folder(self.path.parent)

    def _append(self, raw: bytes) -> None:
        with store.told("keep", self.name), store.open_file(self.path, os.O_RDWR) as file:
            size = file.seek(0, os.SEEK_END)
            if size != self._bytes and not (self._torn and size > self._bytes):
                raise LocalspecError(
                    f"session {self.name} was changed by another program, so this is not kept",
                    "leave the chat and go on with --continue",
                )
            file.truncate(self._bytes)
            self._torn = True
            file.seek(self._bytes)
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        self._torn = False
        self._bytes += len(raw)


def new(
    model: str,
    fingerprint: str,
    system: str = "",
    name: str | None = None,
    now: Callable[[], float] = time.time,
) -> Session:
    """A session to be. `name`: the user's own for it, UsageError if it is taken or no name."""
    if name is not None and store.path_of(name).exists():
        raise UsageError(f"there is a session {name} already", f"go on with it: --session {name}")
    if name is None:
        name = f"{datetime.fromtimestamp(now()):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    return Session(name, Transcript(Header(model, fingerprint, system, now())), now)


def load(name: str | None = None, now: Callable[[], float] = time.time) -> Session:
    """Open a kept session, the one last written if no `name` is given, to go on with it.

    UsageError when there is none; LocalspecError when another process has it open or it cannot be read.
    """
    if name is None:
        kept = list_sessions()
        if not kept:
            raise UsageError("there is no session to go on with", "localspec chat begins one")
        name = kept[0].name
    store.check_exists(name)
    lock = store.take(name)
    try:
        found, n_bytes, torn = _read(name)
    except BaseException:
        lock.release()
        raise
    return Session(name, found, now, lock, n_bytes, torn)


def read(name: str) -> Transcript:
    """A kept conversation, only to look at: it may be open elsewhere."""
    store.check_exists(name)
    return _read(name)[0]


def list_sessions() -> list[Summary]:
    """All kept sessions, the last written first. Only their ends are read; what is no session is left out."""
    found = []
    for name in store.names():
        with (
            suppress(OSError, ValueError, LocalspecError),
            store.open_file(store.path_of(name), os.O_RDONLY) as file,
        ):
            found.append(_summary(name, file))
    return sorted(found, key=lambda kept: (kept.when, kept.name), reverse=True)


def listed(found: Sequence[Summary]) -> list[str]:
    """Sessions a line each, the newest first."""
    if not found:
        return ["no sessions are kept"]
    width = max(len(kept.name) for kept in found)
    return [f"{kept.name:{width}}  {_when(kept.when)}  {kept.messages:>4}  {kept.title}" for kept in found]


def _when(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"


def remove(name: str) -> None:
    """Delete a session. Refused while a process has it open."""
    store.check_exists(name)
    lock = store.take(name)
    try:
        with store.told("remove", name):
            store.path_of(name).unlink()
            Path(lock.lock_file).unlink(missing_ok=True)
    finally:
        lock.release()


def export(name: str, form: str) -> str:
    """A kept conversation, as one of FORMS. As it was said: not made safe for a terminal."""
    if form not in FORMS:
        raise UsageError(f"there is no format {form!r}", f"give {', '.join(FORMS)}")
    return FORMS[form](read(name))


def _summary(name: str, file: IO[bytes]) -> Summary:
    """ValueError when the file has no header or no line after it."""
    header = transcript.read_header(transcript.parse(file.readline(LONGEST_HEADER)))
    last = transcript.parse(_last_line(file))
    n, when = last.get("n", 0), last.get("time", header.created)
    if type(n) is not int or not isinstance(when, int | float) or not 0 <= when <= 1e12:
        raise ValueError("the last line has no count")
    return Summary(name, float(when), transcript.title_of(header.title), n, transcript.title_of(header.model))


def _last_line(file: IO[bytes]) -> bytes:
    """The last line that has its end."""
    size, length = file.seek(0, os.SEEK_END), TAIL
    while True:
        file.seek(max(0, size - length))
        whole, _, _ = file.read(length).rpartition(b"\n")
        start = whole.rfind(b"\n")
        if start >= 0 or length >= min(size, MOST_BYTES):
            return whole[start + 1 :]
        length *= 8


def _read(name: str) -> tuple[Transcript, int, bool]:
    """The conversation, the bytes of its whole lines, and whether a part of one follows them."""
    with store.told("read", name), store.open_file(store.path_of(name), os.O_RDONLY) as file:
        raw = file.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise LocalspecError(f"session {name} is larger than {MOST_BYTES >> 20} MiB", "begin a new one")
    whole = raw.rfind(b"\n") + 1
    try:
        found = transcript.fold(raw[:whole].split(b"\n")[:-1])
    except ValueError as error:
        mend = f"mend {store.path_of(name)}, or: localspec sessions rm {name}"
        hint = "upgrade localspec" if isinstance(error, transcript.TooNew) else mend
        raise LocalspecError(f"session {name} cannot be read: {error}", hint) from error
    return found, whole, whole < len(raw)
