"""The scheduler: at every step, which source guesses, and how much, or that nobody does.

The choice maximises expected tokens - rate * seconds, where the rate is what has lately been emitted per
second: the rule that makes tokens per second largest in the long run (renewal reward), where the best ratio
of each step alone would guess too little in bad phases. Expected tokens come from `chances`, seconds from
`cost`, and `ledger` refuses what could lose more than was promised. Knows sources by what they cost and what
they say of their guesses, never by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from localspec.engine.chances import Chances, RunningRate
from localspec.engine.cost import DraftCost, PassCosts
from localspec.engine.generate import WIDEST_PASS, joined
from localspec.engine.ledger import SHARE, Ledger
from localspec.engine.types import Attempt, Drafter, Proposal, Sequential, Step

HORIZON = 0.995
"""How slowly the rate of tokens per second forgets, for each step."""
LEAST_GAIN = 0.01
"""Expected tokens by which guessing must beat a plain pass."""
HOPELESS = 0.02
"""Chance below which a free source's further guesses are not even looked at."""
REFRESH = 128
"""Steps after which a plain pass is due, so that the plain speed stays measured."""
PROBE_AFTER, PROBE_LATEST = 24, 512
"""Steps after which an unused source is tried again, doubling each time that it loses."""
CATCH_UP = 16
"""Unseen tokens from which on reading them is a price to be decided on, not a cost of the step."""
LONG_MATCH = 0.85
"""Confidence of a free source that wakes the others: the text has begun to repeat."""
TYPICAL_ANSWER = 256
"""Tokens an answer has, until answers have been seen."""

NOTHING_TO_COPY = "nothing to guess from"
COSTS_MORE = "guesses cost more than they save here"
MAKING_UP = "making up for guesses that lost"
MEASURING = "measuring the plain speed"


@dataclass(slots=True)
class Free:
    """A source whose guesses cost no more than looking: asked at every step, taken when it pays."""

    drafter: Drafter
    chances: Chances = field(default_factory=Chances)


@dataclass(slots=True)
class Costly:
    """A source that computes its guesses one after another.

    `right`: how often its next guess is right, before it is made, after a draft that was kept whole, in
    part, not at all. `idle`: steps since it last guessed.
    """

    drafter: Sequential
    cost: DraftCost
    chances: Chances = field(default_factory=Chances)
    prior: float = 0.7
    right: list[RunningRate] = field(init=False)
    state: int = field(default=0, init=False)
    idle: int = field(default=0, init=False)
    probe_after: int = field(default=PROBE_AFTER, init=False)
    opened: bool = field(default=False, init=False)
    why: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.right = [RunningRate(self.prior) for _ in range(3)]

    def rearm(self) -> None:
        """Something happened after which it may do better."""
        self.probe_after = PROBE_AFTER


@dataclass(slots=True)
class _Option:
    """A way to take the next step: `value` in tokens; the first `kept` guesses of `first`, then of `then`."""

    value: float
    width: int = 1
    first: int = -1  # which free source
    kept: int = 0
    then: Costly | None = None


@dataclass(slots=True)
class _Look:
    """A free source's proposal at this step: `reach[k]` the chance that k guesses are right, `gain[k]` the
    expected number of right ones among k."""

    source: Free
    proposal: Proposal
    reach: list[float]
    gain: list[float]


class Scheduler:
    """The policy that guesses when it pays. One for a session.

    `drawn`: costly sources draw their guesses (rejection mode), which then may not be dropped for what they
    are. `wakes`: whether a token re-arms the sources that lost (a code fence).
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
        plain = costs.plain(0)
        self._tokens, self._seconds = 30.0, 30.0 * plain  # of late; their ratio is the rate
        self._looking = 0.0  # seconds a step takes that only looks
        self._looks: list[_Look] = []
        self._drafted: tuple[Costly, int, Proposal, int, float] | None = None
        self._until_plain = 0  # the first pass of a session measures
        self._answered, self._answers, self._turn = float(TYPICAL_ANSWER), 1, 0

    @property
    def rate(self) -> float:
        """Tokens per second of late."""
        return self._tokens / self._seconds

    def begin(self, context: Sequence[int]) -> None:
        if self._turn:
            self._answered += self._turn
            self._answers += 1
            self._turn = 0
        self._looks, self._drafted = [], None
        for source in self.free:
            source.drafter.begin(context)
        for costly in self.costly:
            costly.drafter.begin(context)
            costly.rearm()
            costly.opened = False

    def plain(self, n_cached: int) -> float:
        return self.costs.plain(n_cached)

    def draft(self, context: Sequence[int], room: int) -> Attempt:
        self._looks, self._drafted = [], None
        n_cached = len(context) - 1
        plain = self.costs.plain(n_cached)
        if room < 1:
            return Attempt()
        if self._until_plain <= 0:
            return Attempt(why=MEASURING)
        if not self.ledger.admits(1 + self._looking / plain) and self._looking > SHARE * plain:
            return Attempt(why=MAKING_UP)
        front = self._admitted(n_cached, plain, min(room, WIDEST_PASS - 1))
        if len(front) == 1:
            return Attempt(why=MAKING_UP)
        self._look(context, front[-1][0] - 1)
        seconds_open = self._open(context, room, front)
        best = self._choose(context, front)
        if best.then is not None:
            attempt = self._compute(context, front, best)
        elif best.kept:
            look = self._looks[best.first]
            attempt = Attempt(look.source.drafter.name, _cut(look.proposal, best.kept), best.width)
        else:
            attempt = Attempt(why=COSTS_MORE if self._looks or self.costly else NOTHING_TO_COPY)
        if seconds_open:
            attempt = Attempt(attempt.source, attempt.proposal, attempt.width, seconds_open, attempt.why)
        return attempt

    def _admitted(self, n_cached: int, plain: float, room: int) -> list[tuple[int, float]]:
        """The widths that fit and that the ledger can bear, with their seconds; width 1 first."""
        front = self.costs.front(n_cached)
        spare = (self.ledger.allowance - self.ledger.balance + 1) * plain - self._looking
        worst = self.costs.worst
        return [
            (width, seconds)
            for width, seconds in front
            if width == 1 or (width <= room + 1 and worst(width, n_cached) <= spare)
        ]

    def _look(self, context: Sequence[int], limit: int) -> None:
        """Ask every free source."""
        for source in self.free:
            proposal = source.drafter.propose(context, limit, _always)
            if not proposal.tokens:
                continue
            rate = source.chances.rate
            reach, gain, chance, total = [1.0], [0.0], 1.0, 0.0
            for confidence in proposal.confidence:
                chance *= rate(confidence)
                total += chance
                reach.append(chance)
                gain.append(total)
                if chance < HOPELESS:
                    break
            self._looks.append(_Look(source, proposal, reach, gain))

    def _choose(self, context: Sequence[int], front: list[tuple[int, float]]) -> _Option:
        """The option of the highest value."""
        rate = self._tokens / self._seconds
        best = _Option(1 - rate * front[0][1] + LEAST_GAIN)
        for i, look in enumerate(self._looks):
            gain = look.gain
            longest = len(gain) - 1
            for width, seconds in front[1:]:
                kept = min(width - 1, longest)
                value = 1 + gain[kept] - rate * seconds
                if value > best.value:
                    best = _Option(value, width, i, kept)
                if width > longest:
                    break
        for costly in self.costly:
            if costly.opened:
                self._consider(costly, context, front, rate, best)
        return best

    def _consider(
        self,
        costly: Costly,
        context: Sequence[int],
        front: list[tuple[int, float]],
        rate: float,
        best: _Option,
    ) -> None:
        """Put `costly` into `best` if it, alone or behind a free source, has the higher value."""
        right = costly.right[costly.state].value
        unseen = costly.drafter.unseen(context)
        starts = [(-1, 0, 1.0, 0.0)]
        for i, look in enumerate(self._looks):
            kept = next((k for k, chance in enumerate(look.reach) if chance < 0.5), len(look.reach)) - 1
            if kept:
                starts.append((i, kept, look.reach[kept], look.gain[kept]))
        for first, kept, reach, gain in starts:
            for width, seconds in front[1:]:
                guesses = width - 1 - kept
                if guesses < 1:
                    continue
                more = reach * right * (1 - right**guesses) / (1 - right) if right < 1 else reach * guesses
                value = 1 + gain + more - rate * (seconds + costly.cost.seconds(guesses, unseen + kept))
                if value > best.value:
                    best.value, best.width, best.first, best.kept, best.then = (
                        value,
                        width,
                        first,
                        kept,
                        costly,
                    )
        if best.then is not costly and costly.idle >= costly.probe_after and front[-1][0] >= 3:
            best.value, best.width, best.first, best.kept, best.then = best.value, 3, -1, 0, costly
            costly.probe_after = min(2 * costly.probe_after, PROBE_LATEST)

    def _compute(self, context: Sequence[int], front: list[tuple[int, float]], option: _Option) -> Attempt:
        """Let a costly source guess while another guess pays, then keep what is worth checking."""
        costly, rate = option.then, self._tokens / self._seconds
        assert costly is not None
        look = self._looks[option.first] if option.kept else None
        first = _cut(look.proposal, option.kept) if look else Proposal()
        start_reach, start_gain = (look.reach[option.kept], look.gain[option.kept]) if look else (1.0, 0.0)
        reach, gain = [start_reach], [start_gain]
        usual = costly.right[costly.state].value

        def go_on(confidence: float) -> bool:
            reach.append(reach[-1] * costly.chances.rate(confidence))
            gain.append(gain[-1] + reach[-1])
            return self._pays(
                front, option.kept + len(reach), reach[-1], usual, rate * costly.cost.guess, rate
            )

        unseen = costly.drafter.unseen(context) + option.kept
        started = self.clock()
        limit = max(front[-1][0] - 1 - option.kept, 1)
        more = costly.drafter.extend(context, first.tokens, limit, go_on)
        seconds = self.clock() - started
        costly.cost.observe(len(more.tokens), unseen, seconds)
        costly.idle = 0
        self._drafted = (costly, option.kept, more, len(reach), seconds)
        kept, width = self._keep(front, look, option.kept, gain, len(more.tokens), rate)
        name = costly.drafter.name
        if kept <= option.kept:
            return self._without(look, kept, width)
        proposal = joined(first, _cut(more, kept - option.kept)) if look else _cut(more, kept)
        return Attempt(f"{look.source.drafter.name}+{name}" if look else name, proposal, width)

    def _pays(
        self, front: list[tuple[int, float]], size: int, reach: float, usual: float, guess: float, rate: float
    ) -> bool:
        """Whether going on from a pass of `size` tokens pays at some wider width."""
        here = next((seconds for width, seconds in front if width >= size), front[-1][1])
        expected, ahead = 0.0, reach
        done = size
        for width, seconds in front:
            if width <= size:
                continue
            while done < width:
                ahead *= usual
                expected += ahead
                done += 1
            if expected > rate * (seconds - here) + guess * (width - size):
                return True
        return False

    def _keep(
        self,
        front: list[tuple[int, float]],
        look: _Look | None,
        kept: int,
        gain: list[float],
        guesses: int,
        rate: float,
    ) -> tuple[int, int]:
        """How many of the guesses to check, and at which width. All of them if they were drawn."""
        whole = kept + guesses
        if self.drawn:
            return whole, next((width for width, _ in front if width > whole), whole + 1)
        gains = [*(look.gain[:kept] if look else ()), *gain]
        best, choice = 1 - rate * front[0][1], (0, 1)
        for width, seconds in front[1:]:
            k = min(width - 1, whole)
            value = 1 + gains[k] - rate * seconds
            if value > best:
                best, choice = value, (k, width)
            if width > whole:
                break
        return choice

    def _without(self, look: _Look | None, kept: int, width: int) -> Attempt:
        if not kept or look is None:
            return Attempt(why=COSTS_MORE)
        return Attempt(look.source.drafter.name, _cut(look.proposal, kept), width)

    def _open(self, context: Sequence[int], room: int, front: list[tuple[int, float]]) -> float:
        """Open the sources that repay it over the rest of the answer twice; seconds that took."""
        spent = 0.0
        for costly in self.costly:
            if costly.opened:
                continue
            unseen = costly.drafter.unseen(context)
            price = costly.drafter.seconds_to_load + (unseen if unseen > CATCH_UP else 0) * costly.cost.read
            if price:
                left = min(room + 1, max(self._turn, self._answered / self._answers - self._turn))
                if left * self._saves(costly, front) <= 2 * price:
                    costly.why = "the rest of the answer does not repay what it takes to start"
                    continue
                start = self.clock()
                costly.drafter.open(context)
                spent += self.clock() - start
            costly.opened = True
            costly.why = ""
        return spent

    def _saves(self, costly: Costly, front: list[tuple[int, float]]) -> float:
        """Seconds a token that the source is expected to save against what is reached of late."""
        right = min(costly.right[0].value, 0.999)
        best = max(
            (1 - right**width) / (1 - right) / (seconds + (width - 1) * costly.cost.guess)
            for width, seconds in front
        )
        return 1 / self.rate - 1 / best

    def learn(self, step: Step, n_cached: int) -> None:
        self.costs.observe(step.width, n_cached, step.seconds_verify + step.seconds_host)
        plain = self.costs.plain(n_cached)
        tokens = len(step.tokens)
        self.ledger.add(step.seconds / plain, tokens)
        self._tokens = HORIZON * self._tokens + tokens
        self._seconds = HORIZON * self._seconds + step.seconds
        self._turn += tokens
        self._until_plain = REFRESH if step.width == 1 else self._until_plain - 1
        if self._drafted is None:
            self._looking += 0.1 * (step.seconds_draft - self._looking)
        for look in self._looks:
            _judge(look.source.chances, look.proposal, step.tokens)
            if look.proposal.confidence[0] >= LONG_MATCH:
                self._rearm()
        for costly in self.costly:
            costly.idle += 1
        if self._drafted:
            self._learn_drafted(step)
        if any(map(self.wakes, step.tokens)):
            self._rearm()

    def _learn_drafted(self, step: Step) -> None:
        assert self._drafted is not None
        costly, offset, proposal, _, _ = self._drafted
        first = self._looks[0].proposal.tokens[:offset] if offset else ()
        if tuple(first) != step.tokens[:offset] or len(step.tokens) <= offset:
            return
        right, judged = _judge(costly.chances, proposal, step.tokens[offset:])
        usual = costly.right[costly.state]
        for i in range(judged):
            usual.learn(i < right)
        if judged:
            costly.state = 0 if right == judged else 1 if right else 2

    def _rearm(self) -> None:
        for costly in self.costly:
            costly.rearm()


def _always(_confidence: float) -> bool:
    return True


def _cut(proposal: Proposal, length: int) -> Proposal:
    dists = None if proposal.dists is None else proposal.dists[:length]
    return Proposal(proposal.tokens[:length], proposal.confidence[:length], dists)


def _judge(chances: Chances, proposal: Proposal, emitted: Sequence[int]) -> tuple[int, int]:
    """Learn which guesses were right, up to the first wrong one; (right, judged)."""
    right = 0
    for guess, confidence, token in zip(proposal.tokens, proposal.confidence, emitted, strict=False):
        chances.learn(confidence, guess == token)
        if guess != token:
            return right, right + 1
        right += 1
    return right, right
