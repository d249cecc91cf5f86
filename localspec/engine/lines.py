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


@dataclass(slots=True)
class Passes:
    """The passes to choose from, with prices that hold for a few steps.

    `rate`: tokens a second; `plain`: what a pass over one token costs, in tokens at that rate; `wider`: the
    others that may be chosen, as (width, price, seconds beyond a plain pass that it may take, risk),
    ascending. The risk is what a price is higher by if nothing turns out right; the share FIRST_WRONG of it
    is in there. `left`, `room`: seconds that might be lost, and guesses there was room for, when they were
    priced; `cheapest`: seconds of the cheapest pass that holds a guess, whether or not it may be chosen, or
    0; `lasts`: steps for which this still holds; `most`: seconds beyond a plain pass that any may take.
    """

    rate: float = 0.0
    plain: float = 0.0
    wider: list[tuple[int, float, float, float]] = field(default_factory=list)
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

    def holding(self, size: int) -> int:
        """Width of the pass that would take `size` tokens."""
        place = bisect_left(self._widths, size)
        return self._widths[place] if place < len(self._widths) else size

    def loss(self, size: int) -> float:
        """Seconds beyond a plain pass that one over `size` tokens may take; endless if there is none."""
        place = bisect_left(self._widths, size)
        return self.wider[place][2] if place < len(self._widths) else math.inf

    def beyond(self, size: int) -> tuple[float, list[tuple[int, float, float, float]]]:
        """Price of the pass that would take `size` tokens, and those that take more, ascending."""
        place = bisect_left(self._widths, size)
        here = self.wider[place]
        return here[1], self.wider[place + (here[0] == size) :]


class Line:
    """Guesses from the first on. `reach[k]`: the chance that the first k are right; `gain[k]`: how many of
    them are expected to be. `parts`: who guessed, and how many guesses come before theirs."""

    __slots__ = ("gain", "parts", "proposal", "reach")

    def __init__(self) -> None:
        self.proposal = Proposal()
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
    seen = []
    for line in lines:
        gain = line.gain
        longest = len(gain) - 1
        seen.append((line, gain, longest, 1 + gain[-1], 1 - gain[min(1, longest)] - FIRST_WRONG))
    worth = 1.0  # what time is worth against the rate of late
    for _, gain, longest, whole, wrong in seen:
        for width, usual, _, risk in passes.wider:
            cost = usual + risk * wrong
            if width > room + 1 or whole <= worth * cost:  # nor can any wider one be quicker
                break
            tokens = 1 + gain[width - 1] if width <= longest else whole
            if tokens > worth * cost:
                worth = tokens / cost
    best, chosen, size, spent = 1 - worth * passes.plain + least, EMPTY, 1, passes.plain
    for line, gain, longest, whole, wrong in seen:
        for width, usual, loss, risk in passes.wider:
            cost = usual + risk * wrong
            price = worth * cost
            if width > room + 1 or whole - price <= best:  # nor can any wider one be better
                break
            value = 1 + gain[width - 1] - price if width <= longest else whole - price
            if value > best and loss <= left:
                best, chosen, size, spent = value, line, width, cost
    return Pick(best + (worth - 1) * spent, chosen, min(size, len(chosen.gain)) - 1, size)


def cut(proposal: Proposal, length: int) -> Proposal:
    """The first `length` guesses of a proposal."""
    if length >= len(proposal.tokens):
        return proposal
    dists = None if proposal.dists is None else proposal.dists[:length]
    return Proposal(proposal.tokens[:length], proposal.confidence[:length], dists)
