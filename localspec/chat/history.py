"""What was typed at the prompt, from session to session: one JSON string a line, the newest last.

In a file that only its owner may read. What it holds is data: lines that are no strings are passed over, and
a file that cannot be read or written only means that nothing is remembered.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

KEPT = 1000
"""Messages that are remembered."""
MOST_BYTES = 1 << 20
"""No more of a file is read: its end."""


def load(path: Path) -> list[str]:
    """The last KEPT messages, each once, the newest first. Puts a file in order that has grown long."""
    lines = _last_lines(path)
    newest = list(dict.fromkeys(text for line in reversed(lines) if (text := _text(line))))[:KEPT]
    if len(lines) > 2 * KEPT:
        with suppress(OSError):
            _replace(path, [_line(text) for text in reversed(newest)])
    return newest


def store(path: Path, text: str) -> None:
    """Append a message."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.chmod(path, 0o600)
            os.write(handle, _line(text))
        finally:
            os.close(handle)


def _line(text: str) -> bytes:
    return json.dumps(text).encode() + b"\n"


def _text(line: bytes) -> str:
    try:
        text = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    return text if isinstance(text, str) else ""


def _last_lines(path: Path) -> list[bytes]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MOST_BYTES))
            return file.read(MOST_BYTES).splitlines()
    except OSError:
        return []


def _replace(path: Path, lines: list[bytes]) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent)  # readable by its owner only
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(lines)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise
