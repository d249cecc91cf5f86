"""Exactness: what a probe sees, which cache type is chosen, and how near a tie a difference was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from tables import TableModel, plain_text

from localspec.engine.exactness import (
    RowChange,
    candidates,
    divergence,
    first_difference,
    gap,
    probe,
    proven,
    tolerance,
)
from localspec.engine.sampling import Sampler
from localspec.engine.types import Logits, Sampling
from localspec.llama.model import LlamaModel, LoadOptions


@dataclass
class Wobbly(TableModel):
    """A table whose passes of the `bad` widths add `error` to the logit of token 0, behind `depth` tokens."""

    bad: tuple[int, ...] = ()
    error: float = 0.25
    depth: int = 0

    def eval(self, tokens: Sequence[int], rows: int = 1) -> Logits:
        deep = len(self.tokens) >= self.depth
        logits = TableModel.eval(self, tokens, rows)
        if rows and deep and len(tokens) in self.bad:
            logits[:, 0] += self.error
        return logits


def test_probe_tells_good_widths_from_bad_ones() -> None:
    model = Wobbly(n_vocab=20, n_ctx=900, order=2, bad=(3, 8))
    changes = probe(model, [8, 2, 3, 4, 2])
    assert list(changes) == [2, 3, 4, 8]
    assert proven(changes) == (1, 2, 4)
    assert changes[4] == RowChange(rows=32, changed=0, largest=0.0, gap=0.0, flips=0, n_cached=600)
    assert (changes[8].rows, changes[8].changed) == (32, 32)
    assert changes[8].largest == pytest.approx(0.25, abs=1e-6)
    assert changes[8].gap in (0.0, pytest.approx(0.25, abs=1e-6)), "only if token 0 is among the two best"


def test_probe_counts_flips_and_gaps() -> None:
    """Token 0 wins every row of a bad pass, so all flip that it did not win already."""
    model = Wobbly(n_vocab=20, n_ctx=900, order=2, bad=(16,), error=100.0)
    change = probe(model, [16])[16]
    fresh = TableModel(n_vocab=20, n_ctx=900, order=2)
    text = probe_text(model)
    rows = [fresh.row(text[: 600 + i + 1]) for i in range(32)]
    assert len(text) == 632
    assert change.flips == sum(int(row.argmax()) != 0 for row in rows) > 0
    near = any(0 in np.argsort(row)[-2:] for row in rows)
    assert change.gap == pytest.approx(100.0 if near else 0.0, abs=1e-4)


def probe_text(model: TableModel, widest: int = 16) -> list[int]:
    """The tokens a probe of an empty cache evaluates."""
    seen: list[int] = []
    spy = TableModel(n_vocab=model.n_vocab, n_ctx=model.n_ctx, order=2)
    real = spy.eval

    def watch(tokens: Sequence[int], rows: int = 1) -> Logits:
        if len(spy.tokens) + len(tokens) > len(seen):
            seen[len(spy.tokens) :] = tokens
        return real(tokens, rows)

    spy.eval = watch  # type: ignore[method-assign]
    probe(spy, [widest])
    return seen


def test_probe_sees_what_only_a_long_cache_shows() -> None:
    model = Wobbly(n_vocab=20, n_ctx=900, order=2, bad=(2,), depth=512)
    assert proven(probe(model, [2], n_cached=100)) == (1, 2)
    assert proven(probe(model, [2])) == (1,)


@pytest.mark.parametrize("held", [0, 5, 700])
def test_probe_leaves_the_cache_as_it_was(held: int) -> None:
    model = Wobbly(n_vocab=20, n_ctx=900, order=2)
    prompt = [i % 20 for i in range(held)]
    model.eval(prompt, rows=0)
    changes = probe(model, [2, 8], filler=[1, 2, 3])
    assert model.tokens == prompt
    assert {change.n_cached for change in changes.values()} == {max(held, 600)}


def test_probe_of_a_short_context_says_so() -> None:
    model = Wobbly(n_vocab=20, n_ctx=64, order=2)
    model.eval([1] * 50, rows=0)
    assert {n: c.n_cached for n, c in probe(model, [2, 8, 16]).items()} == {2: 56, 8: 56}
    model.eval([1] * 14, rows=0)
    assert probe(model, [2]) == {}
    assert proven({}) == (1,)


def test_probe_stops_in_time() -> None:
    """One second a look at the clock: what there is no time for is missing, narrow widths come first."""
    model = Wobbly(n_vocab=20, n_ctx=900, order=2)
    for seconds in range(0, 100, 4):
        now = iter(range(1000))
        changes = probe(model, [2, 4, 8, 16], clock=lambda now=now: float(next(now)), seconds=seconds)
        assert list(changes) == [2, 4, 8, 16][: len(changes)]
        assert next(now) <= seconds + 4
        assert model.tokens == []
    assert len(changes) == 4


def test_a_failed_probe_leaves_the_cache_as_it_was() -> None:
    class Stopped(TableModel):
        def eval(self, tokens: Sequence[int], rows: int = 1) -> Logits:
            if len(self.tokens) > 603:
                raise KeyboardInterrupt
            return TableModel.eval(self, tokens, rows)

    model = Stopped(n_vocab=20, n_ctx=900, order=2)
    model.eval([1, 2, 3], rows=0)
    with pytest.raises(KeyboardInterrupt):
        probe(model, [8])
    assert model.tokens == [1, 2, 3]


def test_tolerance() -> None:
    exact = RowChange(8, 0, 0.0, 0.0, 0, 600)
    assert tolerance([exact, exact]) == 0.0
    assert tolerance([exact, replace(exact, changed=3, largest=9.0, gap=0.2)]) == pytest.approx(0.3)


def test_candidates_in_order() -> None:
    assert candidates("q4_0", "on", 4) == [
        ("q4_0", "on"),
        ("f16", "auto"),
        ("bf16", "on"),
        ("q8_0", "on"),
        ("f32", "off"),
    ]
    assert candidates(None, "auto", 1) == [("f16", "auto"), ("q8_0", "on"), ("f32", "off")]
    assert candidates(None, "off", 2)[0] == ("f16", "off")


def test_first_difference() -> None:
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) is None


def test_greedy_gap_is_the_distance_to_the_best() -> None:
    row = np.array([1.0, 3.0, 2.5, -np.inf], np.float32)
    sampler = Sampler(Sampling(temperature=0.0))
    assert gap(sampler, row, 7, plain=1, other=2) == 0.5
    assert gap(sampler, row, 7, plain=1, other=0) == 2.0
    assert gap(sampler, row, 7, plain=1, other=3) > 1e6
    assert gap(sampler, row, 7, plain=2, other=1) == 0.5, "a plain choice that was none is no tie either"


CHAINS = [
    Sampling(temperature=0.0),
    Sampling(temperature=0.0, repeat_penalty=1.3, presence_penalty=0.2),
    Sampling(),
    Sampling(temperature=0.3, top_k=5, top_p=1.0, min_p=0.0),
    Sampling(temperature=1.5, top_k=0, top_p=0.7, min_p=0.0),
    Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.1),
    Sampling(temperature=2.0, top_k=6, top_p=0.8, min_p=0.05, repeat_penalty=1.2),
]


@pytest.mark.parametrize("sampling", CHAINS)
def test_gap_bounds_what_an_error_can_flip(sampling: Sampling) -> None:
    """Logits off by at most d each never flip a choice whose gap is above 2 d, whatever edge was crossed."""
    random = np.random.default_rng(1)
    flips = tight = 0
    for seed in range(1500):
        sampler = Sampler(replace(sampling, seed=seed))
        row = random.normal(0, 1.5, 24).astype(np.float32)
        history = random.integers(0, 24, 10).tolist()
        error = 0.5 * random.random()
        other_row = row + random.uniform(-error, error, 24).astype(np.float32)
        plain, other = sampler.pick(row, history, 10), sampler.pick(other_row, history, 10)
        if plain != other:
            found = gap(sampler, row, 10, plain, other, history)
            assert found <= 2 * error + 1e-5, (seed, plain, other)
            flips += 1
            tight += found > 0.5 * error
    assert flips > 50
    assert tight > flips / 20, "a gap of 0 for everything would excuse everything"


def test_unlikely_tokens_are_no_tie() -> None:
    """What cannot be chosen by small errors has a large gap: far behind, or far outside an edge."""
    row = np.array([5.0, 4.9, 1.0, -3.0], np.float32)
    for sampling in (Sampling(), Sampling(top_k=2, top_p=1.0, min_p=0.0), Sampling(top_k=0, min_p=0.0)):
        for position in range(200):
            sampler = Sampler(sampling)
            plain = sampler.pick(row, (), position)
            assert gap(sampler, row, position, plain, 3) > 3.0


def test_divergence_replays_plain_decoding() -> None:
    model = Wobbly(n_vocab=30, n_ctx=100, order=2)
    sampler = Sampler(Sampling(temperature=0.8, repeat_penalty=1.2, seed=3))
    plain = plain_text(model, sampler, [1, 2, 3], 20)
    assert divergence(model, sampler, [1, 2, 3], plain, plain[:7]) is None
    other = [*plain[:9], (plain[9] + 1) % 30, *plain[10:]]
    context = [1, 2, 3, *plain[:9]]
    expected = gap(sampler, model.row(context), 12, plain[9], other[9], context)
    assert divergence(model, sampler, [1, 2, 3], plain, other) == expected > 0


def deep(**options: Any) -> LoadOptions:
    return LoadOptions(n_ctx=768, **{"threads": 1, "flash_attn": "on", **options})


@pytest.mark.parametrize(
    ("kind", "options", "exact"),
    [
        ("Q8_0", deep(), True),
        ("Q8_0", deep(flash_attn="off"), False),
        ("F32", deep(kv_type="f32", flash_attn="off"), False),
        pytest.param("Q8_0", deep(threads=2), False, marks=pytest.mark.slow),
        pytest.param("Q8_0", deep(threads=2, kv_type="bf16"), True, marks=pytest.mark.slow),
        pytest.param("Q8_0", deep(threads=2, kv_type="q8_0"), True, marks=pytest.mark.slow),
    ],
)
def test_probe_of_llama_cpp(tmp_path: Path, kind: str, options: LoadOptions, exact: bool) -> None:
    path = tiny.write_llama(tmp_path / "f32.gguf", n_head=4 if options.kv_type != "q8_0" else 2)
    if kind != "F32":
        path = tiny.quantize(path, tmp_path / "copy.gguf", kind)
    with LlamaModel(path, options) as model:
        prompt = model.vocab.tokenize("the cat and the dog", special=False)
        model.eval(prompt, rows=0)
        before = model.eval([5])[0].copy()
        model.rewind(len(prompt))
        changes = probe(model, [2, 4, 8, 16])
        assert list(model.tokens) == prompt
        assert {change.n_cached for change in changes.values()} == {600}
        assert (proven(changes) == (1, 2, 4, 8, 16)) is exact
        assert (tolerance(changes.values()) == 0.0) is exact
        assert (model.eval([5])[0] == before).all(), "the cache is as it was"
