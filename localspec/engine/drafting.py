"""Letting a costly source guess: whether and from where, how long it goes on, and what of it to check.

It may go on behind guesses of a free source (an index of the text), and a free source behind its own. What
the free source would say is read along in the passes of the costly one, and tells how far to believe it: two
sources seldom make the same mistake. Decides by expected values; knows neither the ledger's rule nor how
costs are learnt, only what may be lost at this step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

import numpy as np

from localspec.engine.cost import PassCosts
from localspec.engine.generate import proposal_of
from localspec.engine.lines import Front, Line, Pick, best_pick
from localspec.engine.sources import AGREED, ALONE, CONTRADICTED, Costly, Drafted, Free
from localspec.engine.types import Guess, Proposal

READ_NOW = 0.25
"""Share of its unseen tokens that the next draft is charged for: what it reads serves later ones too."""
CONFIRMED, STILL_RIGHT = 0.95, 0.97
"""How often a guess is right that two sources make, to begin with and behind others that were."""
OUTLOOK_LASTS = 8
"""Steps for which the value of asking a costly source is taken to be the same."""
READ_ALONG = 2.0
"""How much cheaper it must be to read a guess of another source along than to make it."""
TAIL = 31
"""Guesses of a free source looked at behind those of a costly one."""
SECOND = 0.6
"""How well a costly source does, against its usual, where a free one is wrong."""


@dataclass(slots=True)
class Now:
    """The step to be decided. `room`: guesses that the answer has room for; `plain`: seconds of a plain
    pass; `left`: seconds that may be lost; `rate`: tokens per second; `front`: the passes to choose from;
    `losses`: seconds each of them may lose; `said` and `lines`: what the free sources guess."""

    context: Sequence[int]
    room: int
    plain: float
    left: float
    rate: float
    front: Front
    losses: Sequence[float]
    said: list[tuple[Free, Proposal]]
    lines: list[Line]

    @property
    def widest(self) -> int:
        return self.front[-1][0]


@dataclass(slots=True)
class Made:
    """A draft in the making. `tokens`: all guesses so far, of others too; `reach`: the chance that all are
    right; `guesses`, `kinds`, `rates`: those of the costly source, what the free one said of each, and their
    chances; `tail`: what the free source would say next, of which `ahead` guesses are being read along;
    `read`: how many were in all, which has `saved` passes.
    """

    tokens: list[int]
    reach: float
    guesses: list[Guess] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    tail: Proposal = field(default_factory=Proposal)
    ahead: int = 0
    read: int = 0
    saved: int = 0

    def kind_of(self, guess: Guess) -> str:
        """What the free source says of it."""
        if not self.tail.tokens:
            return ALONE
        return AGREED if self.tail.tokens[0] == guess.token else CONTRADICTED

    def add(self, guess: Guess, kind: str, rate: float) -> None:
        self.tokens.append(guess.token)
        self.guesses.append(guess)
        self.kinds.append(kind)
        self.rates.append(rate)
        self.reach *= rate


class Drafting:
    """The part of the scheduler that asks costly sources. `drawn` as there."""

    def __init__(
        self, costs: PassCosts, free: Sequence[Free], clock: Callable[[], float], *, drawn: bool
    ) -> None:
        self.costs, self.free, self.clock, self.drawn = costs, free, clock, drawn
        self._peek: Callable[[Sequence[int], int], Proposal] | None
        self._peek = getattr(free[0].drafter, "peek", None) if free else None

    def start(self, costly: Costly, now: Now, pick: Pick) -> Line | None:
        """From where `costly` should guess: the likely part of a line, or the empty one. None: not at all."""
        unseen = costly.drafter.unseen(now.context)
        if costly.cost.seconds(1, unseen) + self._loss(now, 2) > now.left:
            return None
        read = 1 + (unseen - 1) * READ_NOW
        expected = self._from_here(costly, now)
        if now.lines:
            agree = costly.agreement(now.lines[0].proposal.confidence[0])
            confirmed = max(_confirmed(now.lines[0], now), pick.value)
            expected = agree * confirmed + (1 - agree) * expected
        best, start = pick.value, None
        if expected - now.rate * costly.cost.seconds(1, read) > best:
            best, start = expected - now.rate * costly.cost.seconds(1, read), Line()
        for line in [line.likely() for line in now.lines if line.reach[1] >= 0.5]:
            value = self._alone(costly, now, line, pick.value)
            value -= now.rate * costly.cost.seconds(1, read + len(line))
            if value > best:
                best, start = value, line
        return Line() if start is None and costly.probe_is_due() else start

    def _from_here(self, costly: Costly, now: Now) -> float:
        """`_alone` behind nothing, worked out anew every few steps: it changes slowly, and takes long."""
        steps, widest, value = costly.valued
        if steps == 0 or widest != now.widest:
            steps, value = OUTLOOK_LASTS, self._alone(costly, now, Line(), 1 - now.rate * now.plain)
        costly.valued = steps - 1, now.widest, value
        return value

    def _alone(self, costly: Costly, now: Now, line: Line, otherwise: float) -> float:
        """What guesses of `costly` behind `line` are worth, when what the first one says decides how many it
        makes, and nothing it says can make things worse than `otherwise`."""
        kept, guess = len(line), now.rate * costly.cost.guess
        behind = [(width - 1 - kept, now.rate * seconds) for width, seconds in now.front if width > kept + 1]
        if not behind:
            return otherwise
        guesses = [n for n, _ in behind]
        price = np.array([seconds + guess * (n - 1) for n, seconds in behind])
        gains = costly.outlook.gains()[:, guesses]
        value = (line.reach[-1] * gains - price).max(axis=1)
        value += 1 + line.gain[-1]
        return float(costly.outlook.shares @ (value if self.drawn else np.maximum(value, otherwise)))

    def compute(self, costly: Costly, now: Now, line: Line) -> tuple[Pick, Drafted]:
        """Let a costly source go on behind `line`, and a free one behind that: what of it is worth checking,
        and what there is to learn from."""
        unseen = costly.drafter.unseen(now.context) + len(line)
        started = self.clock()
        made = self._guess(costly, now, line, started)
        spent = self.clock() - started
        costly.cost.observe(len(made.guesses) - made.saved, unseen + made.read, spent)
        costly.idle = 0
        proposal = proposal_of(made.guesses)
        drafted = Drafted(tuple(line.proposal.tokens), proposal, made.kinds)
        whole = line.first(len(line))
        if self.drawn:
            return self._submit(now, whole, costly.drafter.name, proposal), drafted
        whole.add(costly.drafter.name, proposal, made.rates)
        if made.tail.tokens and len(whole) == len(made.tokens):
            source = self.free[0]
            whole.add(source.drafter.name, made.tail, source.chances.rates(made.tail.confidence))
        front = [
            f for f, loss in zip(now.front, now.losses, strict=True) if not loss or spent + loss <= now.left
        ]
        return best_pick([whole], front, now.rate, 0.0), drafted

    def _guess(self, costly: Costly, now: Now, line: Line, started: float) -> Made:
        """Guesses of `costly` behind `line` while another one pays; what a free source says is read along."""
        made = Made(list(line.proposal.tokens), line.reach[-1])
        made.tail = now.lines[0].proposal if now.lines and not len(line) else self._tail(made.tokens, now)

        def suggest(_guessed: Sequence[int]) -> Sequence[int]:
            spare = now.left - self._loss(now, len(made.tokens) + 2) - (self.clock() - started)
            made.ahead = self._worth_reading(costly, made.tail, spare)
            made.read += made.ahead
            return made.tail.tokens[: made.ahead]

        for guess in costly.drafter.follow(now.context, line.proposal.tokens, suggest):
            kind = made.kind_of(guess)
            made.add(guess, kind, costly.rate(guess.confidence, kind))
            made.tail = self._tail(made.tokens, now)
            size, free = len(made.tokens) + 1, kind == AGREED and made.ahead > 0
            spent = self.clock() - started + (0.0 if free else costly.cost.guess)
            if size >= now.widest or spent + self._loss(now, size + 1) > now.left:
                break
            if free:  # the next one needs no pass of its own
                made.ahead, made.saved = made.ahead - 1, made.saved + 1
            elif not self._goes_on(costly, now, size, made.reach, guess.confidence, made.tail):
                break
        return made

    def _worth_reading(self, costly: Costly, tail: Proposal, spare: float) -> int:
        """How many guesses of a free source to read along in `spare` seconds at most: while that is cheaper
        than passes of their own."""
        chance, read = 1.0, costly.cost.read
        most = len(tail.tokens) if read <= 0 else int(max(0.0, spare) / read)
        for count, rate in enumerate(self.free[0].chances.rates(tail.confidence) if tail.tokens else ()):
            chance *= rate
            if count >= most or chance * costly.cost.guess < READ_ALONG * read:
                return count
        return len(tail.tokens)

    def _submit(self, now: Now, line: Line, name: str, drawn: Proposal) -> Pick:
        """All of a draft that was drawn: to drop a guess for what it is would bias the text."""
        line.add(name, drawn, [1.0] * len(drawn.tokens))
        size = len(line) + 1
        width = next((width for width, _ in now.front if width >= size), size)
        return Pick(0.0, line, len(line), width)

    def _loss(self, now: Now, size: int) -> float:
        """Seconds beyond a plain pass that one over `size` tokens may take."""
        for (width, _), loss in zip(now.front, now.losses, strict=True):
            if width >= size:
                return loss
        return self.costs.worst(size, len(now.context) - 1) - now.plain

    def _tail(self, tokens: Sequence[int], now: Now) -> Proposal:
        """What the first free source would guess behind `tokens`, if it can tell."""
        room = min(now.widest - 1 - len(tokens), TAIL)
        return self._peek(tokens, room) if self._peek and room > 0 else Proposal()

    def _goes_on(
        self, costly: Costly, now: Now, size: int, reach: float, confidence: float, tail: Proposal
    ) -> bool:
        """Whether one more guess pays behind those that make a pass of `size` tokens."""
        guess = now.rate * costly.cost.guess
        if tail.tokens:
            doubt = 1 - self.free[0].chances.rate(tail.confidence[0])
            if doubt * reach * SECOND * costly.outlook.mean()[-1] <= guess:  # it could not gain enough
                return False
        behind = [(width - size, now.rate * seconds) for width, seconds in now.front if width >= size]
        if tail.tokens:
            return self._second_opinion(costly, behind, reach, guess, tail)
        usual = costly.outlook.after(confidence)
        expected, ahead, done = 0.0, reach, 0
        for guesses, price in behind:
            while done < guesses:
                ahead *= usual
                expected += ahead
                done += 1
            if guesses and expected > price - behind[0][1] + guess * guesses:
                return True
        return False

    def _second_opinion(
        self, costly: Costly, behind: Front, reach: float, guess: float, tail: Proposal
    ) -> bool:
        """Whether a guess of `costly` pays where a free source knows how to go on: as a check of the latter.

        `behind`: further guesses that fit, with the price of the pass in tokens; `guess`: that of a guess.
        """
        rates = self.free[0].chances.rates(tail.confidence[: behind[-1][0]])
        gain = [0.0, *accumulate(accumulate(rates, mul))]
        longest, other = len(rates), costly.outlook.mean()
        stop = agreed = contradicted = -behind[0][1]
        for guesses, price in behind[1:] if not behind[0][0] else behind:
            right = reach * gain[guesses if guesses < longest else longest]
            stop = max(stop, right - price)
            agreed = max(agreed, STILL_RIGHT * right / gain[1] - price)
            instead = reach * SECOND * other[guesses] - guess * (guesses - 1) - price
            contradicted = max(contradicted, instead)
            if guesses > longest and price - behind[0][1] > reach * other[-1]:
                break
        return bool(gain[1] * agreed + (1 - gain[1]) * contradicted - guess > stop)


def _confirmed(line: Line, now: Now) -> float:
    """What a line is worth whose first guess another source makes too."""
    factor = CONFIRMED / line.reach[1]
    return max(
        1 + factor * line.gain[min(width - 1, len(line))] - now.rate * seconds
        for width, seconds in now.front[1:]
    )
