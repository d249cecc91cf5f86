"""How likely a guess is right, learnt from the text.

A source says of each guess what it thinks of it, a confidence in [0, 1]. Here that is calibrated: guesses
are sorted into bins of confidence, and each bin counts how often its guesses were right. Until it has been
seen, a bin is believed as the source says; then what earlier sessions counted; then this text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import mul, truediv

import numpy as np

EDGES = (
    *(0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.94, 0.96, 0.975),
    *(0.985, 0.995),
)
BINS = len(EDGES) + 1
MIDDLES = tuple((low + high) / 2 for low, high in pairwise((0.0, *EDGES, 1.0)))
DECAY = 0.998
"""Of this session's counts, for each trial in their bin."""
TRUST_SAID = 12.0
"""How many trials a source's own word is worth."""
TRUST_SAVED = 40.0
"""How many trials of this session the counts of earlier sessions are worth at most."""
MOST_SAVED = 2000.0
MOST_ASKED = 64
"""Chances of one bin remembered at most."""

Counts = list[list[float]]
"""For each bin [right, trials]."""


TINY = 1e-6
"""So that no chance is quite 0."""
_SAID = tuple(TINY + TRUST_SAID * middle for middle in MIDDLES)


class _Memo(dict[float, float]):
    """What a function said, so that asking again costs no more than a look-up in C."""

    def __init__(self, work_out: Callable[[float], float]) -> None:
        self._work_out = work_out

    def __missing__(self, key: float) -> float:
        self[key] = value = self._work_out(key)
        return value


class Chances:
    """The calibration of one source on one target.

    `saved`: counts of earlier sessions, as `counts` gave them.
    """

    def __init__(self, saved: Sequence[Sequence[float]] = ()) -> None:
        self._saved: Counts = [[float(x) for x in pair] for pair in saved] or [[0.0, 0.0]] * BINS
        if len(self._saved) != BINS or any(not 0 <= right <= n for right, n in self._saved):
            self._saved = [[0.0, 0.0]] * BINS
        self._right = [0.0] * BINS  # with the weight of earlier sessions in it
        self._trials = [0.0] * BINS
        self._rates = _Memo(self._work_out)
        self._asked: list[list[float]] = [[] for _ in range(BINS)]  # by bin: what _rates knows
        self._new: Counts = [[0.0, 0.0] for _ in range(BINS)]
        for i, (right, trials) in enumerate(self._saved):
            weight = min(1.0, TRUST_SAVED / trials) if trials else 0.0
            self._right[i], self._trials[i] = weight * right, weight * trials

    def rate(self, confidence: float) -> float:
        """Chance that a guess of this confidence is right, never quite 0."""
        i = bisect_right(EDGES, confidence)
        return (TINY + TRUST_SAID * confidence + self._right[i]) / (TINY + TRUST_SAID + self._trials[i])

    def of_bins(self) -> list[float]:
        """`rate` of the middle of each bin."""
        trials = TINY + TRUST_SAID
        return [
            (said + r) / (trials + n) for said, r, n in zip(_SAID, self._right, self._trials, strict=True)
        ]

    def rates(self, confidence: Iterable[float]) -> Iterator[float]:
        """`rate` of each, remembered: for sources that say the same few numbers again and again."""
        return map(self._rates.__getitem__, confidence)

    def _work_out(self, confidence: float) -> float:
        i = bisect_right(EDGES, confidence)
        if len(self._asked[i]) >= MOST_ASKED:
            self._forget(i)
        self._asked[i].append(confidence)
        return self.rate(confidence)

    def _forget(self, i: int) -> None:
        for confidence in self._asked[i]:
            del self._rates[confidence]
        self._asked[i].clear()

    def learn(self, confidence: float, right: bool) -> None:
        """A guess was judged."""
        i = bisect_right(EDGES, confidence)
        if self._asked[i]:
            self._forget(i)
        self._right[i] = DECAY * self._right[i] + right
        self._trials[i] = DECAY * self._trials[i] + 1
        new = self._new[i]
        new[0] += right
        new[1] += 1

    def counts(self) -> Counts:
        """What to save: the counts of all sessions, old ones fading once there are many."""
        merged = []
        for (right, trials), (new_right, new_trials) in zip(self._saved, self._new, strict=True):
            weight = min(1.0, MOST_SAVED / (trials + new_trials)) if trials + new_trials else 1.0
            merged.append([round(weight * (right + new_right), 2), round(weight * (trials + new_trials), 2)])
        return merged


SHARES = (
    *(
        0.01,
        0.025,
        0.03,
        0.045,
        0.06,
        0.065,
        0.06,
        0.055,
        0.06,
        0.035,
        0.035,
        0.04,
        0.055,
        0.03,
        0.035,
        0.045,
    ),
    *(0.045, 0.035, 0.05, 0.185),
)
"""How a small draft model's confidence is spread over the bins, until a text has shown it."""
TRUST_SHARES = 30.0
FADE = 0.99
MOST = 63
"""Guesses an outlook looks ahead."""
REFRESH_FIRST, REFRESH = 8, 256
"""Guesses after which an outlook is worked out anew: soon at first, then four times as late each time."""


class Outlook:
    """What the next guesses of a costly source will be worth, before it has made them."""

    def __init__(self, chances: Chances, prior: float) -> None:
        self._chances = chances
        self._shares, self._weight = list(SHARES), 1 / (TRUST_SHARES - 1)  # of each bin among first guesses
        # of each bin: how often there was a guess after a right one, and how often that was right too
        self._right, self._trials = [TRUST_SAID * prior] * BINS, [TRUST_SAID] * BINS
        self._age, self._refresh = 0, REFRESH_FIRST
        self._mean: list[float] = []
        # tokens a pass emits, by its guesses and by the first one's bin, times the share of that
        self._tokens = np.empty((MOST + 1, BINS))

    def learn(self, confidence: Sequence[float], right: int, judged: int) -> None:
        """A draft was judged: the first `right` of `judged` guesses were right."""
        self._shares[bisect_right(EDGES, confidence[0])] += self._weight
        self._weight *= TRUST_SHARES / (TRUST_SHARES - 1)  # what is newer counts more
        for j in range(1, judged):
            i = bisect_right(EDGES, confidence[j - 1])
            self._right[i] = FADE * self._right[i] + (j < right)
            self._trials[i] = FADE * self._trials[i] + 1
        self._age += judged if right else REFRESH_FIRST  # to be wrong at once says more than to be right
        if self._age >= 16 * REFRESH:  # nobody asks, but weights must not grow for ever
            self.mean()

    def after(self, confidence: float) -> float:
        """How often the guess after a right one of this confidence is right."""
        i = bisect_right(EDGES, confidence)
        return self._right[i] / self._trials[i]

    def mean(self) -> list[float]:
        """Expected right guesses among the first 0, 1, 2, ... MOST, whatever the first one says."""
        if self._age >= self._refresh or not self._mean:
            self._refresh = min(4 * self._refresh, REFRESH) if self._age else self._refresh
            self._age = 0
            whole, tokens = sum(self._shares), self._tokens
            self._shares, self._weight = [share / whole for share in self._shares], 1 / (TRUST_SHARES - 1)
            tokens[0], tokens[1] = 0.0, [*map(mul, self._shares, self._chances.of_bins())]
            tokens[2:] = [*map(truediv, self._right, self._trials)]
            np.multiply.accumulate(tokens[1:], out=tokens[1:])
            np.add.accumulate(tokens, out=tokens)
            self._mean = tokens.sum(axis=1).tolist()
            tokens += self._shares
        return self._mean

    def best(self, ways: Sequence[tuple[int, float]]) -> float:
        """What the best of `ways`, (tokens in the pass, cost in tokens), is worth on average if it is chosen
        once the first guess has said how sure it is."""
        self.mean()
        worth = self._tokens.take([width - 1 for width, _ in ways], axis=0)
        worth -= np.multiply.outer([cost for _, cost in ways], self._tokens[0])
        return float(np.add.reduce(np.maximum.reduce(worth)))


def saved_counts(raw: object) -> Mapping[str, Sequence[Sequence[float]]]:
    """Counts by source out of a file that anything may have written; what is not counts is left out."""
    if not isinstance(raw, dict):
        return {}
    return {
        str(name): value
        for name, value in raw.items()
        if isinstance(value, list)
        and len(value) == BINS
        and all(
            isinstance(pair, list)
            and len(pair) == 2
            and all(isinstance(x, int | float) and 0 <= x <= 1e9 for x in pair)
            for pair in value
        )
    }
