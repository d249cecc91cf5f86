"""How near the scheduler came to the best that was possible on each recorded text, and where the rest went.

The oracle knows every guess beforehand (`engine.oracle`). What a run lost against it adds up exactly over its
steps: with V(i) the least time from token i on, a step from i that took s and emitted m tokens lost
s + V(i + m) - V(i). Knows recordings, their replays and prices; nothing of clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from localspec.bench.decode import Measured, Prices
from localspec.bench.record import Recording
from localspec.bench.replay import padded
from localspec.bench.report import ALL, AUTO, PLAIN
from localspec.bench.settings import DRAFT, LONGEST, UNLIMITED, WARM
from localspec.drafters import NAMED
from localspec.engine import oracle
from localspec.engine.generate import common_prefix
from localspec.engine.types import Step

WORTH_SHARING = 1.05
"""Speed of the oracle from which on it means something what share of its gain was reached."""

Reach = dict[str, list[int]]
"""By source: how many guesses in a row are right at each emitted token."""


def reach(recording: Recording, free: Sequence[str]) -> Reach:
    """What every source would have guessed at every place of a text, counted."""
    text, start = recording.text, recording.n_prompt
    found: Reach = {}
    for name in free:
        drafter = NAMED[name]()
        drafter.begin(text[:start])
        found[name] = [
            common_prefix(drafter.propose(text[:i], LONGEST, lambda _: True).tokens, text[i : i + LONGEST])
            for i in range(start, len(text))
        ]
    if recording.guesses:
        right = 0
        backwards = []
        for i in reversed(range(start, len(text))):
            right = right + 1 if recording.guesses.after(i, ())[0] == text[i] else 0
            backwards.append(right)
        found[DRAFT] = backwards[::-1]
    return found


@dataclass(slots=True)
class Optimum:
    """The oracle on one text under one cost table; times in passes over one token.

    As on the virtual clock, a draft model also pays for reading what was emitted since it last guessed.
    """

    reach: Reach
    prices: Prices
    n_tokens: int
    _after: dict[tuple[str, ...], oracle.Seconds] = field(default_factory=dict)

    def after(self, place: int, unread: int = 1, sources: Sequence[str] = ()) -> float:
        """V: the least time for the tokens from `place` on, `unread` of those before not yet read by the
        draft; `sources`: with these alone."""
        names = tuple(sources or self.reach)
        if names not in self._after:
            self._after[names] = self._solve({name: self.reach[name] for name in names})
        known = self._after[names]
        return float(known[place, min(unread, known.shape[1]) - 1])

    def _solve(self, reach: Reach) -> oracle.Seconds:
        curve, guess = self.prices.curve, self.prices.guess
        free = {name: right for name, right in reach.items() if name != DRAFT}
        draft = None
        if DRAFT in reach:
            first = [self._first(unread) for unread in range(1, max(curve) + 1)]
            draft = oracle.Costly(reach[DRAFT], guess, first)
        return oracle.least_seconds(self.n_tokens, free, curve, draft)

    def _first(self, unread: int) -> float:
        """What the draft's first guess takes where it has to read `unread` tokens."""
        curve = self.prices.curve
        return self.prices.guess * padded(curve, min(unread, max(curve)))

    def best_from(self, place: int, source: str, unread: int) -> float:
        """The least time from `place` on if `source` guesses next, as much as is best."""
        curve, guess = self.prices.curve, self.prices.guess
        room = min(self.reach[source][place], self.n_tokens - place - 1, max(curve) - 1)
        found = [padded(curve, 1) + self.after(place + 1, unread + 1)]
        for k in range(1, room + 1):
            asked = self._first(unread) + guess * (k - 1) if source == DRAFT else 0.0
            left = oracle.UNREAD if source == DRAFT else unread + k + 1
            found.append(asked + padded(curve, k + 1) + self.after(place + k + 1, left))
        return min(found)


def lost(measured: Measured, optimum: Optimum) -> dict[str, float]:
    """What a replay lost, by cause. "silent": nothing was guessed where that would have paid; "source":
    another one should have guessed; "length": as many guesses as were right would have been better, with all
    that is lost by steps of two sources. The sum is the whole difference to the oracle.
    """
    found = dict.fromkeys(("silent", "source", "length"), 0.0)
    place, unread = 0, 1
    for step in measured.steps:
        here = optimum.after(place, unread)
        after = _unread(step, unread)
        whole = step.seconds + optimum.after(place + len(step.tokens), after) - here
        if step.source == PLAIN:
            found["silent"] += whole
        else:
            known = step.source in optimum.reach
            source = optimum.best_from(place, step.source, unread) - here if known else 0.0
            found["source"] += source
            found["length"] += whole - source
        place, unread = place + len(step.tokens), after
    return found


def _unread(step: Step, before: int) -> int:
    """Tokens that the draft has not read after a replayed step, as far as that tells."""
    if step.seconds_draft == 0:  # it was not asked
        return before + len(step.tokens)
    return oracle.UNREAD if step.drafted and step.accepted == step.drafted else 1


def scores(
    optima: Sequence[Optimum],
    replayed: Mapping[str, Sequence[Measured]],
    families: Sequence[str],
    speeds: Mapping[str, float | None],
) -> list[dict[str, Any]]:
    """A row a family and one of all: how near `auto` came to the oracle.

    `replayed`: the replays of `optima`'s texts by setting: auto, auto-warm and auto-unlimited. `speeds`: by
    family the speed of auto over plain decoding as it was measured, if not by the replay. The keys are
    described in `bench.run`.
    """
    rows = []
    for family in (*families, ALL):
        chosen = [i for i, m in enumerate(replayed[AUTO]) if family in (ALL, m.recording.family) and m.steps]
        if chosen:
            some = {name: [found[i] for i in chosen] for name, found in replayed.items()}
            rows.append(_score(family, [optima[i] for i in chosen], some, speeds.get(family)))
    return rows


def _score(
    family: str, optima: Sequence[Optimum], replayed: Mapping[str, Sequence[Measured]], speed: float | None
) -> dict[str, Any]:
    curve = optima[0].prices.curve
    plain, perfect = (
        sum(f(optimum.n_tokens, curve) for optimum in optima) for f in (oracle.plain, oracle.perfect)
    )
    best = sum(optimum.after(0) for optimum in optima)
    times = {name: sum(m.seconds for m in found) for name, found in replayed.items()}
    auto = plain / speed if speed else times[AUTO]
    score = oracle.score(auto, plain, best, perfect)
    parts = [lost(measured, optimum) for measured, optimum in zip(replayed[AUTO], optima, strict=True)]
    causes = {cause: sum(part[cause] for part in parts) for cause in parts[0]}
    causes |= {"cold_start": times[AUTO] - times[WARM], "ledger": times[AUTO] - times[UNLIMITED]}
    alone = {
        name: plain / sum(optimum.after(0, sources=(name,)) for optimum in optima) for name in optima[0].reach
    }
    return {
        "family": family,
        "auto": plain / auto,
        "oracle": plain / best,
        "auto_over_oracle": score.auto_over_oracle,
        "gain_share": score.gain_share if plain / best >= WORTH_SHARING else None,
        "perfect_share": score.perfect_share,
        "alone": alone,
        "lost": {cause: seconds / times[AUTO] for cause, seconds in causes.items()},
    }
