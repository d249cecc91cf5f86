"""llama.cpp itself: imported once, its log captured, its abort callback.

Knows nothing of models. Importing this module imports llama_cpp (about 0.1 s): only `app.py` does, late.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp as api

__all__ = [
    "HEAD_SYMBOLS",
    "LOG",
    "CancelFlag",
    "api",
    "ggml_function",
    "has_symbol",
    "library_path",
    "system_info",
]

HEAD_SYMBOLS = {
    "layer inputs": "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
    "layer input rows": "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
    "target layers": "_Z28llama_model_target_layer_idsPK11llama_model",
    "number of target layers": "_Z30llama_model_target_layer_ids_nPK11llama_model",
    "block selector": "_Z33llama_model_dflash_selector_top_kPK11llama_model",
    "token embedding": "_Z24llama_model_get_tok_embdPK11llama_modelPf",
    "memory by device": "_Z26llama_get_memory_breakdownPK13llama_context",
}
"""What the heads of later versions call beyond llama.h: C++ functions, by their Itanium names."""


def has_symbol(name: str) -> bool:
    """Whether the installed libllama exports `name`."""
    path = library_path("llama")
    return path is not None and hasattr(ctypes.CDLL(str(path)), name)


def system_info() -> str:
    """What this build of llama.cpp was made for: backends and instruction sets."""
    return bytes(api.llama_print_system_info()).decode("utf-8", "replace").strip()


def library_path(name: str) -> Path | None:
    """The shared library `name` ("llama", "ggml-base", ...) that llama-cpp-python brings, if it is there."""
    folder = Path(api.__file__).parent / "lib"
    return next((path for end in ("so", "dylib", "dll") for path in folder.glob(f"*{name}.{end}")), None)


def ggml_function(name: str, arguments: list[Any], result: Any) -> Callable[..., Any]:
    """A C function of ggml by name. Raises AttributeError if this build has none."""
    for library in ("ggml", "ggml-base"):
        path = library_path(library)
        handle = ctypes.CDLL(str(path)) if path else None
        if hasattr(handle, name):
            function = getattr(handle, name)
            break
    else:
        raise AttributeError(name)
    function.argtypes, function.restype = arguments, result
    return function  # type: ignore[no-any-return]


_BUFFER = re.compile(r"(\S+) +(?:\w+ +)?buffer size *= *([\d.]+) MiB")

_ERROR, _CONTINUED = 4, 5  # ggml's log levels


class Log:
    """llama.cpp's log: its errors kept for our messages, all of it shown on stderr when `echo` is set."""

    def __init__(self) -> None:
        self.echo = False
        self._errors: deque[str] = deque(maxlen=200)
        self._level = 0
        self._open = ""
        self.buffers: Counter[str] = Counter()
        """Bytes that llama.cpp said it allocated, by buffer type ("CPU_Mapped", "CUDA0"), since `clear`."""
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
        for line in whole:
            if found := _BUFFER.search(line):
                self.buffers[found[1]] += round(float(found[2]) * 2**20)

    def clear(self) -> None:
        self._errors.clear()
        self.buffers.clear()

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
