"""The scheduler: at every step, which source guesses, and how much, or that nobody does.

The choice maximises expected tokens - rate * seconds, where the rate is what has lately been emitted per
second: the rule that makes tokens per second largest in the long run (renewal reward), where the best ratio
of each step alone would guess too little in bad phases. Expected tokens come from `chances`, seconds from
`cost`, and `ledger` refuses what could lose more than was promised. Knows sources by what they cost and what
they say of their guesses, never by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.engine.cost import PassCosts
from localspec.engine.drafting import Drafting, Now
from localspec.engine.generate import MOST_GUESSES
from localspec.engine.ledger import SHARE, Ledger
from localspec.engine.lines import FIRST_WRONG, NOTHING, Line, Passes, cut
from localspec.engine.sources import Costly, Free, Made
from localspec.engine.types import Attempt, Proposal, Step

HORIZONS = 0.995, 0.9
"""How slowly rates of tokens per second forget, for each step. The lower one counts: where a text has become
harder, as behind a long copy, time is soon worth less."""
LEAST_GAIN = 0.01
"""Expected tokens by which guessing must beat a plain pass."""
REFRESH_FIRST, REFRESH = 64, 128
"""Steps after which a plain pass is due, so that the plain speed stays measured; the first pass of a session
is one, since until then it is only remembered."""
CATCH_UP = 16
"""Unseen tokens from which on reading them is a price to be decided on, not a cost of the step."""
LONG_MATCH = 0.85
"""Confidence of a free source that wakes the costly ones: the text has begun to repeat."""
CAUTION = 6.0
"""How much dearer a loss counts the less may still be lost: to lose all means no guesses for a long time."""
DULL, VERY_DULL, CHEAP_LOOK = 8, 64, 0.005
"""After so many steps with nothing worth checking only every fourth one looks, then every eighth, if a look
costs more than this share of a plain pass: processor caches are cold after a pass, which makes it several
times dearer. For the same reason what was emitted meanwhile is learnt from all at once."""
LASTS, MOVED = 24, 0.5
"""Steps for which prices of passes hold, unless what may be lost has moved by more than this share."""
NARROW = 4
"""Guesses that an answer's end leaves room for from which on prices are worked out for less room."""
TYPICAL_ANSWER = 256
"""Tokens an answer has, until answers have been seen."""

NOTHING_TO_COPY = "nothing to guess from"
COSTS_MORE = "guesses cost more than they save here"
MAKING_UP = "making up for guesses that lost"
MEASURING = "measuring the plain speed"
ENDS = "the answer ends here"
NOT_REPAID = "the rest of the answer would not repay what it takes to start"


class Rate:
    """Tokens and the seconds they took, of late; `keep`: the share of them that each step leaves over.

    Begins with a few plain passes of `plain` seconds, which the first answer soon outweighs.
    """

    __slots__ = ("keep", "seconds", "tokens")

    def __init__(self, keep: float, plain: float) -> None:
        self.keep = keep
        self.tokens = 0.15 / (1 - keep)
        self.seconds = self.tokens * plain

    def add(self, tokens: int, seconds: float) -> None:
        self.tokens = self.keep * self.tokens + tokens
        self.seconds = self.keep * self.seconds + seconds


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
        self._ledger = ledger or Ledger()
        self._drafting = Drafting(costs, free, clock, drawn=drawn)
        self._rates = [Rate(keep, costs.plain(0)) for keep in HORIZONS]
        self._passes = Passes()
        self._looking, self._looked = 0.0, False  # seconds a step takes that only looks; whether this one did
        self._dear_look = False  # whether a look takes a good part of a pass
        self._dull, self._why = 0, NOTHING_TO_COPY  # steps since anything was worth checking, and why not
        self._unlearnt: list[tuple[Step, int]] = []  # steps since, which did not look
        self._said: list[tuple[Free, Proposal]] = []
        self._drafted: tuple[Costly, Made] | None = None
        self._refresh, self._until_plain = REFRESH_FIRST // 2, 0  # doubled by the first pass, which measures
        self._answered, self._answers, self._turn = float(TYPICAL_ANSWER), 1, 0

    @property
    def ledger(self) -> Ledger:
        """All that guessing has cost so far."""
        self._catch_up()
        return self._ledger

    @property
    def rate(self) -> float:
        """Tokens per second of late."""
        return min(rate.tokens / rate.seconds for rate in self._rates)

    def begin(self, context: Sequence[int]) -> None:
        self._catch_up()
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
        self._said, self._drafted, self._looked = [], None, False
        if room < 1:
            return Attempt(why=ENDS)
        if self._until_plain <= 0:
            return Attempt(why=MEASURING)
        self._dull += 1
        if self._dear_look and self._dull > DULL and self._dull % (4 if self._dull < VERY_DULL else 8):
            return Attempt(why=self._why)
        if self._unlearnt:
            self._catch_up()
        plain = self.costs.plain(len(context) - 1)
        self._dear_look = self._looking > CHEAP_LOOK * plain
        left = (self._ledger.allowance - self._ledger.balance) * plain - self._looking
        if self._looking > SHARE * plain and not self._ledger.admits(1 + self._looking / plain):
            return Attempt(why=MAKING_UP)
        room_now = min(room, MOST_GUESSES)
        lines: list[Line] | None = None
        if self._looking <= SHARE * plain:  # then look first: mostly there is nothing worth more thought
            lines = self._look(context, room_now)
            if not self.costly and self._hopeless(lines, plain):
                self._why = COSTS_MORE if lines else NOTHING_TO_COPY
                return Attempt(why=self._why)
        now = Now(context, room, plain, left, self._priced(len(context) - 1, plain, left, room_now), [], [])
        if not now.passes.wider:
            return Attempt(why=MAKING_UP)
        now.lines = self._look(context, now.passes.widest(room) - 1) if lines is None else lines
        now.said = self._said
        return self._attempt(now)

    def _attempt(self, now: Now) -> Attempt:
        """The best that can be done where guesses may be checked."""
        pick = self._drafting.pick(now.lines, now, now.left, LEAST_GAIN)
        seconds_open = self._open(now)
        for costly in self.costly:
            if costly.opened and (asked := self._drafting.ask(costly, now, pick)):
                pick, made = asked
                self._drafted = costly, made
                break
        if not pick.kept:
            self._why = COSTS_MORE if now.lines or self._drafted else NOTHING_TO_COPY
            return Attempt(seconds_open=seconds_open, why=self._why)
        self._dull = 0
        name, proposal = pick.line.name(pick.kept), cut(pick.line.proposal, pick.kept)
        return Attempt(name, proposal, pick.width, seconds_open)

    def _priced(self, n_cached: int, plain: float, left: float, room: int) -> Passes:
        """The passes that fit and whose worst case may be lost, their seconds weighed by the risk: worked out
        every few steps, and when something has changed."""
        passes = self._passes
        passes.lasts -= 1
        moved = abs(left - passes.left) > MOVED * (passes.left + plain)
        fits = min(passes.room, NARROW) <= room <= passes.room
        if passes.lasts > 0 and fits and not moved:
            return passes
        rate, front, wider = self.rate, self.costs.front(n_cached), []
        for width, seconds in front:
            loss = self.costs.worst(width, n_cached) - plain
            if 1 < width <= room + 1 and loss <= left:
                risk = rate * CAUTION * (seconds - plain) ** 2 / max(left, 0.1 * plain)
                wider.append((width, rate * seconds + FIRST_WRONG * risk, loss, risk))
        cheapest = front[1][1] if len(front) > 1 else 0.0
        self._passes = Passes(rate, rate * plain, wider, left, room, cheapest, LASTS)
        return self._passes

    def _look(self, context: Sequence[int], limit: int) -> list[Line]:
        """Ask every free source."""
        self._looked = True
        lines = []
        for source in self.free:
            proposal = source.drafter.propose(context, limit, _always)
            if proposal.tokens:
                line = Line()
                line.add(source.drafter.name, proposal, source.chances.rates(proposal.confidence))
                lines.append(line)
                self._said.append((source, proposal))
        return lines

    def _hopeless(self, lines: Sequence[Line], plain: float) -> bool:
        """Whether no line can pay even in the cheapest pass that holds a guess."""
        gain = max((line.gain[-1] for line in lines), default=0.0)
        cheapest = self._passes.cheapest
        return gain <= self.rate * (cheapest - plain) if cheapest else not lines

    def _open(self, now: Now) -> float:
        """Open the costly sources that will probably repay it twice before the answer ends; seconds spent."""
        spent = 0.0
        for costly in self.costly:
            if costly.opened:
                continue
            unseen = costly.drafter.unseen(now.context)
            price = costly.drafter.seconds_to_load
            price += costly.cost.reading(unseen) if unseen > CATCH_UP else 0.0
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

    def _saves(self, costly: Costly, now: Now) -> float:
        """Seconds a token that the source is expected to save against what is reached of late."""
        gain, rate = costly.outlook.mean(), now.passes.rate
        best = max(
            (1 + gain[width - 1]) / (price / rate + (width - 1) * costly.cost.guess)
            for width, price, _, _ in now.passes.wider
        )
        return 1 / rate - 1 / best

    def learn(self, step: Step, n_cached: int) -> None:
        self._unlearnt.append((step, n_cached))
        if self._looked or self._until_plain <= 0:
            self._catch_up()

    def _catch_up(self) -> None:
        """Learn from the steps since the last look; what was said and drafted belongs to the last one."""
        unlearnt, self._unlearnt = self._unlearnt, []
        for step, n_cached in unlearnt:
            self._count(step, n_cached)
        if self._looked and unlearnt:
            self._compare(unlearnt[-1][0])

    def _count(self, step: Step, n_cached: int) -> None:
        """What a step took and emitted, whoever guessed."""
        if self.costs.observe(step.width, n_cached, step.seconds_verify + step.seconds_host):
            self._passes.lasts = 0
        tokens, seconds = len(step.tokens), step.seconds
        plain = self.costs.plain(n_cached)
        # What a plain pass takes, plain decoding would have paid too: only looking for guesses is extra.
        self._ledger.add(1 + step.seconds_draft / plain if step.width == 1 else seconds / plain, tokens)
        for rate in self._rates:
            rate.add(tokens, seconds)
        self._turn += tokens
        self._until_plain -= 1
        if step.width == 1:
            self._refresh = min(2 * self._refresh, REFRESH) if self._until_plain < 0 else self._refresh
            self._until_plain = self._refresh
        for costly in self.costly:
            costly.idle += 1
        if self.costly and any(map(self.wakes, step.tokens)):
            self._wake()

    def _compare(self, step: Step) -> None:
        """What a step emitted with what was guessed there."""
        if self._drafted is None:
            self._looking += 0.1 * (step.seconds_draft - self._looking)
        for source, proposal in self._said:
            source.learn(proposal, step.tokens)
            if proposal.confidence[0] >= LONG_MATCH:
                self._wake()
        if self._drafted:
            costly, made = self._drafted
            costly.learn(made, self._said[0][1] if self._said else NOTHING, step.tokens)

    def _wake(self) -> None:
        """Give costly sources another chance: the text has changed its kind."""
        for costly in self.costly:
            costly.rearm()


def _always(_confidence: float) -> bool:
    return True
