"""Grammars that answers must obey: read from files, checked before any of it is trusted, and followed.

llama.cpp follows the grammar. Its functions abort the process on a token that does not fit, and its parser
hangs on some grammars (a repetition from 5 to 2, left recursion it overlooks). So tokens are tried before
they are accepted, and a grammar from a file is first parsed in a process of its own.
"""

from __future__ import annotations

import codecs
import ctypes
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import UsageError, reason
from localspec.llama.library import api
from localspec.llama.schema import gbnf_of
from localspec.llama.vocab import Vocab

MOST_BYTES = 256 * 1024
"""Of a file."""
PATIENCE = 10.0
"""Seconds that parsing a grammar may take."""
MEMORY = 2**28
"""Bytes that it may take, where the system can be told."""
HELP = "see llama.cpp's grammars/README.md for the language"

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


def read_grammar(schema: Path | None, grammar: Path | None) -> str | None:
    """The grammar, in GBNF, of a file that holds a JSON schema or one that holds GBNF; None without a file.

    Needs no model. Raises UsageError if a file cannot be read, is malformed, or asks for what cannot be held.
    """
    if schema and grammar:
        raise UsageError("--schema and --grammar were both given", "give one of them")
    if schema:
        return gbnf_of(_read(schema))
    if not grammar:
        return None
    text = _read(grammar)
    _check(text, grammar)
    return text


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text", "save it as UTF-8") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {reason(error)}", "check the path") from None
    if len(raw) > MOST_BYTES:
        raise UsageError(f"{path} is larger than {MOST_BYTES // 1024} KB", "use a smaller one")
    if "\0" in text:
        raise UsageError(f"{path} is not text", "check the path")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _check(gbnf: str, path: Path) -> None:
    """Let llama.cpp parse the grammar where a crash or an endless loop harms nobody."""
    if not gbnf.strip():  # which it would take for no grammar at all
        raise UsageError(f"{path.name} is empty", HELP)
    bare = re.sub(r'"(\\.|[^"\\])*"|\[(\\.|[^\]\\])*\]|#[^\n]*', " ", gbnf, flags=re.DOTALL)
    if "<" in bare or "!" in bare:
        raise UsageError(
            f"{path.name} names tokens, which differ between models", "write their text in quotes"
        )
    command = [sys.executable, "-P", "-c", "from localspec.llama import grammar; grammar.rehearse()"]
    try:
        done = subprocess.run(
            command, input=gbnf.encode(), capture_output=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{path.name} is a grammar without end (left recursion?)", HELP) from None
    if done.returncode:
        said = re.search(
            r"(?:parsing grammar|grammar): ([^\n]{1,120})", done.stderr.decode("utf-8", "replace")
        )
        why = said[1] if said else "llama.cpp cannot follow it"
        why = "".join(char if char.isprintable() else "?" for char in why)
        raise UsageError(f"{path.name} is no valid grammar: {why}", HELP)


def rehearse() -> None:
    """Start the grammar on standard input from each of its rules, and exit with 1 if that fails.

    llama.cpp refuses left recursion where it sees it. Where it does not, it comes to no end here.
    """
    gbnf = sys.stdin.buffer.read()
    _limit_memory()
    names = re.findall(rb"^[ \t]*([a-zA-Z0-9-]+)[ \t]*::=", gbnf, flags=re.MULTILINE)
    for name in dict.fromkeys([b"root", *names]):
        state = api.llama_sampler_init_grammar(None, gbnf, name)
        if not state:
            sys.exit(1)
        api.llama_sampler_free(state)


def _limit_memory() -> None:
    """Linux only: elsewhere the time must do."""
    if sys.platform == "linux":
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


class Grammar:
    """A grammar after some text: a Constraint. Borrows from the vocabulary's model, as the vocabulary does.

    `start` makes the first one. llama.cpp counts the spelling of control tokens as text, though they emit
    none, and takes any bytes after the first of a character: both are refused here.
    """

    __slots__ = ("_cut", "_found", "_state", "_vocab")

    def __init__(self, vocab: Vocab, state: Any, cut: bytes) -> None:
        self._vocab, self._state = vocab, state
        self._cut = cut  # the first bytes of a character whose others are still to come
        self._found: set[int] = set()  # tokens known to be allowed

    @staticmethod
    def start(vocab: Vocab, gbnf: str) -> Grammar:
        """Raises UsageError if llama.cpp cannot follow `gbnf`, which should come from `read_grammar`."""
        state = gbnf and api.llama_sampler_init_grammar(vocab._vocab, gbnf.encode(), b"root")
        if not state:  # an empty grammar would be none
            raise UsageError("llama.cpp cannot follow this grammar", HELP)
        return Grammar(vocab, state, b"")

    def __del__(self, free: Callable[[Any], None] = api.llama_sampler_free) -> None:
        free(self._state)  # bound early: at the interpreter's end `api` may be gone

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        known = ids < self._vocab.n_tokens
        candidates = np.zeros(len(ids), _CANDIDATE)
        candidates["id"] = np.where(known, ids, 0)
        data = ctypes.cast(candidates.ctypes.data, ctypes.POINTER(api.llama_token_data))
        array = api.llama_token_data_array(data, len(ids), -1, False)
        api.llama_sampler_apply(self._state, ctypes.byref(array))
        found: NDArray[np.bool_] = (candidates["logit"] == 0.0) & known
        for i in found.nonzero()[0].tolist():
            found[i] = self._is_text(int(ids[i]))
        self._found.update(ids[found].tolist())
        return found

    def after(self, token: int) -> Grammar | None:
        if self._vocab.is_end(token):
            return None
        if token not in self._found and not self.allowed(np.array([token]))[0]:
            return None
        state = api.llama_sampler_clone(self._state)
        api.llama_sampler_accept(state, token)
        raw = self._cut + self._vocab.piece(token)
        return Grammar(self._vocab, state, raw[codecs.utf_8_decode(raw, "strict", False)[1] :])

    def _is_text(self, token: int) -> bool:
        """Whether the token goes on with valid text, or ends it."""
        if self._vocab.is_end(token):
            return not self._cut
        piece = self._vocab.piece(token)
        if not piece or b"\0" in piece:
            return False
        try:
            codecs.utf_8_decode(self._cut + piece, "strict", False)
        except UnicodeDecodeError:
            return False
        return True
