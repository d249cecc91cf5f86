"""From a row of logits to the next token.

The chain is llama.cpp's default order: penalties, top-k, top-p, min-p, temperature. Randomness is keyed by
position, not drawn in sequence: the noise of (seed, position, token) is always the same number, so that
target and draft choose with the same noise (Gumbel coupling, Daliri, Musco and Suresh, arXiv 2408.07978)
and a seed gives the same text however the passes were cut.

A constraint (a grammar) comes between penalties and top-k, and what it does is part of the law, the same for
the target, a draft, and plain decoding. It is asked about the 64 largest logits only, since asking about the
whole vocabulary takes longer than many a pass: the tokens it allows among those are all there are for the
rest of the chain, which counts its shares among them. If it allows none of the 64, it is asked about all.
Greedy decoding thus takes the likeliest token that is allowed, wherever that stands.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.engine.constraint import Followed
from localspec.engine.types import BadLogits, Constraint, Dist, Logits, NothingAllowed, Sampling

CANDIDATES = 64
"""Largest logits that a constraint is asked about before it is asked about all: part of the law."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Sampler:
    """The target's choice at each position, and the law it is drawn from.

    `constraint`: what the next answers must look like, or None; in force from `begin` on. Behind a token that
    it refuses, which only a wrong guess is, the law is the unconstrained one and means nothing.
    """

    def __init__(self, sampling: Sampling, constraint: Constraint | None = None) -> None:
        self.sampling = sampling
        self.constraint = constraint
        penalised = sampling.repeat_penalty != 1.0 or sampling.presence_penalty != 0.0
        self._penalised = sampling.penalty_window if penalised else 0  # that many tokens
        self._followed: Followed | None = None

    @property
    def window(self) -> int:
        """How many tokens of history the choice depends on: with a constraint, on all there are."""
        return sys.maxsize if self.constraint else self._penalised

    def begin(self, context: Sequence[int]) -> None:
        """An answer begins behind `context`."""
        self._followed = Followed(self.constraint, len(context)) if self.constraint else None

    def pick(self, row: Logits, history: Sequence[int], position: int) -> int:
        """The token at `position` given logits `row` (n_vocab,) and the tokens before it.

        The same as `draw(dist(row, history), position)`: normalising cannot move the argmax of log p + noise.
        """
        temperature = self.sampling.temperature
        if temperature == 0.0:
            return self._likeliest(row, history)
        ids, logits = self._survivors(row, history)
        if len(ids) == 1:
            return int(ids[0])
        noise = gumbel(self.sampling.seed, position, ids)
        return int(ids[(logits / temperature + noise).argmax()])

    def draw(self, dist: Dist, position: int) -> int:
        """Sample `dist` with the noise of `position`: argmax of log p + Gumbel noise."""
        noise = gumbel(self.sampling.seed, position, dist.ids)
        return int(dist.ids[np.argmax(np.log(dist.probs) + noise)])

    def draw_with_lead(self, dist: Dist, position: int) -> tuple[int, float]:
        """As `draw`, and by how much log p + noise of the token exceeds the next best one (inf: no other)."""
        if len(dist.ids) == 1:
            return int(dist.ids[0]), math.inf
        score = np.log(dist.probs) + gumbel(self.sampling.seed, position, dist.ids)
        second, first = np.argpartition(score, -2)[-2:]
        return int(dist.ids[first]), float(score[first] - score[second])

    def dist(self, row: Logits, history: Sequence[int]) -> Dist:
        """The law of the next token after the whole chain. Raises BadLogits on NaN."""
        temperature = self.sampling.temperature
        if temperature == 0.0:
            return Dist.point(self._likeliest(row, history))
        ids, logits = self._survivors(row, history)
        weights = np.exp((logits - logits[0]) / temperature)
        order = np.argsort(ids)
        if weights[-1] == 0.0:  # underflow, or a logit of -inf
            order = order[weights[order] > 0.0]
        return Dist(ids[order], weights[order] / weights.sum())

    def likeliest(
        self, row: Logits, history: Sequence[int], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Ids and logits of the `k` likeliest tokens, or as many as are allowed, largest first."""
        row, state = self._penalise(row, history), self._state(history)
        ids, logits = top(row, k) if state is None else allowed(row, state)
        return ids[:k], logits[:k]

    def _likeliest(self, row: Logits, history: Sequence[int]) -> int:
        row, state = self._penalise(row, history), self._state(history)
        best = argmax(row)
        if state is None or state.allowed(np.array([best]))[0]:
            return best
        return int(allowed(row, state)[0][0])

    def _state(self, history: Sequence[int]) -> Constraint | None:
        if self.constraint is None:
            return None
        assert self._followed, "begin comes first"
        return self._followed.after(history)

    def _survivors(self, row: Logits, history: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Ids and float64 logits, largest first, that penalties, top-k, top-p and min-p leave."""
        s = self.sampling
        row, state = self._penalise(row, history), self._state(history)
        if state is not None:
            ids, logits = allowed(row, state)
            kept = s.top_k if s.top_k > 0 else len(ids)
            ids, logits, whole = ids[:kept], logits[:kept], None
        elif 0 < s.top_k < len(row):
            ids, logits = top(row, s.top_k)
            whole = None  # top-p counts the mass that is left
        else:
            ids, logits, whole = _head(row, s)
        values = logits.tolist()  # mostly a few dozen: cheaper here than as arrays
        weights = [math.exp(value - values[0]) for value in values]
        keep = _reach(weights, s.top_p, s.min_p, whole)
        return ids[:keep], logits[:keep]

    def _penalise(self, row: Logits, history: Sequence[int]) -> Logits:
        s = self.sampling
        if not self._penalised or not history:
            return row
        seen = np.unique(np.asarray(history[-self._penalised :], dtype=np.int64))
        seen = seen[seen < len(row)]  # a draft's vocabulary may be smaller than the history's
        row = row.copy()
        value = row[seen]
        value = np.where(value > 0.0, value / s.repeat_penalty, value * s.repeat_penalty)
        row[seen] = value - s.presence_penalty
        return row


class RandomDice:
    """Sequential randomness for rejection sampling, where reusing a position's noise would bias the law."""

    def __init__(self, seed: int) -> None:
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Begin anew, with `seed`."""
        self._random = np.random.Generator(np.random.Philox(seed))

    def flip(self, probability: float) -> bool:
        return bool(self._random.random() < probability)

    def draw(self, dist: Dist) -> int:
        mass = np.cumsum(dist.probs)
        place = int(np.searchsorted(mass, self._random.random() * mass[-1], side="right"))
        return int(dist.ids[min(place, len(dist.ids) - 1)])


def argmax(row: Logits) -> int:
    """Index of the largest logit, the lowest one on a tie. Raises BadLogits on NaN, all -inf or +inf."""
    best = int(row.argmax())  # argmax returns the first NaN if there is one
    if not math.isfinite(row[best]):
        raise BadLogits(f"logit {float(row[best])} for token {best}")
    return best


def top(row: Logits, k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids and values of the `k` largest logits, largest first, the lower id first on a tie.

    A bound that at least k logits reach comes from the maxima of parts of the row: any >= k parts have k
    maxima at or above their k-th largest one. A quarter of the row gives a bound that few others reach, and
    saves reading the rest a second time from far memory. Raises BadLogits as `argmax` does.
    """
    columns = len(row) // 256
    if columns < 2 * k:
        argmax(row)
        ids = _descending(row)[:k]
        return ids, row[ids].astype(np.float64)
    maxima = row[: 64 * columns].reshape(64, columns).max(axis=0)
    maxima.partition(columns - k)
    ids = (row >= maxima[columns - k]).nonzero()[0]
    if not math.isfinite(row.max()) or not len(ids):  # a bound of NaN is reached by none
        argmax(row)
    values = row[ids]
    order = (-values).argsort(kind="stable")[:k]
    return ids[order], values[order].astype(np.float64)


def allowed(row: Logits, state: Constraint) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids and values of the logits that `state` leaves, largest first: of the CANDIDATES largest, or of all.

    Raises NothingAllowed if it leaves none, BadLogits as `argmax` does.
    """
    ids, logits = top(row, CANDIDATES)
    keep = state.allowed(ids) & np.isfinite(logits)
    if not keep.any():
        ids = (state.allowed(np.arange(len(row))) & np.isfinite(row)).nonzero()[0]
        if not len(ids):
            raise NothingAllowed("no token of the vocabulary fits the grammar here")
        ids = ids[(-row[ids]).argsort(kind="stable")]
        return ids, row[ids].astype(np.float64)
    return ids[keep], logits[keep]


def _reach(weights: Sequence[float], top_p: float, min_p: float, whole: float | None) -> int:
    """How many of `weights`, largest first and the first 1, top-p and min-p keep: at least one.

    `whole`: the mass of which top-p wants its share, None for the sum of `weights`.
    """
    line = top_p * (sum(weights) if whole is None else whole) if top_p < 1.0 else math.inf
    mass = 0.0
    for i, weight in enumerate(weights):
        if weight < min_p:
            return max(1, i)
        mass += weight
        if mass >= line:
            return i + 1
    return len(weights)


def _descending(row: Logits) -> NDArray[np.int64]:
    """All ids, largest logit first, the lower id first on a tie.

    Sorts 64-bit keys, the logit's bits in an order-keeping form above the id: a stable argsort of floats is
    several times slower.
    """
    bits = (row + np.float32(0.0)).view(np.int32)  # the sum turns -0.0 into 0.0
    falling = ~np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = (falling.astype(np.int64) << 32) | np.arange(len(row))
    keys.sort()
    return keys & 0xFFFFFFFF


def gumbel(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise of each token id at `position`, shape of `ids`; a pure function of its arguments.

    The uniform behind it is a splitmix64 hash (Steele, Lea and Flood 2014) of (seed, position, id).
    """
    key = _mix_int(_mix_int(seed & _MASK) + position)
    if len(ids) <= 16:  # the usual case: whole numbers are the same, and quicker, outside an array
        hashes = np.array([_mix_int(token * _GOLDEN + key - _GOLDEN) >> 11 for token in ids.tolist()])
    else:
        x = ids.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes = (x ^ (x >> np.uint64(31))) >> np.uint64(11)
    uniform = (hashes.astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniform))


def _mix_int(x: int) -> int:
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _head(row: Logits, s: Sampling) -> tuple[NDArray[np.int64], NDArray[np.float64], float]:
    """Without top-k: ids and values, largest first, that min-p can leave, and the mass of all logits."""
    best = float(row[argmax(row)])
    whole = float(np.exp(row.astype(np.float64) - best).sum()) if s.top_p < 1.0 else 0.0
    if s.min_p > 0.0:
        ids = (row >= best + math.log(s.min_p) - 1e-3).nonzero()[0]
        ids = ids[(-row[ids]).argsort(kind="stable")]
    else:
        ids = _descending(row)
    return ids, row[ids].astype(np.float64), whole
