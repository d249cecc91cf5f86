"""A model's vocabulary: text to token ids and back."""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Any

from localspec.llama.library import api


class Vocab:
    """Tokenises and names tokens. Borrows from its model: do not use it after the model is closed."""

    def __init__(self, pointer: Any) -> None:
        self._vocab = pointer
        self._pieces: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}

    @cached_property
    def n_tokens(self) -> int:
        return int(api.llama_vocab_n_tokens(self._vocab))

    @property
    def kind(self) -> int:
        """llama.cpp's vocabulary type: 1 SPM, 2 BPE, ..."""
        return int(api.llama_vocab_type(self._vocab))

    @property
    def bos(self) -> int:
        """Id of the begin-of-sequence token, -1 without one."""
        return int(api.llama_vocab_bos(self._vocab))

    @property
    def eos(self) -> int:
        return int(api.llama_vocab_eos(self._vocab))

    @property
    def adds_bos(self) -> bool:
        return bool(api.llama_vocab_get_add_bos(self._vocab))

    @property
    def adds_eos(self) -> bool:
        return bool(api.llama_vocab_get_add_eos(self._vocab))

    def text(self, token: int) -> str:
        """The vocabulary's own spelling of a token, special tokens included."""
        return bytes(api.llama_vocab_get_text(self._vocab, token) or b"").decode("utf-8", "replace")

    def is_end(self, token: int) -> bool:
        """Whether the token ends a turn: any of the model's end-of-generation tokens."""
        known = self._ends.get(token)
        if known is None:
            known = self._ends[token] = bool(api.llama_vocab_is_eog(self._vocab, token))
        return known

    def is_special(self, token: int) -> bool:
        """Whether the token's text would act as a command if it were parsed out of a user's text."""
        special = api.LLAMA_TOKEN_ATTR_CONTROL | api.LLAMA_TOKEN_ATTR_UNKNOWN
        special |= api.LLAMA_TOKEN_ATTR_USER_DEFINED
        return bool(api.llama_vocab_get_attr(self._vocab, token) & special)

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Token ids of `text`, without any BOS or EOS added.

        `special`: whether spellings of special tokens become those tokens (templates) or stay text (users).
        """
        raw = text.encode("utf-8")
        room = len(raw) + 8
        while True:
            ids = (api.llama_token * room)()
            n = api.llama_tokenize(self._vocab, raw, len(raw), ids, room, False, special)
            if n >= 0:
                return list(ids[:n])
            room = -n

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for: possibly part of a character; nothing for control tokens."""
        piece = self._pieces.get(token)
        if piece is None:
            buffer = ctypes.create_string_buffer(64)
            n = api.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, False)
            if n < 0:
                buffer = ctypes.create_string_buffer(-n)
                n = api.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, False)
            piece = self._pieces[token] = buffer.raw[:n]
        return piece
