"""One llama_batch, made once and filled through numpy views of its arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.llama.library import api


class Batch:
    """Tokens of one sequence at consecutive positions, at most `size` of them."""

    def __init__(self, size: int) -> None:
        self.raw = api.llama_batch_init(size, 0, 1)
        self._token = _view(self.raw.token, size)
        self._pos = _view(self.raw.pos, size)
        self._logits = _view(self.raw.logits, size)
        _view(self.raw.n_seq_id, size)[:] = 1
        for i in range(size):
            self.raw.seq_id[i][0] = 0
        self._offsets = np.arange(size, dtype=np.int32)

    def fill(self, tokens: Sequence[int], start: int, rows: int) -> Any:
        """`tokens` at positions `start`...; logits for the last `rows`."""
        n = len(tokens)
        self.raw.n_tokens = n
        if n == 1:  # the most frequent pass, and array operations are slow to start
            self.raw.token[0], self.raw.pos[0], self.raw.logits[0] = tokens[0], start, rows
            return self.raw
        self._token[:n] = tokens
        self._pos[:n] = self._offsets[:n] + start
        self._logits[:n] = 0
        self._logits[n - rows : n] = 1
        return self.raw


def _view(pointer: Any, size: int) -> NDArray[Any]:
    return np.ctypeslib.as_array(pointer, shape=(size,))
