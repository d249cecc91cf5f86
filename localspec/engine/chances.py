"""How likely a guess is right, learnt from the text.

A source says of each guess what it thinks of it, a confidence in [0, 1]. Here that is calibrated: guesses
are sorted into bins of confidence, and each bin counts how often its guesses were right. Until it has been
seen, a bin is believed as the source says; then what earlier sessions counted; then this text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

EDGES = (
    *(0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.94, 0.96, 0.975),
    *(0.985, 0.995),
)
BINS = len(EDGES) + 1
DECAY = 0.998
"""Of this session's counts, for each trial in their bin."""
TRUST_SAID = 12.0
"""How many trials a source's own word is worth."""
TRUST_SAVED = 40.0
"""How many trials of this session the counts of earlier sessions are worth at most."""
MOST_SAVED = 2000.0

Counts = list[list[float]]
"""For each bin [right, trials]."""


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
        self._new: Counts = [[0.0, 0.0] for _ in range(BINS)]
        for i, (right, trials) in enumerate(self._saved):
            weight = min(1.0, TRUST_SAVED / trials) if trials else 0.0
            self._right[i], self._trials[i] = weight * right, weight * trials

    def rate(self, confidence: float) -> float:
        """Chance that a guess of this confidence is right."""
        i = bisect_right(EDGES, confidence)
        return (TRUST_SAID * confidence + self._right[i]) / (TRUST_SAID + self._trials[i])

    def learn(self, confidence: float, right: bool) -> None:
        """A guess was judged."""
        i = bisect_right(EDGES, confidence)
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


class RunningRate:
    """A share that follows what happens: `prior` counts as `trust` trials, old trials fade by `decay`."""

    __slots__ = ("_decay", "_right", "_trials")

    def __init__(self, prior: float, trust: float = 10.0, decay: float = 0.98) -> None:
        self._right, self._trials, self._decay = prior * trust, trust, decay

    @property
    def value(self) -> float:
        return self._right / self._trials

    def learn(self, right: bool) -> None:
        self._right = self._decay * self._right + right
        self._trials = self._decay * self._trials + 1


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
