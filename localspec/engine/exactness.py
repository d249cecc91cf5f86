"""Does a pass over many tokens compute what passes over one token would?

Passes of different widths may use different kernels, so that logits differ in their last bits. `probe` finds
the widths for which they do not; `gap` says how near a tie was where two texts part all the same. Sees models
through the `Model` protocol, and no text.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.engine.sampling import Sampler, gumbel
from localspec.engine.types import Logits, Model, Sampling

N_CACHED = 600
"""Tokens in the cache from which a probe counts at any length: from 512 cells on, several threads share one
query row of llama.cpp's flash attention, and a shorter probe would not see the sums change."""
ROWS = 32
"""Rows compared for each width, at least, where the context has room."""
LOWEST = -1e30
"""Stands for a logit of -inf, so that differences stay numbers."""

Setup = tuple[str, str]
"""KV type and flash attention, as `LoadOptions` has them."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """How the rows of passes over some tokens differ from those of single decodes.

    `rows` compared, `changed` not bit for bit the same, `largest` change of a logit, largest change of the
    `gap` between a row's two best logits, `flips` of the best token; `n_cached` tokens stood before them.
    """

    rows: int
    changed: int
    largest: float
    gap: float
    flips: int
    n_cached: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "changed": self.changed,
            "largest_change": self.largest,
            "largest_gap_change": self.gap,
            "flips": self.flips,
            "tokens_cached": self.n_cached,
        }


def probe(
    model: Model,
    widths: Iterable[int],
    n_cached: int = N_CACHED,
    filler: Sequence[int] = (),
    clock: Callable[[], float] = time.perf_counter,
    seconds: float = math.inf,
) -> dict[int, RowChange]:
    """Compare passes of each width with single decodes, behind at least `n_cached` tokens if they fit.

    Narrow passes follow each other until `ROWS` rows were compared: two or three rows of a single pass are
    often the same by chance. `filler`: what to fill the cache with, repeated as needed; by default arbitrary
    tokens. Half of `seconds` may go into the single decodes, and no width is begun after the end: what is
    missing is not proven.
    The model's cache is left as it was found. Takes a prefill, some 32 single passes, and as many tokens at
    each width. Raises what `Model.eval` raises.
    """
    start = clock()
    length = len(model.tokens)
    todo = sorted(n for n in set(widths) if length + n <= model.n_ctx)
    if not todo:
        return {}
    base = max(length, min(n_cached, model.n_ctx - todo[-1]))
    rows = max(todo[-1], min(ROWS, model.n_ctx - base))
    text = _fill(filler, base - length + rows, model.n_vocab)
    before, tokens = text[: base - length], text[base - length :]
    changes: dict[int, RowChange] = {}
    try:
        model.eval(before, rows=0)
        singles: list[Logits] = []
        while len(singles) < rows and clock() - start <= seconds / 2:
            singles.append(model.eval([tokens[len(singles)]])[0].copy())
        for n in todo:
            if n > len(singles) or clock() - start > seconds:
                break
            model.rewind(base)
            model.eval((), rows=0)  # what a cut emptied is read again here, and not within the pass
            starts = range(0, len(singles) - n + 1, n)
            wide = [row.copy() for i in starts for row in model.eval(tokens[i : i + n], rows=n)]
            changes[n] = _compare(singles[: len(wide)], wide, base)
    finally:
        model.rewind(min(length, len(model.tokens)))
    return changes


def proven(changes: Mapping[int, RowChange]) -> tuple[int, ...]:
    """The widths whose every row was the same bit for bit; a pass of width 1 is what it is compared with."""
    return tuple(sorted({1, *(n for n, change in changes.items() if not change.changed)}))


def tolerance(changes: Iterable[RowChange]) -> float:
    """The largest gap that still counts as a tie: 0 where all is proven exact.

    One and a half times the largest change of a gap between the two best logits; the largest change of any
    logit would excuse far too much. A hundred rows or more give a steady figure.
    """
    return 1.5 * max((change.gap for change in changes), default=0.0)


def candidates(kv_type: str | None, flash_attn: str, threads: int) -> list[Setup]:
    """The cache types worth trying for exact decoding, the user's own choice first, then by speed.

    With one thread bf16 is left out: its kernel differs from f16's only in how threads share a row.
    """
    tries = [
        (kv_type or "f16", flash_attn),
        ("f16", "auto"),
        *([("bf16", "on")] if threads > 1 else []),
        ("q8_0", "on"),
        ("f32", "off"),
    ]
    return list(dict.fromkeys(tries))


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Where two texts part, None if one begins the other."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


def divergence(
    model: Model, sampler: Sampler, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int]
) -> float | None:
    """The gap at the first difference of two continuations of `prompt`, None if there is none.

    The plain row is computed as plain decoding computes it: the prompt at once, then token by token.
    """
    place = first_difference(plain, other)
    if place is None:
        return None
    context = [*prompt, *plain[:place]]
    model.rewind(0)
    model.eval(prompt[:-1], rows=0)
    row = model.eval(prompt[-1:])[0]
    for token in plain[:place]:
        row = model.eval([token])[0]
    return gap(sampler, row, len(context), plain[place], other[place], context)


def gap(
    sampler: Sampler, row: Logits, position: int, plain: int, other: int, history: Sequence[int] = ()
) -> float:
    """How much differences of logits must change for both tokens to be possible choices; 0 is a perfect tie.

    `row`: logits (n_vocab,) of plain decoding at `position`, `history` the tokens before it. If the true
    logits are off by at most d each, the gap of two choices that can come of it is at most 2 d. In logits at
    any temperature T: log P + G compared within a tolerance t / T is logits + T G compared within t. A token
    that crosses an edge of top-k, top-p or min-p counts by how far it stands from that edge.
    """
    s = sampler.sampling
    logits = _penalised(sampler, row, history)
    noise = gumbel(s.seed, position, np.arange(len(row))) if s.temperature else 0.0
    score = logits + s.temperature * noise
    scale = max(s.repeat_penalty, 1 / s.repeat_penalty) if sampler.window else 1.0  # errors grow with logits
    return max(_needed(token, logits, score, s) for token in (plain, other)) / scale


def _fill(filler: Sequence[int], n: int, n_vocab: int) -> list[int]:
    if filler:
        return [filler[i % len(filler)] for i in range(n)]
    ids = random.Random(0)
    return [ids.randrange(n_vocab) for _ in range(n)]


def _compare(singles: Sequence[Logits], rows: Sequence[Logits], n_cached: int) -> RowChange:
    changed = flips = 0
    largest = widest = 0.0
    for single, row in zip(singles, rows, strict=True):
        if np.array_equal(single.view(np.int32), row.view(np.int32)):
            continue
        changed += 1
        flips += int(single.argmax() != row.argmax())
        change = np.where(single == row, 0.0, row.astype(np.float64) - np.maximum(single, LOWEST))
        largest = max(largest, float(abs(change).max()))
        first, second = np.argsort(single)[:-3:-1]
        widest = max(widest, float(abs(change[first] - change[second])))
    return RowChange(len(singles), changed, largest, widest, flips, n_cached)


def _penalised(sampler: Sampler, row: Logits, history: Sequence[int]) -> NDArray[np.float64]:
    """The logits after penalties, (n_vocab,), up to a constant."""
    if not sampler.window:
        return np.maximum(row.astype(np.float64), LOWEST)
    untruncated = replace(sampler.sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    law = Sampler(untruncated).dist(row, history)
    logits = np.full(len(row), LOWEST)
    logits[law.ids] = np.log(law.probs)
    return logits


def _needed(token: int, logits: NDArray[np.float64], score: NDArray[np.float64], s: Sampling) -> float:
    """The least change of differences of logits by which `token` could be the choice.

    It must come inside the chain's edges, and every token ahead of it must fall back or fall outside.
    """
    ahead = np.flatnonzero(score > score[token])
    lead = score[ahead] - score[token]
    if s.temperature == 0.0:
        return float(lead.max(initial=0.0))
    edges = _Edges(logits, s)
    needed = edges.enter(token)
    for c, distance in zip(ahead.tolist(), lead.tolist(), strict=True):
        if distance > needed:
            needed = max(needed, min(distance, edges.leave(c)))
    return needed


class _Edges:
    """How far tokens stand from the edges that top-k, top-p and min-p draw, in differences of logits.

    When logits move by up to d each, the logit at any rank moves by at most d, and the log-odds of the mass
    before a rank by at most 2 d: so a token crosses an edge of ranks only if a rank within 2 d of its logit
    has a margin within 2 d.
    """

    def __init__(self, logits: NDArray[np.float64], s: Sampling) -> None:
        order = np.argsort(-logits, kind="stable")
        self.sorted = logits[order]
        self.rank = np.argsort(order)
        least = self.sorted[0] + math.log(s.min_p) if s.min_p > 0.0 else -math.inf
        self.above_least = logits - least
        k = s.top_k if 0 < s.top_k < len(logits) else len(logits)
        self.margin = np.full(len(logits), math.inf)  # of each rank: positive is inside
        if s.top_p < 1.0:
            weights = np.exp(self.sorted[:k] - self.sorted[0])
            before = np.cumsum(weights) - weights
            rest = np.cumsum(weights[::-1])[::-1]
            with np.errstate(divide="ignore"):
                self.margin[1:k] = (_log_odds(s.top_p) - (np.log(before) - np.log(rest)))[1:]
        self.margin[k:] = -math.inf

    def enter(self, token: int) -> float:
        """How far `token` is from being inside, 0 if it is."""
        rank = self.rank[token]
        steps = np.maximum(self.sorted[: rank + 1] - self.sorted[rank], -self.margin[: rank + 1])
        return float(max(0.0, -self.above_least[token], steps.min()))

    def leave(self, token: int) -> float:
        """How far `token` is from being outside, 0 if it is."""
        rank = self.rank[token]
        steps = np.maximum(self.sorted[rank] - self.sorted[rank:], self.margin[rank:])
        return float(max(0.0, min(self.above_least[token], steps.min())))


def _log_odds(p: float) -> float:
    return math.log(p) - math.log1p(-p) if p > 0.0 else -math.inf
