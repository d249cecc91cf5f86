"""The least time in which a recorded text could have been emitted, had every guess been known beforehand.

An exact dynamic programme over positions. Position i means that i tokens of the text are out; a pass with
k right guesses emits k + 1 tokens. More guesses than are right cost time and emit nothing more, so only
right ones are considered; a pass that is cheaper when it is wider is padded, not filled. Knows costs and
how far each source is right, nothing of models or of how guesses are made. Seconds stand for any unit of
cost, the same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Choice:
    """One pass: where it starts, who guessed ("none", "ngram", "ngram+draft") and how many right guesses.

    It emits guesses + 1 tokens.
    """

    position: int
    source: str
    guesses: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """The passes of a whole text, in order, and the time of all of them together."""

    seconds: float
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """How near a real run came to what was possible; 1 is all of it.

    `auto_over_oracle`: its speed over the oracle's. `gain_share`: its speed-up less 1 over the oracle's
    less 1, negative when slower than plain. `perfect_share`: its speed over that with a perfect drafter.
    """

    auto_over_oracle: float
    gain_share: float
    perfect_share: float


def best_schedule(
    n_tokens: int,
    reach: Mapping[str, Sequence[int]],
    widths: Mapping[int, float],
    cost_guess: Mapping[str, float],
    follows: Sequence[tuple[str, str]] = (),
    cost_use: Mapping[str, float] | None = None,
) -> Schedule:
    """The fastest schedule for a text of `n_tokens`; on a tie fewer guesses, then the source named first.

    `reach[source][i]`: how many guesses in a row are right at position i, shape (n_tokens,); what goes
    beyond the text or the widest pass is cut. `widths[n]`: seconds of a pass over n tokens, 1 among them;
    a pass is padded to a wider listed one where that is cheaper or it is not listed itself. `cost_guess`:
    seconds a guess, for every source. `follows`: pairs (a, b) where b may go on behind one or more guesses
    of a in the same pass: at position i + m behind m of them. `cost_use`: seconds that a source costs besides
    its guesses whenever it makes any, at the least: reading what it has not seen.

    Example: reach {"ngram": [2, 0, 0, 0]}, widths {1: 1.0, 4: 1.5} and free guesses give one pass of two
    guesses, padded to 4, and a plain one: 2.5 seconds. Raises ValueError when `reach` has another length or
    `widths` lacks 1, KeyError for a source without reach or cost.
    """
    cost_pass = _cost_pass(widths)
    right = {source: _cut(source, n_tokens, counts, len(cost_pass)) for source, counts in reach.items()}
    drafts, use = _Drafts.none(n_tokens, len(cost_pass)), cost_use or {}
    for source, counts in right.items():
        drafts.offer(source, counts, cost_guess[source], use.get(source, 0.0))
    for first, second in follows:
        drafts.offer_pair(first, second, right, cost_guess, use)
    seconds, guesses = _solve(drafts.seconds + cost_pass)
    choices = []
    position = 0
    while position < n_tokens:
        count = int(guesses[position])
        choices.append(Choice(position, drafts.names[drafts.who[position, count]], count))
        position += count + 1
    return Schedule(seconds, tuple(choices))


def perfect(n_tokens: int, widths: Mapping[int, float]) -> float:
    """Seconds with a drafter that is always right and costs nothing: no drafter can beat it."""
    cost_pass = _cost_pass(widths)
    return _solve(np.broadcast_to(cost_pass, (n_tokens, len(cost_pass))))[0]


def plain(n_tokens: int, widths: Mapping[int, float]) -> float:
    """Seconds without any guess, each pass padded if that is cheaper, as in `best_schedule`.

    Added up in the same order: perfect <= best_schedule <= plain holds to the last bit.
    """
    return _solve(np.broadcast_to(_cost_pass(widths)[:1], (n_tokens, 1)))[0]


def score(seconds_auto: float, seconds_plain: float, seconds_oracle: float, seconds_perfect: float) -> Score:
    """Compares a run of `seconds_auto` with what was possible for the same text; all seconds positive.

    Where the oracle gains nothing, `gain_share` is 1 for a run no slower than plain and 0 for a slower one.
    """
    gain_auto = seconds_plain / seconds_auto - 1.0
    gain_oracle = seconds_plain / seconds_oracle - 1.0
    share = gain_auto / gain_oracle if gain_oracle > 0.0 else float(gain_auto >= 0.0)
    return Score(seconds_oracle / seconds_auto, share, seconds_perfect / seconds_auto)


@dataclass(frozen=True, slots=True)
class _Drafts:
    """The cheapest way known to have k right guesses at position i.

    `seconds`: shape (n_tokens, widest), inf where there is no way; column k. `who`: the same shape, index
    into `names`. Both are filled in place by offers; a later offer must be cheaper to count.
    """

    seconds: Seconds
    who: Counts
    names: list[str]

    @staticmethod
    def none(n_tokens: int, widest: int) -> _Drafts:
        """No source yet: only no guess at all, which is free."""
        seconds = np.full((n_tokens, widest), np.inf)
        seconds[:, 0] = 0.0
        return _Drafts(seconds, np.zeros((n_tokens, widest), dtype=np.int64), ["none"])

    def offer(self, name: str, right: Counts, cost: float, use: float) -> None:
        """A source with `right` guesses, shape (n_tokens,), at `cost` seconds each, and `use` for all."""
        self.names.append(name)
        self._add(np.arange(len(right)), 0, use, right, cost)

    def offer_pair(
        self,
        first: str,
        second: str,
        right: Mapping[str, Counts],
        cost: Mapping[str, float],
        use: Mapping[str, float],
    ) -> None:
        """`second` goes on behind any number of right guesses of `first`."""
        self.names.append(f"{first}+{second}")
        for given in range(1, int(right[first].max(initial=0)) + 1):
            positions = np.flatnonzero(right[first] >= given)
            behind = right[second][positions + given]  # within the text: reach was cut to it
            spent = given * cost[first] + use.get(first, 0.0) + use.get(second, 0.0)
            self._add(positions, given, spent, behind, cost[second])

    def _add(self, positions: Counts, given: int, seconds: float, right: Counts, cost: float) -> None:
        """The last name adds 1 to `right` guesses to `given` ones that took `seconds`.

        `positions` and `right` have the same shape.
        """
        columns = slice(given + 1, None)
        count = np.arange(1, self.seconds.shape[1] - given)
        price = seconds + cost * count
        known = self.seconds[positions, columns]
        better = (count <= right[:, None]) & (price < known)
        self.seconds[positions, columns] = np.where(better, price, known)
        self.who[positions, columns] = np.where(better, len(self.names) - 1, self.who[positions, columns])


def _cost_pass(widths: Mapping[int, float]) -> Seconds:
    """Seconds of a pass with k guesses, at index k: the cheapest listed width that holds k + 1 tokens."""
    if min(widths, default=0) != 1:
        raise ValueError(f"widths must start at 1, not {sorted(widths)[:1]}")
    seconds = np.full(max(widths), np.inf)
    seconds[np.array(list(widths)) - 1] = list(widths.values())
    return np.minimum.accumulate(seconds[::-1])[::-1]


def _cut(source: str, n_tokens: int, counts: Sequence[int], widest: int) -> Counts:
    """`counts` as an array, cut to the widest pass and the text's end, where the bonus token needs room."""
    if len(counts) != n_tokens:
        raise ValueError(f"reach of {source}: {len(counts)} positions for {n_tokens} tokens")
    room = np.minimum(np.arange(n_tokens)[::-1], widest - 1)
    return np.clip(np.asarray(counts, dtype=np.int64), 0, room)


def _solve(cost: Seconds) -> tuple[float, Counts]:
    """Least seconds for the whole text, and the guesses of the best pass at each position, shape (n_tokens,).

    `cost`: seconds of a pass with k guesses at position i, shape (n_tokens, widest); inf where impossible.
    """
    n_tokens, widest = cost.shape
    rest = np.full(n_tokens + widest, np.inf)  # from each position to the end; inf beyond it
    rest[n_tokens] = 0.0
    guesses = np.zeros(n_tokens, dtype=np.int64)
    for i in reversed(range(n_tokens)):
        total = cost[i] + rest[i + 1 : i + 1 + widest]
        guesses[i] = total.argmin()
        rest[i] = total[guesses[i]]
    return float(rest[0]), guesses
