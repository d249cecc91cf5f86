"""Files in a message: what -f/--file names, and @path words of what the user typed, become delimited blocks.

Only the user's own words are searched for @path: text from a pipe or out of a file is data. What is no text,
too long, or no regular file is refused before it is read; nothing here waits for a pipe or a device.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from localspec.chat.prompt import quote
from localspec.config import is_text
from localspec.errors import UsageError

BYTES_PER_TOKEN = 4
"""Of usual text, for saying how long a file is that was not read."""
MOST_BYTES_PER_TOKEN = 32
"""A file with more for every token there is room for is not read: no text is so regular."""
MOST_MATCHES = 1000
LONGEST_NAME = 200
STDIN = "-"
_MENTION = re.compile(r'(?<![^\s(\[{])@(?:"([^"\n]+)"|(\S+))')
_TRAILING = ".,;:!?)]}'\"…"


@dataclass(slots=True)
class _Attached:
    """What was attached so far. `room`: tokens left; `count`: tokens of a text."""

    room: int
    count: Callable[[str], int]
    blocks: list[str] = field(default_factory=list)
    seen: set[object] = field(default_factory=set)

    def add(self, text: str, name: str, key: object) -> None:
        """A block of `text`, once for every `key`. UsageError when there is no room for it."""
        if key in self.seen:
            return
        block = quote(text, name)
        n_tokens = self.count(block)
        if n_tokens > self.room:
            raise _too_long(name, f"{n_tokens:,}", self.room)
        self.seen.add(key)
        self.room -= n_tokens
        self.blocks.append(block)


def attach(
    question: str,
    files: Sequence[str] = (),
    *,
    room: int,
    count: Callable[[str], int],
    sent: str | None = None,
) -> str:
    """The message: a block for each of `files`, then for each @path in `question`, then `question` itself.

    `files`: paths, patterns such as src/*.py, or "-" for `sent`, the text on stdin. `room`: tokens that the
    files may take together; `count`: tokens of a text. A file is attached once, where it is first named.
    UsageError when one is missing, no text, or too long; an @word that names no file is left as it is.
    """
    attached = _Attached(room, count)
    for value in files:
        if value != STDIN:
            for path in _named(value):
                _add_file(attached, path)
        elif sent is None:
            raise UsageError("--file - has nothing to read", "send text: localspec chat -f - < notes.txt")
        else:
            attached.add(sent, "stdin", STDIN)
    for path in _mentioned(question):
        _add_file(attached, path)
    return "\n".join([*attached.blocks, question]) if attached.blocks else question


def _named(value: str) -> list[str]:
    """The paths that a --file value names: itself if it is one, else the files its pattern matches."""
    path = os.path.expanduser(value)
    if os.path.lexists(path) or not glob.has_magic(path):
        return [path]
    found = list(itertools.islice(glob.iglob(path, recursive=True), MOST_MATCHES + 1))
    if len(found) > MOST_MATCHES:
        raise UsageError(f"{one_line(value)} matches over {MOST_MATCHES} files", "give a narrower pattern")
    files = [match for match in sorted(found) if os.path.isfile(match)]
    if not files:
        raise UsageError(f"no file matches {one_line(value)}", "check the pattern and the folder")
    return files


def _mentioned(question: str) -> Iterator[str]:
    """The files that @path words name, in order. Trailing punctuation belongs to a name only if it exists."""
    for quoted, word in _MENTION.findall(question):
        path = os.path.expanduser(quoted or word)
        while not quoted and path and not _is_file(path) and path[-1] in _TRAILING:
            path = path[:-1]
        if path and _is_file(path):
            yield path


def _is_file(path: str) -> bool:
    try:
        return os.path.isfile(path)
    except ValueError:
        return False


def _add_file(attached: _Attached, path: str) -> None:
    name, most = one_line(path), MOST_BYTES_PER_TOKEN * max(1, attached.room)
    try:
        mode = os.stat(path).st_mode  # merely to open a device may do something
        if not stat.S_ISREG(mode):
            raise UsageError(f"{name} is no file but {_kind(mode)}", _instead(mode))
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            about = os.fstat(file.fileno())
            key = about.st_dev, about.st_ino
            if key in attached.seen:
                return
            raw = file.read(most + 1)
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {name}", "check its path") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "that is no path"
        raise UsageError(f"cannot read {name}: {why}", "check its path and permissions") from error
    size = max(about.st_size, len(raw))
    if size > most:
        raise _too_long(name, f"about {size // BYTES_PER_TOKEN:,}", attached.room)
    attached.add(_decoded(raw, name), name, key)


def _decoded(raw: bytes, name: str) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _no_text(name, len(raw)) from error
    if not is_text(text):
        raise _no_text(name, len(raw))
    return text


def _no_text(name: str, n_bytes: int) -> UsageError:
    what = f"{name} is no UTF-8 text ({n_bytes:,} bytes, about {n_bytes // BYTES_PER_TOKEN:,} tokens)"
    return UsageError(what, "convert it first, for example: iconv -t UTF-8, pdftotext")


def _too_long(name: str, tokens: str, room: int) -> UsageError:
    return UsageError(
        f"{name} has {tokens} tokens, there is room for {max(0, room):,}",
        "attach a part of it, or give a larger --ctx",
    )


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a pipe" if stat.S_ISFIFO(mode) else "a device"


def _instead(mode: int) -> str:
    return "name its files: --file 'folder/*.py'" if stat.S_ISDIR(mode) else "send it on stdin, with --file -"


def one_line(path: str) -> str:
    """A file's name for a prompt or an error: what does not print, or could end a block, becomes ?."""
    shown = "".join(char if char.isprintable() and char != "`" else "?" for char in path)
    return shown if len(shown) <= LONGEST_NAME else "..." + shown[-LONGEST_NAME:]
