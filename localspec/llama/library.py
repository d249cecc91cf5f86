"""llama.cpp itself: imported once, its log captured, its abort callback.

Knows nothing of models. Importing this module imports llama_cpp (about 0.1 s): only `app.py` does, late.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections import deque

import llama_cpp as api

__all__ = ["LOG", "CancelFlag", "api"]

_ERROR, _CONTINUED = 4, 5  # ggml's log levels


class Log:
    """llama.cpp's log: its errors kept for our messages, all of it shown on stderr when `echo` is set."""

    def __init__(self) -> None:
        self.echo = False
        self._errors: deque[str] = deque(maxlen=200)
        self._level = 0
        self._open = ""
        self._callback = api.llama_log_callback(self._receive)  # a collected callback is a segmentation fault
        api.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _receive(self, level: int, text: bytes, _user: int | None) -> None:
        piece = text.decode("utf-8", "replace")
        if self.echo:
            sys.stderr.write(piece)
        if level != _CONTINUED:
            self._level = level
        *whole, self._open = (self._open + piece).split("\n")
        if self._level == _ERROR:
            self._errors.extend(whole)

    def clear(self) -> None:
        self._errors.clear()

    def reason(self, default: str) -> str:
        """The cause of the last failure: the first error since `clear`, without the function it came from.

        The later ones only repeat that it failed.
        """
        first = next(iter(self._errors), default)
        return re.sub(r"^\w+: (error loading model: )?", "", first).strip()


class CancelFlag:
    """Stops a running decode from another thread or a signal, within one graph node on the CPU.

    llama.cpp asks its abort callback once a node, a thousand times a pass. A Python callback would cost a
    fifth of a small model's speed, so the callback is C's own `strlen` on a two-byte buffer: 0 while
    the flag is down, 1 (true) once it is up. No Python runs, and setting the flag is one memory write.
    """

    def __init__(self) -> None:
        self._bytes = ctypes.create_string_buffer(b"\0", 2)
        libc = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
        self.callback = ctypes.cast(libc.strlen, api.ggml_abort_callback)
        self.data = ctypes.cast(self._bytes, ctypes.c_void_p)

    def set(self) -> None:
        self._bytes[0] = b"\1"

    def clear(self) -> None:
        self._bytes[0] = b"\0"

    def is_set(self) -> bool:
        return self._bytes[0] != b"\0"


api.llama_backend_init()
LOG = Log()
