"""LlamaModel: whatever is done to it, its next logits are those of a fresh context on the same tokens."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tiny
from conftest import EXACT
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from tables import Repeats

from localspec.engine.generate import WIDEST_PASS, Fixed, Generator
from localspec.engine.sampling import Sampler
from localspec.engine.types import BadLogits, Cancelled, Logits, Model, Sampling, Source
from localspec.errors import BadModelFile, ExitStatus, LocalspecError, UsageError
from localspec.llama import model as model_module
from localspec.llama.library import LOG, CancelFlag, Log, api
from localspec.llama.model import CHUNK, KV_TYPES, LlamaModel, LoadOptions, SavedState
from localspec.llama.vocab import Vocab

ROOT = Path(__file__).parent.parent
CHILD_ENV = os.environ | {"PYTHONPATH": str(ROOT), "GGML_NO_BACKTRACE": "1"}
SHORT = replace(EXACT, n_ctx=1024)
ATTENTION = "attention"  # its cache can be cut anywhere
WINDOW = "window"  # only where the window before the cut is still there
RECURRENT = "recurrent"  # nowhere
KINDS = {
    "llama": (tiny.write_llama, ATTENTION, 1e-4),
    "swa": (tiny.write_swa, WINDOW, 1e-2),  # ggml looks GELU up in an F16 table: widths differ by 2e-3
    "recurrent": (tiny.write_recurrent, RECURRENT, 1e-4),
    "hybrid": (tiny.write_hybrid, RECURRENT, 1e-4),
}


def some_tokens(n: int, seed: int = 0) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(tiny.FIRST_BYTE, 300, n).tolist()
    return tokens


def fresh(path: Path, tokens: Sequence[int], rows: int = 1, options: LoadOptions = EXACT) -> Logits:
    with LlamaModel(path, options) as model:
        return model.eval(tokens, rows).copy()


def assert_same(got: Logits, expected: Logits, tolerance: float = 1e-4) -> None:
    assert got.shape == expected.shape
    assert np.abs(got - expected).max(initial=0) < tolerance


def n_cached(model: LlamaModel) -> int:
    """Tokens physically in the cache."""
    return len(model.save().tokens)


class CancelAfter(CancelFlag):
    """Goes up in the middle of a pass, after so many nodes of its graph; None: never."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: int | None = None
        self.callback = api.ggml_abort_callback(self._asked)

    def _asked(self, _data: int | None) -> bool:
        if self.nodes is None:
            return False
        self.nodes -= 1
        return self.nodes < 0


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("kinds")
    return {name: write(folder / f"{name}.gguf") for name, (write, *_) in KINDS.items()}


# Any sequence of operations


class CacheMachine(RuleBasedStateMachine):
    """A model and the list of tokens it should stand for."""

    states = Bundle("states")

    def __init__(self, path: Path, name: str) -> None:
        super().__init__()
        self.path = path
        _, self.kind, self.tolerance = KINDS[name]
        self.notices: list[str] = []
        self.cancel = CancelAfter()
        self.model = LlamaModel(path, SHORT, cancel=self.cancel, on_notice=self.notices.append)
        self.tokens: list[int] = []

    def teardown(self) -> None:
        try:
            self.eval_and_compare([5], 1)
        finally:
            self.model.close()

    def eval_and_compare(self, tokens: list[int], rows: int) -> None:
        if len(self.tokens) + len(tokens) > self.model.n_ctx:
            with pytest.raises(ValueError, match="eval of"):
                self.model.eval(tokens, rows)
        else:
            got = self.model.eval(tokens, rows)
            self.tokens += tokens
            assert_same(got, fresh(self.path, self.tokens, rows, SHORT), self.tolerance)
        assert list(self.model.tokens) == self.tokens

    @initialize(n=st.integers(0, 400))
    def prefill(self, n: int) -> None:
        self.model.eval(some_tokens(n), rows=0)
        self.tokens += some_tokens(n)

    @rule(n=st.integers(1, 150), seed=st.integers(0, 9), rows=st.integers(1, WIDEST_PASS))
    def eval(self, n: int, seed: int, rows: int) -> None:
        self.eval_and_compare(some_tokens(n, seed), min(rows, n))

    @rule(n=st.integers(1, 150), nodes=st.integers(0, 60))
    def eval_cancelled(self, n: int, nodes: int) -> None:
        if len(self.tokens) + n > self.model.n_ctx:
            return
        before = n_cached(self.model)
        self.cancel.nodes = nodes
        try:
            self.model.eval(some_tokens(n), rows=0)
            self.tokens += some_tokens(n)
        except Cancelled:
            assert self.kind != ATTENTION or n_cached(self.model) >= before
        finally:
            self.cancel.nodes = None
        assert list(self.model.tokens) == self.tokens

    @rule(back=st.one_of(st.integers(0, 8), st.integers(0, WIDEST_PASS), st.integers(0, 1000)))
    def rewind(self, back: int) -> None:
        self.rewind_to(max(0, len(self.tokens) - back))

    @rule(beyond=st.integers(-2, 40))
    def rewind_to_the_edge_of_the_window(self, beyond: int) -> None:
        oldest = api.llama_memory_seq_pos_min(self.model._memory, 0)
        self.rewind_to(min(len(self.tokens), max(0, oldest + beyond)))

    def rewind_to(self, length: int) -> None:
        before = n_cached(self.model)
        self.notices.clear()
        self.model.rewind(length)
        del self.tokens[length:]
        assert list(self.model.tokens) == self.tokens
        kept = n_cached(self.model) == min(before, length)
        assert kept or n_cached(self.model) == 0
        assert self.notices == (
            [] if kept else [f"this model's cache cannot be cut: reading {length} tokens again"]
        )
        if length not in range(1, before) or self.kind == ATTENTION:
            assert kept
        elif self.kind == RECURRENT:
            assert not kept

    @rule(target=states)
    def save(self) -> SavedState:
        state = self.model.save()
        assert list(state.tokens) == self.tokens[: len(state.tokens)]
        return state

    @rule(state=states)
    def restore(self, state: SavedState) -> None:
        assert self.model.restore(state)
        self.tokens = list(state.tokens)
        assert list(self.model.tokens) == self.tokens


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("n", [75, pytest.param(300, marks=pytest.mark.slow)])
def test_any_sequence(name: str, n: int, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "CHUNK", WIDEST_PASS)  # borders within reach
    run_machine(
        lambda: CacheMachine(paths[name], name),
        settings=settings(max_examples=n, stateful_step_count=10, deadline=None),
    )


# Passes: chunks, rows, arguments


@pytest.fixture(scope="module")
def one_by_one(paths: dict[str, Path]) -> Logits:
    """The logits after each of some_tokens(1100), each from a pass of one token."""
    with LlamaModel(paths["llama"], EXACT) as model:
        return np.concatenate([model.eval([token]).copy() for token in some_tokens(1100)])


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(tokens, rows asked for) of each of llama.cpp's passes."""
    seen: list[tuple[int, int]] = []
    decode = api.llama_decode

    def spy(context: Any, batch: Any) -> int:
        seen.append((batch.n_tokens, sum(batch.logits[: batch.n_tokens])))
        return int(decode(context, batch))

    monkeypatch.setattr(api, "llama_decode", spy)
    return seen


@pytest.mark.parametrize(
    ("n", "rows", "expected"),
    [
        (0, 0, []),
        (1, 1, [(1, 1)]),
        (64, 64, [(64, 64)]),
        (512, 0, [(512, 0)]),
        (512, 64, [(512, 64)]),
        (513, 1, [(512, 0), (1, 1)]),
        (520, 64, [(456, 0), (64, 64)]),
        (575, 64, [(511, 0), (64, 64)]),
        (576, 64, [(512, 0), (64, 64)]),
        (1030, 10, [(512, 0), (508, 0), (10, 10)]),
        (1100, 0, [(512, 0), (512, 0), (76, 0)]),
        (1100, 64, [(512, 0), (512, 0), (76, 64)]),
    ],
)
def test_chunks_and_rows(
    n: int,
    rows: int,
    expected: list[tuple[int, int]],
    tiny_model: LlamaModel,
    passes: list[tuple[int, int]],
    one_by_one: Logits,
) -> None:
    got = tiny_model.eval(some_tokens(1100)[:n], rows)
    assert passes == expected
    assert_same(got, one_by_one[n - rows : n])


def test_pending_tokens_are_read_with_the_next(
    tiny_model: LlamaModel, passes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, one_by_one: Logits
) -> None:
    tokens = some_tokens(1100)
    tiny_model.eval(tokens[:530], rows=0)
    with monkeypatch.context() as refusing:
        refusing.setattr(api, "llama_memory_seq_rm", lambda *_: False)
        tiny_model.rewind(520)
    passes.clear()
    assert_same(tiny_model.eval(tokens[520:522], rows=2), one_by_one[520:522])
    assert passes == [(512, 0), (10, 2)]


@pytest.mark.parametrize(("n", "rows"), [(1, 2), (1, -1), (0, 1), (100, 65), (2049, 1), (2**20, 0)], ids=str)
def test_wrong_arguments_never_reach_llama(
    n: int, rows: int, tiny_model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "llama_decode", lambda *_: pytest.fail("llama.cpp was called"))
    with pytest.raises(ValueError, match=f"eval of {n} tokens, {rows} rows at 0 of 2048"):
        tiny_model.eval([5] * n, rows)
    assert list(tiny_model.tokens) == []


def test_a_full_context(tiny_model: LlamaModel, passes: list[Any]) -> None:
    tiny_model.eval(some_tokens(2048))
    with pytest.raises(ValueError, match="1 rows at 2048 of 2048"):
        tiny_model.eval([5])
    assert len(passes) == 4
    for length in (-1, 2049):
        with pytest.raises(ValueError, match=f"rewind to {length} of 2048"):
            tiny_model.rewind(length)
    tiny_model.rewind(2047)
    assert tiny_model.eval([5]).shape == (1, tiny_model.n_vocab)


@pytest.mark.parametrize("bad", [-1, 320, 2**31 - 1, 2**40])
def test_no_such_token(bad: int, tiny_model: LlamaModel, tiny_path: Path) -> None:
    tiny_model.eval([5, 6])
    with pytest.raises((LocalspecError, OverflowError)):
        tiny_model.eval([7, bad])
    assert list(tiny_model.tokens) == [5, 6]
    assert_same(tiny_model.eval([8]), fresh(tiny_path, [5, 6, 8]))


def test_a_failed_pass_says_why_and_only_its_own_reason(
    tiny_model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LocalspecError, match=r"the model's pass failed: invalid token\[1\] = 320"):
        tiny_model.eval([7, 320])
    monkeypatch.setattr(api, "llama_decode", lambda *_: 1)
    with pytest.raises(LocalspecError, match="the model's pass failed: llama_decode returned 1"):
        tiny_model.eval([7])
    assert list(tiny_model.tokens) == []


@pytest.mark.parametrize("n_ctx", [1, 16, 255, 256, 300])
def test_small_contexts_hold_what_they_say(n_ctx: int, tiny_path: Path) -> None:
    options = replace(EXACT, n_ctx=n_ctx)
    with LlamaModel(tiny_path, options) as model:
        assert n_ctx <= model.n_ctx < n_ctx + 256
        assert api.llama_n_batch(model._context) == model.n_ctx  # a longer pass would end the process
        tokens = some_tokens(model.n_ctx)
        assert_same(model.eval(tokens, 64), fresh(tiny_path, tokens, 64))


def test_default_context_is_the_model_s_own_at_most_8192(tmp_path: Path) -> None:
    for trained, expected in (512, 512), (4096, 4096), (2**17, 8192):
        path = tiny.write_llama(tmp_path / "m.gguf", n_ctx_train=trained)
        with LlamaModel(path, LoadOptions()) as model:
            assert (model.n_ctx, model.n_ctx_train) == (expected, trained)


# Rewinding what cannot be cut


def test_a_deep_rewind_past_the_window_is_read_again(paths: dict[str, Path]) -> None:
    notices: list[str] = []
    tokens = some_tokens(1300)
    with LlamaModel(paths["swa"], EXACT, on_notice=notices.append) as model:
        model.eval(tokens, rows=0)
        model.rewind(1290)
        assert notices == []
        assert n_cached(model) == 1290
        model.rewind(500)
        assert notices == ["this model's cache cannot be cut: reading 500 tokens again"]
        assert n_cached(model) == 0
        assert list(model.tokens) == tokens[:500]
        assert_same(model.eval([9]), fresh(paths["swa"], [*tokens[:500], 9]), 1e-2)
        assert n_cached(model) == 501


@pytest.mark.parametrize("window", [16, 32])
def test_the_window_is_exactly_what_must_be_left(window: int, tmp_path: Path) -> None:
    """With one cell less of it nothing is kept; what is kept with the whole of it is right."""
    path = tiny.write_swa(tmp_path / "m.gguf", window=window)
    tokens = some_tokens(1300)
    with LlamaModel(path, EXACT) as model:
        for missing in 0, 1:
            model.eval(tokens, rows=0)
            oldest = api.llama_memory_seq_pos_min(model._memory, 0)
            length = oldest + window - 1 - missing
            model.rewind(length)
            assert oldest > 0
            assert n_cached(model) == (0 if missing else length)
            assert_same(model.eval([9]), fresh(path, [*tokens[:length], 9]), 1e-2)
            model.rewind(0)


@pytest.mark.parametrize("name", ["recurrent", "hybrid"])
def test_recurrent_state_is_never_cut(name: str, paths: dict[str, Path]) -> None:
    notices: list[str] = []
    tokens = some_tokens(40)
    with LlamaModel(paths[name], EXACT, on_notice=notices.append) as model:
        assert not model.can_rewind
        model.eval(tokens, rows=0)
        model.rewind(39)
        assert notices == ["this model's cache cannot be cut: reading 39 tokens again"]
        assert_same(model.eval([9]), fresh(paths[name], [*tokens[:39], 9]))
        model.rewind(0)
        assert len(notices) == 1
        assert_same(model.eval([9]), fresh(paths[name], [9]))


@pytest.mark.parametrize(
    ("name", "removed"), [("llama", False), ("recurrent", True), ("hybrid", True)], ids=str
)
def test_a_cut_that_failed_or_cannot_be_right_is_not_trusted(
    name: str, removed: bool, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp may refuse, and it may claim to have cut a state that cannot be cut."""
    tokens = some_tokens(40)
    with LlamaModel(paths[name], EXACT) as model:
        model.eval(tokens, rows=0)
        with monkeypatch.context() as lying:
            lying.setattr(api, "llama_memory_seq_rm", lambda *_: removed)
            lying.setattr(api, "llama_memory_seq_pos_max", lambda *_: 29)
            model.rewind(30)
        assert n_cached(model) == 0
        assert_same(model.eval([9]), fresh(paths[name], [*tokens[:30], 9]))


def test_attention_and_windows_can_be_rewound(paths: dict[str, Path]) -> None:
    for name in "llama", "swa":
        with LlamaModel(paths[name], EXACT) as model:
            assert model.can_rewind


# Saved states


@pytest.mark.parametrize("name", KINDS)
def test_a_saved_state_goes_on_in_another_context(name: str, paths: dict[str, Path]) -> None:
    tokens = some_tokens(700)
    with LlamaModel(paths[name], EXACT) as one, LlamaModel(paths[name], EXACT) as other:
        one.eval(tokens, rows=0)
        assert other.restore(one.save())
        assert list(other.tokens) == tokens
        assert_same(other.eval([9]), one.eval([9]))


def test_a_state_that_does_not_fit_leaves_an_empty_cache(paths: dict[str, Path]) -> None:
    options = replace(EXACT, n_ctx=256)
    with LlamaModel(paths["llama"], EXACT) as long:
        long.eval(some_tokens(900), rows=0)
        too_long = long.save()
    with LlamaModel(paths["llama"], options) as model:
        model.eval(some_tokens(80), rows=0)
        good = model.save()
        foreign = []
        for name in "swa", "recurrent", "hybrid":
            with LlamaModel(paths[name], options) as stranger:
                stranger.eval(some_tokens(80), rows=0)
                foreign.append(stranger.save())
        damaged = [good.data[:100], b"", bytes(len(good.data)), b"\xff" * len(good.data)]
        lying = SavedState(good.tokens[:-1], good.data)
        for state in [too_long, lying, *foreign, *(SavedState(good.tokens, data) for data in damaged)]:
            assert not model.restore(state)
            assert list(model.tokens) == []
            assert n_cached(model) == 0
            assert_same(model.eval([9]), fresh(paths["llama"], [9]))
            assert model.restore(good)
            assert list(model.tokens) == list(good.tokens)


# Cancelling


def test_cancel_stops_a_running_pass_of_a_real_model(real_model: Path) -> None:
    cancel, raised = CancelFlag(), [0.0]
    options = LoadOptions(n_ctx=1024)
    with LlamaModel(real_model, options, cancel=cancel) as model:
        tokens = model.vocab.tokenize("The quick brown fox jumps over the lazy dog. " * 60, special=False)[
            :530
        ]
        model.eval(tokens[:30])

        def stop() -> None:
            raised[0] = time.perf_counter()
            cancel.set()

        timer = threading.Timer(0.05, stop)
        timer.start()
        with pytest.raises(Cancelled):
            model.eval(tokens[30:])
        seconds = time.perf_counter() - raised[0]
        timer.join()
        assert raised[0] > 0
        assert seconds < 1  # 4 to 58 ms on a quiet machine: one matrix product; the whole pass takes 1.5 s
        assert list(model.tokens) == tokens[:30]
        assert n_cached(model) == 30
        cancel.clear()
        again = model.eval(tokens[30:50], rows=20).copy()
    with LlamaModel(real_model, options) as other:
        other.eval(tokens[:30])
        assert_same(again, other.eval(tokens[30:50], rows=20))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("nodes", [0, 5, 20, 40])  # of 45 to 56
def test_cancel_at_any_node(name: str, nodes: int, paths: dict[str, Path]) -> None:
    _, kind, tolerance = KINDS[name]
    cancel, tokens = CancelAfter(), some_tokens(1000)
    with LlamaModel(paths[name], EXACT, cancel=cancel) as model:
        model.eval(tokens[:700], rows=0)
        cancel.nodes = nodes
        with pytest.raises(Cancelled):
            model.eval(tokens[700:], rows=0)
        cancel.nodes = None
        assert list(model.tokens) == tokens[:700]
        assert n_cached(model) == (0 if kind == RECURRENT else 700)
        assert_same(model.eval([9]), fresh(paths[name], [*tokens[:700], 9]), tolerance)


def test_cancel_before_a_pass(tiny_model: LlamaModel, passes: list[Any], tiny_path: Path) -> None:
    tiny_model.eval([5, 6])
    passes.clear()
    tiny_model.cancel.set()
    with pytest.raises(Cancelled):
        tiny_model.eval([7])
    assert passes == []
    assert list(tiny_model.tokens) == [5, 6]
    tiny_model.cancel.clear()
    assert_same(tiny_model.eval([8]), fresh(tiny_path, [5, 6, 8]))


def test_progress_of_a_long_prefill(tiny_model: LlamaModel) -> None:
    seen: list[tuple[int, int]] = []
    tiny_model.on_progress = lambda done, total: seen.append((done, total))
    tiny_model.eval(some_tokens(512))
    assert seen == []
    tiny_model.eval(some_tokens(1100))
    assert seen == [(512, 1100), (1024, 1100), (1100, 1100)]


def test_cancel_between_chunks(tiny_model: LlamaModel, passes: list[Any], tiny_path: Path) -> None:
    tiny_model.eval([5, 6])
    passes.clear()
    tiny_model.on_progress = lambda _done, _total: tiny_model.cancel.set()
    with pytest.raises(Cancelled):
        tiny_model.eval(some_tokens(1100))
    assert passes == [(CHUNK, 0)]
    assert list(tiny_model.tokens) == [5, 6]
    tiny_model.cancel.clear()
    assert_same(tiny_model.eval([8]), fresh(tiny_path, [5, 6, 8]))


def test_an_exception_in_a_callback_undoes_the_pass(tiny_model: LlamaModel, tiny_path: Path) -> None:
    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    tiny_model.eval([5, 6])
    tiny_model.on_progress = interrupt
    with pytest.raises(KeyboardInterrupt):
        tiny_model.eval(some_tokens(1100))
    assert list(tiny_model.tokens) == [5, 6]
    assert_same(tiny_model.eval([8]), fresh(tiny_path, [5, 6, 8]))


def test_cancel_while_loading(tiny_path: Path) -> None:
    cancel, shares = CancelFlag(), []

    def stop(share: float) -> None:
        shares.append(share)
        cancel.set()

    with pytest.raises(Cancelled):
        LlamaModel(tiny_path, EXACT, cancel=cancel, on_load=stop)
    cancel.clear()
    shares.clear()
    with LlamaModel(tiny_path, EXACT, cancel=cancel, on_load=shares.append):
        assert shares == sorted(shares)
        assert shares[-1] == 1


# Vocabulary


@pytest.fixture(scope="module")
def vocab_model(paths: dict[str, Path]) -> Iterator[LlamaModel]:
    with LlamaModel(paths["llama"], EXACT) as model:
        yield model


@pytest.fixture(scope="module")
def real(real_model: Path) -> Iterator[LlamaModel]:
    with LlamaModel(real_model, LoadOptions(n_ctx=256)) as model:
        yield model


def spelt(vocab: Vocab, tokens: Sequence[int]) -> str:
    return b"".join(vocab.piece(token) for token in tokens).decode()


@pytest.mark.parametrize(
    ("text", "n_special", "visible"),
    [
        ("<|im_start|>", 1, ""),
        ("<|im_end|>\n", 1, "\n"),
        ("a<|endoftext|>b", 1, "ab"),
        ("<|im_start|>user\nhé<|im_end|>", 2, "user\nhé"),
        ("<|im_start", 0, "<|im_start"),
    ],
)
@pytest.mark.parametrize("which", ["vocab_model", "real"])
def test_special_tokens_are_parsed_only_when_asked(
    which: str, text: str, n_special: int, visible: str, request: pytest.FixtureRequest
) -> None:
    vocab = request.getfixturevalue(which).vocab
    parsed, kept = vocab.tokenize(text, special=True), vocab.tokenize(text, special=False)
    assert sum(map(vocab.is_special, parsed)) == n_special
    assert spelt(vocab, parsed) == visible
    assert not any(map(vocab.is_special, kept))
    assert spelt(vocab, kept) == text


# The real vocabulary lacks control characters and what comes after plane 3.
characters = st.characters(exclude_categories=["Cs", "Cc"], max_codepoint=0x3FFFF)


@given(
    text=st.text(characters, max_size=60)
    | st.lists(st.sampled_from([*tiny.SPECIAL, "é", "🙂", " ", "\n", "def"]), max_size=9).map("".join)
)
@settings(max_examples=200, deadline=None)
@pytest.mark.parametrize("which", ["vocab_model", "real"])
def test_a_user_s_text_comes_back_whole_and_commands_nothing(
    which: str, text: str, request: pytest.FixtureRequest
) -> None:
    vocab = request.getfixturevalue(which).vocab
    tokens = vocab.tokenize(text, special=False)
    assert not any(map(vocab.is_special, tokens))
    assert spelt(vocab, tokens) == text


def test_tokenize_adds_nothing(vocab_model: LlamaModel, real: LlamaModel) -> None:
    for vocab in vocab_model.vocab, real.vocab:
        assert vocab.tokenize("", special=True) == []
        assert spelt(vocab, vocab.tokenize(" a", special=False)) == " a"


def test_pieces_of_a_character_that_spans_tokens(vocab_model: LlamaModel) -> None:
    vocab = vocab_model.vocab
    tokens = vocab.tokenize("🙂é", special=False)
    assert [vocab.piece(token) for token in tokens] == [b"\xf0", b"\x9f", b"\x99", b"\x82", "é".encode()]
    assert [vocab.text(token) for token in tokens[:2]] == ["ð", "Ł"]  # the vocabulary's own spelling
    assert spelt(vocab, vocab.tokenize("a\0\x04\U00040000", special=False)) == "a\0\x04\U00040000"


def test_long_pieces_come_whole(real: LlamaModel) -> None:
    """Two have more than the 64 bytes that `piece` first makes room for."""
    lengths = sorted(len(real.vocab.piece(token)) for token in range(real.n_vocab))
    assert lengths[-4:] == [66, 76, 80, 81]
    dashes = real.vocab.tokenize("-" * 80, special=False)
    assert spelt(real.vocab, dashes) == "-" * 80


def test_ends_and_specials(vocab_model: LlamaModel, real: LlamaModel) -> None:
    ids = range(vocab_model.n_vocab)
    assert [i for i in ids if vocab_model.vocab.is_end(i)] == [tiny.ENDOFTEXT, tiny.IM_END]
    assert [i for i in ids if vocab_model.vocab.is_special(i)] == [tiny.ENDOFTEXT, tiny.IM_START, tiny.IM_END]
    ids = range(real.n_vocab)
    assert [real.vocab.text(i) for i in ids if real.vocab.is_end(i)] == [
        "<|endoftext|>",
        "<|im_end|>",
        "<reponame>",
    ]
    assert [i for i in ids if real.vocab.is_special(i)] == list(range(17))


def test_facts_of_the_file(vocab_model: LlamaModel, real: LlamaModel) -> None:
    vocab = vocab_model.vocab
    assert (vocab.n_tokens, vocab.kind, vocab.bos, vocab.eos) == (320, 2, tiny.ENDOFTEXT, tiny.IM_END)
    assert not vocab.adds_bos
    assert not vocab.adds_eos
    assert vocab_model.chat_template == tiny.CHATML
    assert vocab_model.metadata("general.architecture") == "llama"
    assert vocab_model.metadata("no.such.key") is None
    assert (real.n_vocab, real.vocab.bos, real.vocab.eos) == (49152, 1, 2)


# NaN


@dataclass
class NanWhenWide:
    """A model whose passes of more than one row are all NaN, as some kernels do at some widths."""

    model: LlamaModel
    widths: list[int] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def eval(self, tokens: Sequence[int], rows: int = 1) -> Logits:
        logits = self.model.eval(tokens, rows).copy()
        self.widths.append(rows)
        if rows > 1:
            logits[:] = np.nan
        return logits


def generator(model: Model, temperature: float = 0.0, guesses: int = 0) -> Generator:
    sources = (Source(Repeats(), guesses),) if guesses else ()
    return Generator(model, Sampler(Sampling(temperature=temperature)), lambda _: False, Fixed(sources))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("where", ["logit", "all"])
@pytest.mark.parametrize("guesses", [0, 3])
def test_a_nan_is_tried_once_more_plainly_then_reported(
    where: Any, temperature: float, guesses: int, tmp_path: Path, passes: list[tuple[int, int]]
) -> None:
    with LlamaModel(tiny.write_nan(tmp_path / "m.gguf", where=where), EXACT) as model:
        with pytest.raises(BadLogits, match="nan"):
            next(generator(model, temperature, guesses).generate([5, 6, 7], 10))
        assert passes == [(2, 0), (guesses + 1, guesses + 1), (1, 1)]
        assert list(model.tokens) == [5, 6]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_nan_of_wide_passes_alone_changes_nothing(temperature: float, tiny_model: LlamaModel) -> None:
    plain = list(generator(tiny_model, temperature).generate([5, 6, 7], 20))
    tiny_model.rewind(0)
    wide = NanWhenWide(tiny_model)
    steps = list(generator(wide, temperature, guesses=3).generate([5, 6, 7], 20))
    assert [step.tokens for step in steps] == [step.tokens for step in plain]
    assert {(step.source, step.drafted, step.accepted) for step in steps} == {("none", 0, 0)}
    assert wide.widths == [0, *[4, 1] * 17, 3, 1, 2, 1, 1]  # the last passes have less room


# Files that are no model, and what would end the process

ATTEMPTS = """
import json, os, sys
from pathlib import Path
from localspec.llama.model import LlamaModel, LoadOptions

for line in sys.stdin:
    path, options, tokens, rows = json.loads(line)
    child = os.fork()
    if child == 0:
        try:
            with LlamaModel(Path(path), LoadOptions(**options)) as model:
                model.eval(tokens, rows)
            said = ["ran", "", ""]
        except Exception as error:
            said = [type(error).__name__, str(error), getattr(error, "hint", "")]
        print(json.dumps(said), flush=True)
        os._exit(0)
    if status := os.waitpid(child, 0)[1]:
        print(json.dumps(["ended", f"by signal {os.WTERMSIG(status)}", ""]), flush=True)
"""
FAR = 2**31 - 256


@dataclass(frozen=True)
class Attempt:
    """Load `path`, read `n` tokens; the kind of error expected and what it says (or its hint)."""

    path: str
    error: str
    says: str
    options: dict[str, Any] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    rows: int = 0


KILLERS = {
    "short context": Attempt("llama", "ran", "", {"n_ctx": 16}, [5] * 200),
    "shortest context": Attempt("llama", "ran", "", {"n_ctx": 1}, [5] * 200, 1),
    "more than the context": Attempt("llama", "ValueError", "eval of 300", {"n_ctx": 256}, [5] * 300),
    "more rows than outputs": Attempt("llama", "ValueError", "65 rows", {}, [5] * 300, 65),
    "token too high": Attempt("llama", "LocalspecError", "invalid token", {}, [320], 1),
    "token below 0": Attempt("llama", "LocalspecError", "pass failed", {}, [-1], 1),
    "absurd context": Attempt("llama", "UsageError", "needs 512.0 GiB", {"n_ctx": FAR}),
    "absurd window": Attempt("swa", "UsageError", "needs 64.0 GiB", {"n_ctx": FAR}),
    "long recurrent": Attempt("recurrent", "ran", "", {"n_ctx": 2**24}, [5] * 300),
    "odd head": Attempt(
        "llama", "LocalspecError", "q8_0 .* does not divide .*try --kv-type f16", {"kv_type": "q8_0"}
    ),
    "quantised, no flash attention": Attempt(
        "llama", "UsageError", "needs flash attention", {"kv_type": "q4_0", "flash_attn": "off"}
    ),
    "unknown KV type": Attempt(
        "llama", "UsageError", "unknown KV type 'q7'.*one of f32, f16", {"kv_type": "q7"}
    ),
    "unknown attention": Attempt("llama", "UsageError", "unknown --flash-attn 'yes'", {"flash_attn": "yes"}),
    "embedding": Attempt(
        "bert", "BadModelFile", r"bert is an embedding model \(architecture bert\)", {}, [5]
    ),
    "head": Attempt("eagle3", "BadModelFile", "the head of another model", {}, [5], 1),
    "bare head": Attempt("bare eagle3", "BadModelFile", "the head of another model", {}, [5], 1),
    "second shard": Attempt("tiny-00002-of-00003.gguf", "BadModelFile", "loaded with the first split"),
    "shard without the others": Attempt(
        "lonely-00001-of-00003.gguf", "BadModelFile", "00002-of-00003.* .No such file"
    ),
    "first shard": Attempt("tiny-00001-of-00003.gguf", "ran", "", {}, [5]),
    "missing": Attempt("nosuch", "BadModelFile", "No such file"),
    "folder": Attempt("", "BadModelFile", "cannot load"),
    "empty": Attempt("empty", "BadModelFile", "cannot load empty: failed to read magic"),
    "cut in the header": Attempt("header", "BadModelFile", "failed to read key-value pairs"),
    "cut in the data": Attempt(
        "data", "BadModelFile", "^cannot load data: tensor .* not within the file bounds"
    ),
    "no GGUF": Attempt("not_gguf", "BadModelFile", "invalid magic characters"),
    "version": Attempt("version", "BadModelFile", "version 99 .*upgrade llama-cpp-python"),
    "counts": Attempt("counts", "BadModelFile", "number of key value pairs is 1152921504606846976"),
    "long string": Attempt("string", "BadModelFile", "string length 4611686018427387904 exceeds"),
}


def test_every_damage_is_tried() -> None:
    assert set(tiny.DAMAGES) <= {attempt.path for attempt in KILLERS.values()}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, paths: dict[str, Path]) -> dict[str, list[str]]:
    """What came of each of KILLERS in a child of its own."""
    folder = tmp_path_factory.mktemp("failed error")  # a path must not be taken for the reason
    tiny.write_embedding_only(folder / "bert")
    tiny.write_head_only(folder / "eagle3")
    tiny.write_head_only(folder / "bare eagle3", change=lambda tensors: tensors.pop("token_embd.weight"))
    shards, _ = tiny.write_split(folder)
    (folder / "lonely-00001-of-00003.gguf").write_bytes(shards[0].read_bytes())
    for kind in tiny.DAMAGES:
        tiny.write_damaged(folder / kind, kind)
    lines = [
        json.dumps([str(paths.get(a.path, folder / a.path)), a.options, a.tokens, a.rows])
        for a in KILLERS.values()
    ]
    child = subprocess.run(
        [sys.executable, "-c", ATTEMPTS],
        input="\n".join(lines),
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
        env=CHILD_ENV,
    )
    return dict(zip(KILLERS, map(json.loads, child.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", KILLERS)
def test_nothing_ends_the_process(name: str, outcomes: dict[str, list[str]]) -> None:
    kind, message, hint = outcomes[name]
    assert (kind, message) == (KILLERS[name].error, message)
    assert re.search(KILLERS[name].says, f"{message}: {hint}")


def test_exit_codes_of_load_errors(tmp_path: Path) -> None:
    with pytest.raises(BadModelFile) as damaged:
        LlamaModel(tiny.write_damaged(tmp_path / "m", "data"), EXACT)
    assert damaged.value.exit_status == ExitStatus.ERROR
    with pytest.raises(UsageError) as unusable:
        LlamaModel(tmp_path / "m", replace(EXACT, kv_type="q8_0"))
    assert unusable.value.exit_status == ExitStatus.USAGE


def test_the_log_keeps_errors_and_joins_their_parts(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Log()
    try:
        for level, text in (
            (2, "load: failed error\n"),
            (4, "init: inv"),
            (5, "alid\n"),
            (4, "init: second\n"),
        ):
            log._receive(level, text.encode(), None)
        assert log.reason("none") == "invalid"
        log.clear()
        assert log.reason("none given") == "none given"
        assert capsys.readouterr().err == ""
        log.echo = True
        LlamaModel(tiny_path, EXACT).close()
        assert "llama_model_loader: loaded meta data" in capsys.readouterr().err
    finally:
        api.llama_log_set(LOG._callback, None)


# Memory


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_bytes_a_token_takes_in_the_cache(kv_type: str, tmp_path: Path) -> None:
    path = tiny.write_llama(tmp_path / "m.gguf", n_embd=128)  # heads of 32: every type fits
    with LlamaModel(path, LoadOptions(n_ctx=256, kv_type=kv_type)) as model:
        assert model._bytes_kv() == bytes_grown(model)


@pytest.mark.parametrize("name", ["swa", "recurrent", "hybrid"])
def test_bytes_are_never_overestimated(name: str, paths: dict[str, Path]) -> None:
    with LlamaModel(paths[name], EXACT) as model:
        assert model._bytes_kv() <= bytes_grown(model)


def bytes_grown(model: LlamaModel) -> float:
    """What a token adds to a saved state, without the 12 bytes of position and sequence."""
    sizes = []
    for _ in range(2):
        model.eval(some_tokens(100), rows=0)
        sizes.append(len(model.save().data))
    return max(0.0, (sizes[1] - sizes[0]) / 100 - 12)


def test_a_context_that_does_not_fit_is_refused_with_one_that_does(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_module, "free_memory", lambda: 512 * 1030)
    with pytest.raises(UsageError) as refused:
        LlamaModel(tiny_path, replace(EXACT, n_ctx=2**22))
    assert refused.value.message == (
        "tiny.gguf needs 2.0 GiB for a context of 4194304 tokens, 0.0 GiB are free"
    )
    assert refused.value.hint == "try --ctx 768"
    LlamaModel(tiny_path, replace(EXACT, n_ctx=768)).close()
    monkeypatch.setattr(model_module, "free_memory", lambda: 512 * 100)
    with pytest.raises(UsageError) as refused:
        LlamaModel(tiny_path, replace(EXACT, n_ctx=768))
    assert refused.value.hint == "take a smaller model"


def test_a_gpu_has_its_own_memory(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "free_memory", lambda: 0)
    monkeypatch.setattr(api, "llama_supports_gpu_offload", lambda: True)
    LlamaModel(tiny_path, EXACT).close()
    with pytest.raises(UsageError):
        LlamaModel(tiny_path, replace(EXACT, gpu_layers=0))


# Closing


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of llama.cpp's freeing functions as they are called."""
    seen: list[str] = []

    def spy(name: str) -> Callable[[Any], None]:
        real_free = getattr(api, name)

        def free(thing: Any) -> None:
            seen.append(name)
            real_free(thing)

        return free

    for name in "llama_batch_free", "llama_free", "llama_model_free":
        monkeypatch.setattr(api, name, spy(name))
    return seen


ALL_FREED = ["llama_batch_free", "llama_free", "llama_model_free"]


def test_close_frees_the_context_before_the_weights_and_once(tiny_path: Path, freed: list[str]) -> None:
    model = LlamaModel(tiny_path, EXACT)
    model.eval([5])
    assert freed == []
    model.close()
    model.close()
    with model:
        pass
    assert freed == ALL_FREED


def test_garbage_collection_frees(tiny_path: Path, freed: list[str]) -> None:
    model = LlamaModel(tiny_path, EXACT)
    model.on_notice = model.__setattr__  # a cycle, as a caller's callback makes
    model.eval([5])
    del model
    gc.collect()
    assert freed == ALL_FREED


def test_a_model_that_gets_no_context_is_freed(tiny_path: Path, tmp_path: Path, freed: list[str]) -> None:
    with pytest.raises(LocalspecError):
        LlamaModel(tiny_path, LoadOptions(kv_type="q8_0"))
    with pytest.raises(BadModelFile):
        LlamaModel(tiny.write_embedding_only(tmp_path / "bert"), EXACT)
    assert freed == ["llama_model_free"] * 2


def test_leaving_python_with_an_open_model(tiny_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from localspec.llama.model import LlamaModel, LoadOptions\n"
        "model = LlamaModel(Path(sys.argv[1]), LoadOptions()); model.eval([5]); print('done')"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, tiny_path], capture_output=True, text=True, env=CHILD_ENV, check=True
    )
    assert (child.stdout, child.stderr) == ("done\n", "")


def test_a_closed_model_refuses_and_a_turn_left_open_ends(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = LlamaModel(tiny_path, EXACT)
    turn = generator(model, guesses=3).generate([5, 6, 7], 20)
    next(turn)
    model.close()
    for name in "llama_memory_clear", "llama_memory_seq_rm", "llama_decode", "llama_synchronize":
        monkeypatch.setattr(api, name, lambda *_: pytest.fail("a freed context was used"))
    turn.close()  # rewinds
    model.rewind(1)
    model.rewind(0)
    for tokens in [5], []:
        with pytest.raises(ValueError, match="eval of"):
            model.eval(tokens, rows=0)


@pytest.mark.parametrize("close", [True, False])
def test_fifty_models_leave_nothing_behind(close: bool, tiny_path: Path) -> None:
    def cycle() -> None:
        model = LlamaModel(tiny_path, EXACT)
        model.eval(some_tokens(64), rows=64)
        if close:
            model.close()

    process = psutil.Process()
    for _ in range(10):
        cycle()
    before = process.memory_info().rss
    for _ in range(50):
        cycle()
    gc.collect()
    assert process.memory_info().rss - before < 3 * 2**20
