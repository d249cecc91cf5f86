"""The scheduler: at every step, which source guesses, and how much, or that nobody does.

The choice maximises expected tokens - rate * seconds, where the rate is what has lately been emitted per
second: the rule that makes tokens per second largest in the long run (renewal reward), where the best ratio
of each step alone would guess too little in bad phases. Expected tokens come from `chances`, seconds from
`cost`, and `ledger` refuses what could lose more than was promised. Knows sources by what they cost and what
they say of their guesses, never by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import numpy as np

from localspec.engine.cost import PassCosts
from localspec.engine.generate import MOST_GUESSES, proposal_of
from localspec.engine.ledger import SHARE, Ledger
from localspec.engine.lines import Front, Line, Pick, best_pick
from localspec.engine.sources import AGREED, ALONE, CONTRADICTED, Costly, Drafted, Free
from localspec.engine.types import Attempt, Guess, Proposal, Step

HORIZON = 0.995
"""How slowly the rate of tokens per second forgets, for each step."""
LEAST_GAIN = 0.01
"""Expected tokens by which guessing must beat a plain pass."""
REFRESH_FIRST, REFRESH = 4, 128
"""Steps after which a plain pass is due, so that the plain speed stays measured: soon in a session, where it
is only remembered, then four times as late each time."""
CATCH_UP = 16
"""Unseen tokens from which on reading them is a price to be decided on, not a cost of the step."""
READ_NOW = 0.25
"""Share of its unseen tokens that the next draft is charged for: what it reads serves later ones too."""
LONG_MATCH = 0.85
"""Confidence of a free source that wakes the costly ones: the text has begun to repeat."""
CAUTION = 0.7
"""How much dearer a loss counts the less may still be lost: to lose all means no guesses for a long time."""
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
TYPICAL_ANSWER = 256
"""Tokens an answer has, until answers have been seen."""

NOTHING_TO_COPY = "nothing to guess from"
COSTS_MORE = "guesses cost more than they save here"
MAKING_UP = "making up for guesses that lost"
MEASURING = "measuring the plain speed"
NOT_REPAID = "the rest of the answer would not repay what it takes to start"


@dataclass(slots=True)
class _Now:
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


class Scheduler:
    """The policy that guesses when it pays. One for a session.

    `drawn`: costly sources draw their guesses (rejection mode), which then may not be dropped for what they
    are. `wakes`: whether a token wakes the sources that lost (a code fence).
    """

    def __init__(
        self,
        costs: PassCosts,
        free: Sequence[Free],
        costly: Sequence[Costly],
        clock: Callable[[], float],
        *,
        drawn: bool = False,
        wakes: Callable[[int], bool] = lambda _: False,
        ledger: Ledger | None = None,
    ) -> None:
        self.costs, self.free, self.costly, self.clock = costs, free, costly, clock
        self.drawn, self.wakes = drawn, wakes
        self.ledger = ledger or Ledger()
        self._peek: Callable[[Sequence[int], int], Proposal] | None
        self._peek = getattr(free[0].drafter, "peek", None) if free else None
        self._tokens, self._seconds = 30.0, 30.0 * costs.plain(0)  # of late; their ratio is the rate
        self._looking = 0.0  # seconds a step takes that only looks
        self._said: list[tuple[Free, Proposal]] = []
        self._drafted: tuple[Costly, Drafted] | None = None
        self._outlooks: dict[int, tuple[int, int, float]] = {}  # steps left, widest pass, value
        self._refresh, self._until_plain = REFRESH_FIRST, 0  # the first pass of a session measures
        self._answered, self._answers, self._turn = float(TYPICAL_ANSWER), 1, 0

    @property
    def rate(self) -> float:
        """Tokens per second of late."""
        return self._tokens / self._seconds

    def begin(self, context: Sequence[int]) -> None:
        if self._turn:
            self._answered, self._answers = self._answered + self._turn, self._answers + 1
            self._turn = 0
        self._said, self._drafted = [], None
        for source in self.free:
            source.drafter.begin(context)
        for costly in self.costly:
            costly.begin(context)

    def plain(self, n_cached: int) -> float:
        return self.costs.plain(n_cached)

    def draft(self, context: Sequence[int], room: int) -> Attempt:
        self._said, self._drafted = [], None
        if room < 1:
            return Attempt()
        if self._until_plain <= 0:
            return Attempt(why=MEASURING)
        plain = self.costs.plain(len(context) - 1)
        left = (self.ledger.allowance - self.ledger.balance) * plain - self._looking
        if left < 0 and self._looking > SHARE * plain:  # even to look costs more than may be lost
            return Attempt(why=MAKING_UP)
        front, losses = self._front(len(context) - 1, plain, left, min(room, MOST_GUESSES))
        if len(front) == 1:
            return Attempt(why=MAKING_UP)
        now = _Now(context, room, plain, left, self.rate, front, losses, [], [])
        self._look(now)
        pick = best_pick(now.lines, front, now.rate, LEAST_GAIN)
        seconds_open = self._open(now)
        for costly in self.costly:
            start = self._start(costly, now, pick) if costly.opened else None
            if start is not None:
                pick = self._compute(costly, now, start)
                break
        if not pick.kept:
            said_something = bool(now.lines or self._drafted)
            return Attempt(seconds_open=seconds_open, why=COSTS_MORE if said_something else NOTHING_TO_COPY)
        line = pick.line.first(pick.kept)
        return Attempt(line.name, line.proposal, pick.width, seconds_open)

    def _front(self, n_cached: int, plain: float, left: float, room: int) -> tuple[Front, list[float]]:
        """The passes that fit and whose worst case may be lost, their seconds weighed by the risk; and what
        each of them may lose."""
        front, losses = [(1, plain)], [0.0]
        for width, seconds in self.costs.front(n_cached):
            loss = self.costs.worst(width, n_cached) - plain
            if 1 < width <= room + 1 and loss <= left:
                risk = CAUTION * (seconds - plain) ** 2 / max(left, 0.1 * plain)
                front.append((width, seconds + risk))
                losses.append(loss)
        return front, losses

    def _look(self, now: _Now) -> None:
        """Ask every free source."""
        for source in self.free:
            proposal = source.drafter.propose(now.context, now.widest - 1, _always)
            if proposal.tokens:
                line = Line()
                line.add(source.drafter.name, proposal, source.chances.rates(proposal.confidence))
                now.lines.append(line)
                now.said.append((source, proposal))
        self._said = now.said

    def _start(self, costly: Costly, now: _Now, pick: Pick) -> Line | None:
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

    def _from_here(self, costly: Costly, now: _Now) -> float:
        """`_alone` behind nothing, worked out anew every few steps: it changes slowly, and takes long."""
        age, widest, value = self._outlooks.get(id(costly), (0, 0, 0.0))
        if age == 0 or widest != now.widest:
            age, value = OUTLOOK_LASTS, self._alone(costly, now, Line(), 1 - now.rate * now.plain)
        self._outlooks[id(costly)] = age - 1, now.widest, value
        return value

    def _alone(self, costly: Costly, now: _Now, line: Line, otherwise: float) -> float:
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

    def _compute(self, costly: Costly, now: _Now, line: Line) -> Pick:
        """Let a costly source go on behind `line` while another guess pays, and a free one behind that."""
        tokens, guesses, kinds, rates = list(line.proposal.tokens), list[Guess](), list[str](), list[float]()
        unseen = costly.drafter.unseen(now.context) + len(line)
        tail = now.lines[0].proposal if now.lines and not tokens else self._tail(tokens, now)
        reach, ahead, read, saved = line.reach[-1], 0, 0, 0
        started = self.clock()

        def suggest(_guessed: Sequence[int]) -> Sequence[int]:
            nonlocal ahead, read
            ahead = self._worth_reading(costly, tail)
            read += ahead
            return tail.tokens[:ahead]

        for guess in costly.drafter.follow(now.context, line.proposal.tokens, suggest):
            kind = ALONE if not tail.tokens else AGREED if tail.tokens[0] == guess.token else CONTRADICTED
            guesses.append(guess)
            kinds.append(kind)
            tokens.append(guess.token)
            rates.append(costly.rate(guess.confidence, kind))
            reach *= rates[-1]
            tail = self._tail(tokens, now)
            if kind == AGREED and ahead and len(tokens) + 1 < now.widest:
                ahead, saved = ahead - 1, saved + 1
                continue  # the next one needs no pass of its own
            spent = self.clock() - started + costly.cost.guess
            if len(tokens) + 1 >= now.widest or spent + self._loss(now, len(tokens) + 2) > now.left:
                break
            if not self._goes_on(costly, now, len(tokens) + 1, reach, guess.confidence, tail):
                break
        spent = self.clock() - started
        costly.cost.observe(len(guesses) - saved, unseen + read, spent)
        costly.idle = 0
        proposal = proposal_of(guesses)
        self._drafted = costly, Drafted(tuple(line.proposal.tokens), proposal, kinds)
        whole = line.first(len(line))
        if self.drawn:
            return self._submit(now, whole, costly.drafter.name, proposal)
        whole.add(costly.drafter.name, proposal, rates)
        if tail.tokens and len(whole) == len(tokens):
            source = self.free[0]
            whole.add(source.drafter.name, tail, source.chances.rates(tail.confidence))
        front = [
            f for f, loss in zip(now.front, now.losses, strict=True) if not loss or spent + loss <= now.left
        ]
        return best_pick([whole], front, now.rate, 0.0)

    def _worth_reading(self, costly: Costly, tail: Proposal) -> int:
        """How many guesses of a free source to read along: while that is cheaper than passes of their own."""
        chance, count = 1.0, 0
        for rate in self.free[0].chances.rates(tail.confidence) if tail.tokens else ():
            chance *= rate
            if chance * costly.cost.guess < READ_ALONG * costly.cost.read:
                break
            count += 1
        return count

    def _submit(self, now: _Now, line: Line, name: str, drawn: Proposal) -> Pick:
        """All of a draft that was drawn: to drop a guess for what it is would bias the text."""
        line.add(name, drawn, [1.0] * len(drawn.tokens))
        size = len(line) + 1
        width = next((width for width, _ in now.front if width >= size), size)
        return Pick(0.0, line, len(line), width)

    def _loss(self, now: _Now, size: int) -> float:
        """Seconds beyond a plain pass that one over `size` tokens may take."""
        for (width, _), loss in zip(now.front, now.losses, strict=True):
            if width >= size:
                return loss
        return self.costs.worst(size, len(now.context) - 1) - now.plain

    def _tail(self, tokens: Sequence[int], now: _Now) -> Proposal:
        """What the first free source would guess behind `tokens`, if it can tell."""
        room = min(now.widest - 1 - len(tokens), TAIL)
        return self._peek(tokens, room) if self._peek and room > 0 else Proposal()

    def _goes_on(
        self, costly: Costly, now: _Now, size: int, reach: float, confidence: float, tail: Proposal
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

    def _open(self, now: _Now) -> float:
        """Open the costly sources that will probably repay it twice before the answer ends; seconds spent."""
        spent = 0.0
        for costly in self.costly:
            if costly.opened:
                continue
            unseen = costly.drafter.unseen(now.context)
            price = costly.drafter.seconds_to_load + (unseen if unseen > CATCH_UP else 0) * costly.cost.read
            expected = max(self._turn, self._answered / self._answers - self._turn)
            if price and min(now.room + 1, expected) * self._saves(costly, now) <= 2 * price:
                costly.why = NOT_REPAID
                continue
            if price:
                start = self.clock()
                costly.drafter.open(now.context)
                spent += self.clock() - start
            costly.opened, costly.why = True, ""
        return spent

    def _saves(self, costly: Costly, now: _Now) -> float:
        """Seconds a token that the source is expected to save against what is reached of late."""
        gain = costly.outlook.mean()
        best = max(
            (1 + gain[width - 1]) / (seconds + (width - 1) * costly.cost.guess)
            for width, seconds in now.front[1:]
        )
        return 1 / now.rate - 1 / best

    def learn(self, step: Step, n_cached: int) -> None:
        self.costs.observe(step.width, n_cached, step.seconds_verify + step.seconds_host)
        tokens = len(step.tokens)
        self.ledger.add(step.seconds / self.costs.plain(n_cached), tokens)
        self._tokens = HORIZON * self._tokens + tokens
        self._seconds = HORIZON * self._seconds + step.seconds
        self._turn += tokens
        self._until_plain -= 1
        if step.width == 1:
            self._refresh = min(4 * self._refresh, REFRESH) if self._until_plain < 0 else self._refresh
            self._until_plain = self._refresh
        if self._drafted is None:
            self._looking += 0.1 * (step.seconds_draft - self._looking)
        for source, proposal in self._said:
            source.learn(proposal, step.tokens)
        for costly in self.costly:
            costly.idle += 1
        if self._drafted:
            costly, drafted = self._drafted
            costly.learn(drafted, self._said[0][1] if self._said else Proposal(), step.tokens)
        self._wake(step.tokens)

    def _wake(self, tokens: Iterable[int]) -> None:
        """Give costly sources another chance where the text has changed its kind."""
        repeats = any(proposal.confidence[0] >= LONG_MATCH for _, proposal in self._said)
        if self.costly and (repeats or any(map(self.wakes, tokens))):
            for costly in self.costly:
                costly.rearm()


def _confirmed(line: Line, now: _Now) -> float:
    """What a line is worth whose first guess another source makes too."""
    factor = CONFIRMED / line.reach[1]
    return max(
        1 + factor * line.gain[min(width - 1, len(line))] - now.rate * seconds
        for width, seconds in now.front[1:]
    )


def _always(_confidence: float) -> bool:
    return True
