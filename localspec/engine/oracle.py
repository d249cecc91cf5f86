"""The least time in which a recorded text could have been emitted, had every guess been known beforehand.

An exact dynamic programme over positions and over what the costly source has not yet read. Position i means
that i tokens of the text are out; a pass with k right guesses emits k + 1 tokens. More guesses than are right
cost time and emit nothing more, so only right ones are considered; a pass that is cheaper when it is wider is
padded, not filled. Knows costs and how far each source is right, nothing of models or of how guesses are
made. Seconds stand for any unit of cost, the same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]
Counts = NDArray[np.int64]

UNREAD = 2
"""Tokens a costly source has not read once all its guesses were right: its last one, and the pass's own."""


@dataclass(frozen=True, slots=True)
class Costly:
    """A source whose guesses cost time. `right[i]`: how many guesses in a row are right at position i;
    `guess`: seconds a guess; `first[u - 1]`: seconds of the first one where u tokens are unread, which it has
    to read; more than are listed are as dear as the last."""

    right: Sequence[int]
    guess: float
    first: Sequence[float]


@dataclass(frozen=True, slots=True)
class Score:
    """How near a real run came to what was possible; 1 is all of it.

    `auto_over_oracle`: its speed over the oracle's. `gain_share`: its speed-up less 1 over the oracle's
    less 1, negative when slower than plain. `perfect_share`: its speed over that with a perfect drafter.
    """

    auto_over_oracle: float
    gain_share: float
    perfect_share: float


def least_seconds(
    n_tokens: int,
    free: Mapping[str, Sequence[int]],
    widths: Mapping[int, float],
    costly: Costly | None = None,
) -> Seconds:
    """The least time for all that follows each position, by the tokens that the costly source has not read
    there: shape (n_tokens + 1, most unread), one unread token first. [0, 0] is the whole text, when the
    source has read the prompt.

    `free[source][i]`: how many guesses in a row are right at position i; what goes beyond the text or the
    widest pass is cut. `widths[n]`: seconds of a pass over n tokens, 1 among them; a pass is padded to a
    wider listed one where that is cheaper or it is not listed itself. The costly source guesses at a
    position, or goes on behind one or more guesses of a free one in the same pass, which it reads, too.

    Example: free {"ngram": [2, 0, 0, 0]}, widths {1: 1.0, 4: 1.5} give one pass of two guesses, padded to
    4, and a plain one: 2.5 seconds. Raises ValueError when a source tells of another number of positions or
    `widths` lacks 1.
    """
    cost = _cost_pass(widths)
    n_most = len(cost) - 1
    rights = [_cut(name, n_tokens, right, n_most) for name, right in free.items()]
    right = np.max(rights, axis=0) if rights else np.zeros(n_tokens, np.int64)
    own = _cut("the costly one", n_tokens, costly.right, n_most) if costly else np.zeros(n_tokens, np.int64)
    first = np.array(costly.first if costly else [np.inf])
    unread = np.arange(len(first))
    last = len(first) - 1
    guess = costly.guess if costly else 0.0
    after = min(UNREAD - 1, last)
    rest = np.full((n_tokens + len(cost), len(first)), np.inf)  # inf beyond the end of the text
    rest[n_tokens] = 0.0
    behind = np.full(
        (n_tokens, len(cost)), np.inf
    )  # with the costly source from i on, behind k copied guesses
    too_wide = np.append(cost, np.full(len(cost), np.inf))
    copied = np.arange(len(cost))[:, None]
    for i in reversed(range(n_tokens)):
        if own[i]:
            made = np.arange(1, own[i] + 1)
            behind[i] = (too_wide[copied + made] + (guess * (made - 1) + rest[i + made + 1, after])).min(
                axis=1
            )
        kept = copied[: right[i] + 1]
        alone = cost[kept] + rest[i + kept + 1, np.minimum(unread + kept + 1, last)]
        helped = behind[i + kept, kept] + first[np.minimum(unread + kept, last)]
        rest[i] = np.minimum(alone, helped).min(axis=0)
    return rest[: n_tokens + 1]


def perfect(n_tokens: int, widths: Mapping[int, float]) -> float:
    """Seconds with a drafter that is always right and costs nothing: no drafter can beat it."""
    return float(least_seconds(n_tokens, {"all": [n_tokens] * n_tokens}, widths)[0, 0])


def plain(n_tokens: int, widths: Mapping[int, float]) -> float:
    """Seconds without any guess, each pass padded if that is cheaper, as in `least_seconds`.

    Added up in the same order: perfect <= least_seconds <= plain holds to the last bit.
    """
    return float(least_seconds(n_tokens, {}, widths)[0, 0])


def score(seconds_auto: float, seconds_plain: float, seconds_oracle: float, seconds_perfect: float) -> Score:
    """Compares a run of `seconds_auto` with what was possible for the same text; all seconds positive.

    Where the oracle gains nothing, `gain_share` is 1 for a run no slower than plain and 0 for a slower one.
    """
    gain_auto = seconds_plain / seconds_auto - 1.0
    gain_oracle = seconds_plain / seconds_oracle - 1.0
    share = gain_auto / gain_oracle if gain_oracle > 0.0 else float(gain_auto >= 0.0)
    return Score(seconds_oracle / seconds_auto, share, seconds_perfect / seconds_auto)


def _cost_pass(widths: Mapping[int, float]) -> Seconds:
    """Seconds of a pass with k guesses, at index k: the cheapest listed width that holds k + 1 tokens."""
    if min(widths, default=0) != 1:
        raise ValueError(f"widths must start at 1, not {sorted(widths)[:1]}")
    seconds = np.full(max(widths), np.inf)
    seconds[np.array(list(widths)) - 1] = list(widths.values())
    return np.minimum.accumulate(seconds[::-1])[::-1]


def _cut(source: str, n_tokens: int, counts: Sequence[int], most: int) -> Counts:
    """`counts` as an array, cut to the widest pass and the text's end, where the bonus token needs room."""
    if len(counts) != n_tokens:
        raise ValueError(f"reach of {source}: {len(counts)} positions for {n_tokens} tokens")
    room = np.minimum(np.arange(n_tokens)[::-1], most)
    return np.clip(np.asarray(counts, dtype=np.int64), 0, room)
