"""Lines of guesses that could be checked, from one source or several, and which of them is worth most.

Pure arithmetic: chances and costs come in. A line's value in a pass of some width is the tokens it is
expected to emit, less what the pass takes at the rate at which tokens are emitted anyway.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from localspec.engine.generate import joined
from localspec.engine.types import Proposal

FIRST_WRONG = 0.3
"""How often the first guess is wrong, where that is not known."""
HOPELESS = 0.05
"""Chance below which further guesses of a line are not looked at."""
NOTHING = Proposal()


Priced = tuple[int, float, float, float]
"""A pass: width, price, seconds beyond a plain pass that it may take, risk."""


@dataclass(slots=True)
class Passes:
    """The passes to choose from, with prices that hold for a few steps.

    `rate`: tokens a second; `plain`: what a pass over one token costs, in tokens at that rate; `wider`: the
    others that may be chosen, ascending. The risk is what a price is higher by if nothing turns out right;
    the share FIRST_WRONG of it is in there. `left`, `room`: seconds that might be lost, and guesses there was
    room for, when they were priced; `cheapest`: seconds of the cheapest pass that holds a guess, whether or
    not it may be chosen, or 0; `lasts`: steps for which this still holds; `most`: seconds beyond a plain pass
    that any may take.
    """

    rate: float = 0.0
    plain: float = 0.0
    wider: list[Priced] = field(default_factory=list)
    left: float = 0.0
    room: int = 0
    cheapest: float = 0.0
    lasts: int = 0
    most: float = field(init=False)
    _widths: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._widths = [width for width, *_ in self.wider]
        self.most = max((loss for _, _, loss, _ in self.wider), default=0.0)

    def widest(self, room: int) -> int:
        """Width of the widest one that checks at most `room` guesses."""
        place = bisect_right(self._widths, room + 1)
        return self._widths[place - 1] if place else 1

    def for_line(self, size: int, room: int) -> list[Priced]:
        """Those worth looking at for `size` tokens, where there is room for `room` guesses: descending, from
        the narrowest that holds them all."""
        widths = self._widths
        most = min(bisect_left(widths, size) + 1, bisect_right(widths, room + 1))
        return self.wider[most - 1 :: -1] if most else []

    def holding(self, size: int) -> int:
        """Width of the pass that would take `size` tokens."""
        place = bisect_left(self._widths, size)
        return self._widths[place] if place < len(self._widths) else size

    def loss(self, size: int) -> float:
        """Seconds beyond a plain pass that one over `size` tokens may take; endless if there is none."""
        place = bisect_left(self._widths, size)
        return self.wider[place][2] if place < len(self._widths) else math.inf

    def beyond(self, size: int, dropped: float) -> tuple[float, list[Priced]]:
        """What it costs to stop at `size` tokens, by a pass or, if that is less, by dropping them for
        `dropped`; and the passes that take more, ascending."""
        place, wider = bisect_left(self._widths, size), self.wider
        width, price, _, _ = wider[place]
        return price if price < dropped else dropped, wider[place + (width == size) :]


class Line:
    """Guesses from the first on. `reach[k]`: the chance that the first k are right; `gain[k]`: how many of
    them are expected to be. `parts`: who guessed, and how many guesses come before theirs."""

    __slots__ = ("gain", "parts", "proposal", "reach")

    def __init__(self) -> None:
        self.proposal = NOTHING
        self.reach, self.gain = [1.0], [0.0]
        self.parts: list[tuple[str, int]] = []

    def __len__(self) -> int:
        return len(self.gain) - 1

    def add(self, name: str, proposal: Proposal, rates: Iterable[float]) -> None:
        """Put the guesses of `proposal` behind the line, while they have any chance; `rates`: of each."""
        reach, gains = self.reach, self.gain
        before, chance, gain = len(gains) - 1, reach[-1], gains[-1]
        if chance < HOPELESS:
            return
        for rate in rates:
            chance *= rate
            gain += chance
            reach.append(chance)
            gains.append(gain)
            if chance < HOPELESS:
                break
        if new := len(gains) - 1 - before:
            more = cut(proposal, new)
            self.proposal = joined(self.proposal, more) if before else more
            self.parts.append((name, before))

    def name(self, length: int) -> str:
        """Who made its first `length` guesses, in order: "ngram", "draft+ngram"."""
        parts = self.parts
        return parts[0][0] if len(parts) == 1 else "+".join([name for name, at in parts if at < length])


EMPTY = Line()


@dataclass(slots=True)
class Pick:
    """A way to take the next step: the first `kept` guesses of `line` in a pass of `width` tokens.

    `value`: in tokens, at the rate of late.
    """

    value: float
    line: Line = EMPTY
    kept: int = 0
    width: int = 1


def best_pick(lines: Sequence[Line], passes: Passes, room: int, left: float, least: float) -> Pick:
    """The most valuable pick of at most `room` + 1 tokens that loses at most `left` seconds; a plain pass
    unless a line is worth `least` tokens more.

    Where a line promises more tokens a second than there were of late, as within a long copy, time is worth
    that much more: the passes that follow will be as quick.
    Example: a plain pass for 1 token, one over 2 for 1.6, a line with gain [0, 0.5]: 1 + 0.5 - 1.6 = -0.1.
    """
    worth, seen = 1.0, []  # what time is worth against the rate of late
    for line in lines:
        gain = line.gain
        wrong = 1 - gain[min(1, len(gain) - 1)] - FIRST_WRONG
        fitting = passes.for_line(len(gain), room)
        if not fitting:
            continue
        _, usual, _, risk = fitting[-1]
        cheapest = usual + risk * wrong
        seen.append((line, gain, wrong, cheapest, fitting))
        for width, usual, _, risk in fitting:
            tokens = 1 + (gain[width - 1] if width <= len(gain) else gain[-1])
            if tokens <= worth * cheapest:  # nor can any narrower one be quicker
                break
            if tokens > worth * (cost := usual + risk * wrong):
                worth = tokens / cost
    best, chosen, size, spent = 1 - worth * passes.plain + least, EMPTY, 1, passes.plain
    for line, gain, wrong, cheapest, fitting in seen:
        for width, usual, loss, risk in fitting:
            tokens = 1 + (gain[width - 1] if width <= len(gain) else gain[-1])
            if tokens - worth * cheapest <= best:  # nor can any narrower one be better
                break
            cost = usual + risk * wrong
            if tokens - worth * cost > best and loss <= left:
                best, chosen, size, spent = tokens - worth * cost, line, width, cost
    return Pick(best + (worth - 1) * spent, chosen, min(size, len(chosen.gain)) - 1, size)


def cut(proposal: Proposal, length: int) -> Proposal:
    """The first `length` guesses of a proposal."""
    if length >= len(proposal.tokens):
        return proposal
    dists = None if proposal.dists is None else proposal.dists[:length]
    return Proposal(proposal.tokens[:length], proposal.confidence[:length], dists)
