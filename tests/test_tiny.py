"""The tiny models are what they claim: real enough for llama.cpp, each with its one peculiarity."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
import tiny
from numpy.typing import NDArray

TEXT = "Hello, the world!\n\tdef f(x): return 'é → 🙂'  "
CHAT = "<|im_start|>user\nhi<|im_end|>"
WRITERS = [
    tiny.write_llama,
    tiny.write_swa,
    tiny.write_recurrent,
    tiny.write_hybrid,
    tiny.write_other_vocab,
    tiny.write_bigger_vocab,
]
LOAD = """
import json, sys, llama_cpp
for path in sys.argv[1:]:
    params = llama_cpp.llama_model_default_params()
    print(json.dumps([path, bool(llama_cpp.llama_model_load_from_file(path.encode(), params))]), flush=True)
"""


class Llama:
    """llama.cpp at its plainest: F32 cache, no flash attention, one thread."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        assert self.model
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.n_vocab = int(llama_cpp.llama_vocab_n_tokens(self.vocab))
        params = llama_cpp.llama_context_default_params()
        settings = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "type_k": 0, "type_v": 0}
        for key, value in (settings | {"flash_attn_type": 0, "n_outputs_max": 32} | options).items():
            setattr(params, key, value)
        self.ctx = llama_cpp.llama_init_from_model(self.model, params)
        assert self.ctx
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)
        self.n_past = 0

    def tokens(self, text: str) -> list[int]:
        data = text.encode()
        ids = (llama_cpp.llama_token * len(data))()
        n = llama_cpp.llama_tokenize(self.vocab, data, len(data), ids, len(ids), True, True)
        return list(ids[:n])

    def text(self, tokens: Sequence[int]) -> str:
        room = llama_cpp.ctypes.create_string_buffer(64)
        sizes = ((t, llama_cpp.llama_token_to_piece(self.vocab, t, room, 64, 0, True)) for t in tokens)
        return b"".join(room.raw[:n] for _, n in sizes).decode()

    def eval(self, tokens: Sequence[int], rows: int = 1) -> NDArray[np.float32]:
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, self.n_past + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, i >= len(tokens) - rows
        assert llama_cpp.llama_decode(self.ctx, batch) == 0
        self.n_past += len(tokens)
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.ctx), (rows, self.n_vocab)).copy()

    def rewind(self, length: int) -> bool:
        done = bool(llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.ctx), 0, length, -1))
        self.n_past = length if done else self.n_past
        return done

    def close(self) -> None:
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.ctx)
        llama_cpp.llama_model_free(self.model)


@contextmanager
def running(path: Path, **options: Any) -> Iterator[Llama]:
    llama = Llama(path, **options)
    try:
        yield llama
    finally:
        llama.close()


def probabilities(logits: NDArray[np.float32], temperature: float) -> NDArray[np.float64]:
    weights: NDArray[np.float64] = np.exp((logits - logits.max()).astype(np.float64) / temperature)
    weights /= weights.sum()
    return weights


def loads(*paths: Path) -> list[bool]:
    """Which of the files load, asked in a child: a failed assertion in llama.cpp ends the process."""
    child = subprocess.run([sys.executable, "-c", LOAD, *map(str, paths)], capture_output=True, check=True)
    return [json.loads(line)[1] for line in child.stdout.splitlines()]


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__[6:])
def test_a_real_model(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    assert path.stat().st_size < 600_000
    with running(path) as llama:
        assert llama.text(llama.tokens(TEXT)) == TEXT
        assert llama.tokens("return") == [tiny.vocabulary().index("return")]  # the merges work
        chat = llama.tokens(CHAT)
        assert (chat[0], chat[-1]) == (tiny.IM_START, tiny.IM_END)
        assert llama_cpp.llama_vocab_eot(llama.vocab) == tiny.IM_END
        assert llama_cpp.llama_model_chat_template(llama.model, None).decode() == tiny.CHATML
        logits = llama.eval(chat, rows=4)
        assert np.isfinite(logits).all()
        assert logits.std() > 1


def test_random_text_is_neither_constant_nor_noise(tmp_path: Path) -> None:
    with running(tiny.write_llama(tmp_path / "m.gguf", end_bias=-20.0)) as llama:
        rng, entropies, greedy = np.random.default_rng(0), [], []
        start = llama.tokens(CHAT)
        row = llama.eval(start)[0]
        for _ in range(128):
            p = probabilities(row, 0.8)
            entropies.append(-(p * np.log2(np.maximum(p, 1e-30))).sum())
            row = llama.eval([int(rng.choice(len(p), p=p))])[0]
        assert 1 < np.mean(entropies) < 4
        assert llama.rewind(len(start) - 1)
        row = llama.eval(start[-1:])[0]
        for _ in range(128):
            greedy.append(int(row.argmax()))
            row = llama.eval(greedy[-1:])[0]
        assert len(set(greedy[-32:])) > 4
        assert tiny.IM_END not in greedy


def test_rollback_is_bit_identical(tmp_path: Path) -> None:
    with running(tiny.write_llama(tmp_path / "m.gguf")) as llama:
        start = llama.tokens(TEXT)
        tokens = [int(t) for t in np.random.default_rng(0).integers(3, llama.n_vocab, 64)]
        llama.eval(start)
        plain = [llama.eval([token]) for token in tokens]
        assert llama.rewind(len(start))
        for i, token in enumerate(tokens):
            llama.eval([9, 8, 7], rows=3)  # wrong guesses
            assert llama.rewind(len(start) + i)
            assert np.array_equal(llama.eval([token]), plain[i])


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    first, again, other = (tmp_path / name for name in ("first", "again", "other"))
    assert tiny.write_llama(first).read_bytes() == tiny.write_llama(again).read_bytes()
    assert first.read_bytes() != tiny.write_llama(other, seed=1).read_bytes()


def test_vocabularies_differ_as_named(tmp_path: Path) -> None:
    with (
        running(tiny.write_llama(tmp_path / "plain")) as plain,
        running(tiny.write_other_vocab(tmp_path / "other")) as other,
        running(tiny.write_bigger_vocab(tmp_path / "bigger", extra=64)) as bigger,
    ):
        assert plain.n_vocab == other.n_vocab == bigger.n_vocab - 64
        assert plain.tokens(TEXT) == bigger.tokens(TEXT) != other.tokens(TEXT)
        tokens = plain.tokens(TEXT)
        assert np.allclose(plain.eval(tokens), bigger.eval(tokens)[:, : plain.n_vocab], atol=1e-4)


def test_what_can_be_rewound(tmp_path: Path) -> None:
    tokens = list(range(10, 30))
    with running(tiny.write_recurrent(tmp_path / "r"), n_rs_seq=4) as llama:
        llama.eval(tokens)
        assert not llama.rewind(19)
    with running(tiny.write_hybrid(tmp_path / "h"), n_rs_seq=4) as llama:
        llama.eval(tokens)
        assert not llama.rewind(15)
        assert llama.rewind(16)
    with running(tiny.write_swa(tmp_path / "s", window=32)) as llama:
        assert llama_cpp.llama_model_n_swa(llama.model) == 32


def test_nan(tmp_path: Path) -> None:
    with running(tiny.write_nan(tmp_path / "m")) as llama:
        assert np.flatnonzero(np.isnan(llama.eval([5])[0])).tolist() == [tiny.FIRST_BYTE + ord("a")]
    with running(tiny.write_nan(tmp_path / "m", where="all")) as llama:
        assert np.isnan(llama.eval([5])).all()


def test_drafts(tmp_path: Path) -> None:
    target = tiny.write_llama(tmp_path / "target")
    drafts = [
        tiny.quantize(target, tmp_path / "q8", "Q8_0"),
        tiny.quantize(target, tmp_path / "q4", "Q4_0"),
        tiny.write_llama(tmp_path / "noise", noise=0.1),
        tiny.write_llama(tmp_path / "stranger", seed=7),
    ]
    tokens = np.random.default_rng(0).integers(3, 300, 32).tolist()
    rows = []
    for path in (target, *drafts):
        with running(path) as llama:
            rows.append(llama.eval(tokens, rows=32).argmax(axis=1))
    agreement = [float((rows[0] == row).mean()) for row in rows[1:]]
    assert agreement[0] > agreement[1] > agreement[3]
    assert agreement[0] > agreement[2] > agreement[3]
    assert math.isclose(agreement[3], 0, abs_tol=0.1)
    assert drafts[1].stat().st_size < drafts[0].stat().st_size < target.stat().st_size / 3


def test_split(tmp_path: Path) -> None:
    shards, single = tiny.write_split(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([*shards, single])
    assert len(shards) == 3
    with running(shards[0]) as split, running(single) as whole:
        assert np.array_equal(split.eval([5, 6, 7]), whole.eval([5, 6, 7]))


def test_files_that_are_no_target(tmp_path: Path) -> None:
    whole = [tiny.write_embedding_only(tmp_path / "bert"), tiny.write_head_only(tmp_path / "eagle3")]
    damaged = [tiny.write_damaged(tmp_path / kind, kind) for kind in tiny.DAMAGES]
    assert loads(*whole, *damaged) == [True] * 2 + [False] * len(damaged)
    assert b"bert" in whole[0].read_bytes()[:100]
    assert b"eagle3" in whole[1].read_bytes()[:100]
