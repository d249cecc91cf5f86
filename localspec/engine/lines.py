"""Lines of guesses that could be checked, from one source or several, and which of them is worth most.

Pure arithmetic: chances and costs come in. A line's value in a pass of some width is the tokens it is
expected to emit, less what the pass takes at the rate at which tokens are emitted anyway.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul, neg

from localspec.engine.generate import joined
from localspec.engine.types import Proposal

HOPELESS = 0.05
"""Chance below which further guesses of a line are not looked at."""

Front = Sequence[tuple[int, float]]
"""(width, seconds) of the passes that may be chosen, ascending, width 1 first."""


@dataclass(slots=True)
class Line:
    """Guesses from the first on. `reach[k]`: the chance that the first k are right; `gain[k]`: how many of
    them are expected to be. `parts`: who guessed, and up to which guess."""

    proposal: Proposal = field(default_factory=Proposal)
    reach: list[float] = field(default_factory=lambda: [1.0])
    gain: list[float] = field(default_factory=lambda: [0.0])
    parts: list[tuple[str, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.gain) - 1

    def add(self, name: str, proposal: Proposal, rates: Sequence[float]) -> None:
        """Put the guesses of `proposal` behind the line, while they have any chance; `rates`: of each."""
        reach = list(accumulate(rates, mul, initial=self.reach[-1]))
        new = min(bisect_right(reach, -HOPELESS, key=neg), len(rates))  # up to the first that has none
        if not new:
            return
        self.reach += reach[1 : new + 1]
        self.gain += list(accumulate(reach[1 : new + 1], initial=self.gain[-1]))[1:]
        more = cut(proposal, new)
        self.proposal = joined(self.proposal, more) if self.proposal.tokens else more
        self.parts.append((name, len(self)))

    def first(self, length: int) -> Line:
        """Its first `length` guesses as a line."""
        parts = [(name, min(end, length)) for name, end in self.parts]
        return Line(
            cut(self.proposal, length),
            self.reach[: length + 1],
            self.gain[: length + 1],
            [part for i, part in enumerate(parts) if part[1] > (parts[i - 1][1] if i else 0)],
        )

    def likely(self) -> Line:
        """The part of it that is more likely right than not."""
        return self.first(
            next((k for k, chance in enumerate(self.reach) if chance < 0.5), len(self.reach)) - 1
        )

    @property
    def name(self) -> str:
        """Who guessed, in order: "ngram", "draft+ngram"."""
        return "+".join(name for name, _ in self.parts)


@dataclass(slots=True)
class Pick:
    """A way to take the next step: the first `kept` guesses of `line` in a pass of `width` tokens.

    `value`: in tokens.
    """

    value: float
    line: Line = field(default_factory=Line)
    kept: int = 0
    width: int = 1


def best_pick(lines: Iterable[Line], front: Front, rate: float, least: float) -> Pick:
    """The most valuable pick; a plain pass unless a line is worth `least` tokens more.

    `rate`: tokens a second.
    Example: rate 1, front [(1, 1.0), (2, 1.2)] and a line with gain [0, 0.5]: 1 + 0.5 - 1.2 = 0.3 tokens.
    """
    best = Pick(1 - rate * front[0][1] + least)
    for line in lines:
        longest, gain = len(line), line.gain
        if not longest:
            continue
        for width, seconds in front[1:]:
            kept = width - 1 if width <= longest else longest
            value = 1 + gain[kept] - rate * seconds
            if value > best.value:
                best = Pick(value, line, kept, width)
            if width > longest:
                break
    return best


def cut(proposal: Proposal, length: int) -> Proposal:
    """The first `length` guesses of a proposal."""
    dists = None if proposal.dists is None else proposal.dists[:length]
    return Proposal(proposal.tokens[:length], proposal.confidence[:length], dists)
