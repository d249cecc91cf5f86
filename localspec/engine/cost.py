"""What a pass costs: T(n), the seconds of a target pass over n tokens, and what a source's guesses cost.

Measured on this machine, never interpolated: on CPUs the curve is a sawtooth (a pass over 8 tokens can be
cheaper than one over 7), so only the widths of a ladder are run, and fewer tokens are padded up to the
cheapest width that holds them. Knows numbers only; who runs the passes hands in the seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

LADDER = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48)
"""Widths a pass may have."""
CALIBRATION = (1, 2, 4, 8, 16, 32, 3, 6, 12, 24, 5, 7, 48)
"""The ladder in the order in which its widths are measured while time lasts."""
CALIBRATION_SECONDS = 1.5

SLOWEST_LEARNING = 0.1
"""Weight of a new observation once a width has been seen often."""
MUCH = 0.03
"""Change of what is believed of a width that is more than the usual coming and going."""
SHIFT = 1.5
"""A plain pass this many times dearer or cheaper than remembered puts every other width in doubt."""


@dataclass(slots=True, eq=False)
class _Width:
    """What is known of one width: seconds at an empty cache, their mean deviation, the plain pass that they
    were measured beside, how often it was seen."""

    base: float
    spread: float
    beside: float
    seen: int = 1
    odd: int = 0  # outliers in a row


class PassCosts:
    """T(n, c): seconds of a target pass over n tokens with c tokens in the cache, the loop's own time in it.

    T(n, c) = a_n + b * n * c: attention reads the cache once for each row. The a_n come from calibration or
    from an earlier session and follow what is observed. b is given: within an answer the cache grows as the
    clock ticks, and a machine that becomes slower would pass for a cache that becomes dearer.
    A width that was never measured has an *optimistic* cost, that of the next narrower known one, so that it
    is tried when it could pay, and a *worst* cost, which is what a pass is admitted by.
    """

    def __init__(
        self, seconds: Mapping[int, float], slope: float = 0.0, widths: Sequence[int] = LADDER
    ) -> None:
        """`seconds`: width -> seconds, at least for 1. `slope`: b, in seconds a token. `widths`: those that
        may be run."""
        if not seconds.get(1, 0) > 0:
            raise ValueError("the cost of a pass over one token is missing")
        self.ladder = tuple(sorted({1, *widths}))
        plain = seconds[1]
        self._widths = {n: _Width(t, 0.05 * t, plain) for n, t in sorted(seconds.items()) if n in self.ladder}
        self._plain = self._widths[1]
        self._plain.seen = 0  # plain passes come soon and often: what they say now counts
        self.slope = slope
        self._reference = plain  # the plain pass that all widths were first measured beside
        self._since_plain: list[_Width] = []
        self._doubtful: dict[int, float] = {}

    def known(self) -> dict[int, float]:
        """Width -> seconds at an empty cache, of the widths that were measured."""
        return {n: self._now(width).base for n, width in sorted(self._widths.items())}

    def remembered(self) -> dict[int, float]:
        """What to keep for another session: what is in doubt now, too; it may only be a busy hour."""
        scale = self._plain.base / self._doubtful.get(1, self._plain.base)
        return {**{n: scale * seconds for n, seconds in self._doubtful.items()}, **self.known()}

    def plain(self, n_cached: int) -> float:
        """Seconds of a pass over one token: T1."""
        return self._plain.base + self.slope * n_cached

    def spread(self) -> float:
        """Mean deviation of plain passes, as a share of their cost."""
        return self._plain.spread / self._plain.base

    def front(self, n_cached: int) -> list[tuple[int, float]]:
        """(width, seconds), ascending in both: the widths that no wider one undercuts."""
        front: list[tuple[int, float]] = []
        per_token = self.slope * n_cached
        known, seconds = self._widths, 0.0
        for n in self.ladder:
            if n in known:
                seconds = self._now(known[n]).base + n * per_token
            while front and front[-1][1] >= seconds and front[-1][0] in known and n in known:
                front.pop()
            front.append((n, seconds))
        return front

    def worst(self, width: int, n_cached: int) -> float:
        """Seconds a pass over `width` tokens takes at most, outliers left aside."""
        found = self._widths.get(width)
        if found:
            now = self._now(found)
            return now.base + 2 * now.spread + self.slope * width * n_cached
        widest = max(n for n in self._widths if n < width)
        return 1.2 * self.worst(widest, n_cached) * width / widest

    def _now(self, width: _Width) -> _Width:
        """It, moved along with the plain passes since it was measured."""
        plain = self._plain.base
        if width.beside != plain and width is not self._plain and width not in self._since_plain:
            width.base *= plain / width.beside
            width.spread *= plain / width.beside
            width.beside = plain
        return width

    def observe(self, width: int, n_cached: int, seconds: float) -> bool:
        """Learn from a pass; whether that changed much. Outliers (over 3 deviations) count only from the
        third in a row."""
        level = seconds - self.slope * width * n_cached
        if width not in self._widths:
            self._widths[width] = here = _Width(level, 0.1 * level, self._plain.base)
            self._since_plain.append(here)
            return True
        here = self._now(self._widths[width])
        deviation = abs(level - here.base)
        if here.seen >= 4 and deviation > 4.5 * here.spread + 0.02 * here.base:
            here.odd += 1
            if here.odd < 3:
                return False
            here.seen = 1  # the level has moved: learn quickly again
        here.odd = 0
        weight = max(SLOWEST_LEARNING, 1 / (here.seen + 1))
        before = here.base
        here.base += weight * (level - here.base)
        if here.base <= 0:  # the slope was taken off a pass that it did not fit
            here.base = 0.1 * before
        here.spread += weight * (min(deviation, here.base) - here.spread)
        here.seen += 1
        if width == 1:
            self._plain_moved()
        elif here not in self._since_plain:
            self._since_plain.append(here)
        return abs(here.base - before) > MUCH * before

    def _plain_moved(self) -> None:
        """Widths seen since the last plain pass go with this one; after a big shift all are seen anew."""
        plain = self._plain
        for width in self._since_plain:
            width.beside = plain.base
        self._since_plain.clear()
        if plain.seen >= 3 and not 1 / SHIFT < plain.base / self._reference < SHIFT:
            self._reference = plain.base
            self._doubtful = {**self._doubtful, **self.known()}
            self._widths = {1: plain}
            plain.seen = 1


def calibrate(
    run: Callable[[int], None],
    clock: Callable[[], float],
    widths: Sequence[int] = LADDER,
    seconds: float = CALIBRATION_SECONDS,
) -> dict[int, float]:
    """Time `run(n)`, one pass over n tokens, for the widths in turn until `seconds` are spent.

    Width 1 always. When time is left each width is timed again, and the quicker pass counts.
    """
    deadline = clock() + seconds
    found: dict[int, float] = {}
    order = [n for n in CALIBRATION if n in widths or n == 1]
    run(1)  # the first pass of all builds what the others reuse
    for n in [1, *order, *order]:
        expected = found.get(n) or max((t * n / m for m, t in found.items() if m < n), default=0.0)
        if found and clock() + expected > deadline:
            continue
        start = clock()
        run(n)
        elapsed = clock() - start
        found[n] = min(elapsed, found.get(n, elapsed))
    return found


class DraftCost:
    """Seconds of a source's guesses: `guess` for each, and `reading` what it has not seen yet.

    What is unseen is read by the pass that makes the first guess. That takes as many times a guess as a pass
    of the target over so many tokens takes plain ones, since both run on this machine, or in proportion to
    it. Whichever part made up most of what was observed learns.
    """

    def __init__(self, guess: float, passes: Mapping[int, float]) -> None:
        """`guess`: seconds. `passes`: by width, at least for 1, what passes of the target cost, in any unit;
        wider ones than those are taken to cost the same for each token."""
        self.guess = guess
        self._weight = 0.5
        self._dearer = 1.0  # of reading, against the target's passes
        self._more = [0.0]  # by tokens beyond the first: how many guesses longer their pass takes
        for width, cost in sorted(passes.items())[1:]:
            more = max(self._more[-1], cost / passes[1] - 1)
            self._more += [more] * (width - len(self._more))
        self._along: dict[int, list[float]] = {}  # what `along` said

    def reading(self, unseen: int) -> float:
        """Of reading `unseen` tokens, beyond a guess."""
        return self.guess * self._longer(unseen)

    def along(self, unseen: int, most: int) -> list[float]:
        """Of reading 0, 1, 2, ... tokens, `most` or more, along with `unseen` others; in guesses."""
        known = self._along.get(unseen)
        if known is None or len(known) <= most:
            here = self._longer(unseen)
            known = [self._longer(unseen + n) - here for n in range(most + 1)]
            if unseen < len(self._more):
                self._along[unseen] = known
        return known

    def _longer(self, unseen: int) -> float:
        """How many guesses longer the first pass takes with `unseen` tokens to read."""
        more = self._more
        if unseen <= len(more):
            return self._dearer * more[max(0, unseen - 1)]
        return self._dearer * ((1 + more[-1]) * unseen / len(more) - 1)

    def observe(self, guesses: int, reading: float, seconds: float) -> None:
        """Learn from a draft that made `guesses` passes; `reading`: what it was expected to read for."""
        guessing = guesses * self.guess
        if guessing >= reading and guesses:
            self.guess += self._weight * (max(0.2 * seconds, seconds - reading) / guesses - self.guess)
        elif reading > 0:
            self._dearer *= 1 + self._weight * (max(0.2 * seconds, seconds - guessing) / reading - 1)
            self._along = {}
        self._weight = max(0.1, 0.8 * self._weight)
