"""The scheduler: at every step, which source guesses, and how much, or that nobody does.

The choice maximises expected tokens - rate * seconds, where the rate is what has lately been emitted per
second: the rule that makes tokens per second largest in the long run (renewal reward), where the best ratio
of each step alone would guess too little in bad phases. Expected tokens come from `chances`, seconds from
`cost`, and `ledger` refuses what could lose more than was promised. Knows sources by what they cost and what
they say of their guesses, never by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from localspec.engine.chances import Chances, Outlook
from localspec.engine.cost import DraftCost, PassCosts
from localspec.engine.generate import WIDEST_PASS, joined, proposal_of
from localspec.engine.ledger import SHARE, Ledger
from localspec.engine.types import Attempt, Drafter, Guess, Proposal, Sequential, Step

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
AMORTISE = 0.25
LONG_MATCH = 0.85
"""Confidence of a free source that wakes the others: the text has begun to repeat."""
STAKE = 0.5
CONFIRMED = 0.93
"""How often a guess is right that two sources make."""
ALONE, AGREED, CONTRADICTED = range(3)
TAKE_OVER = 0.9
"""Confidence from which on a free source takes over from a costly one."""
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

    `chances`: for guesses about which the free sources say nothing, the same, something else. `agrees`: how
    often they say the same, by their confidence. `prior`: how often it is expected to be right. `idle`: steps since it last guessed.
    """

    drafter: Sequential
    cost: DraftCost
    chances: Sequence[Chances] = field(default_factory=lambda: [Chances() for _ in range(3)])
    prior: float = 0.7
    agrees: Chances = field(default_factory=Chances)
    outlook: Outlook = field(init=False)
    idle: int = field(default=0, init=False)
    probe_after: int = field(default=PROBE_AFTER, init=False)
    opened: bool = field(default=False, init=False)
    why: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.outlook = Outlook(self.chances[ALONE], self.prior)

    def rearm(self) -> None:
        """Something happened after which it may do better."""
        self.probe_after = PROBE_AFTER


@dataclass(slots=True)
class _Line:
    """Guesses to check from the first on. `reach[k]`: the chance that k of them are right; `gain[k]`: how many
    of the first k are expected to be. `parts`: who guessed, and up to which guess."""

    proposal: Proposal = field(default_factory=Proposal)
    reach: list[float] = field(default_factory=lambda: [1.0])
    gain: list[float] = field(default_factory=lambda: [0.0])
    parts: list[tuple[str, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.gain) - 1

    def cut(self, length: int) -> _Line:
        parts = [(name, min(end, length)) for name, end in self.parts]
        return _Line(
            _cut(self.proposal, length),
            self.reach[: length + 1],
            self.gain[: length + 1],
            [part for i, part in enumerate(parts) if part[1] > (parts[i - 1][1] if i else 0)],
        )

    def add(self, name: str, proposal: Proposal, rates: Iterable[float]) -> None:
        """Put the guesses of `proposal` behind the line, while they have any chance; `rates`: of each."""
        chance, total = self.reach[-1], self.gain[-1]
        for rate in rates:
            chance *= rate
            total += chance
            self.reach.append(chance)
            self.gain.append(total)
            if chance < HOPELESS:
                break
        new = len(self) - len(self.proposal.tokens)
        if new:
            more = _cut(proposal, new)
            self.proposal = joined(self.proposal, more) if self.proposal.tokens else more
            self.parts.append((name, len(self)))

    @property
    def name(self) -> str:
        return "+".join(name for name, _ in self.parts)


@dataclass(slots=True)
class _Pick:
    """The best of some lines: its first `kept` guesses in a pass of `width` tokens are worth `value` tokens."""

    value: float
    line: _Line = field(default_factory=_Line)
    kept: int = 0
    width: int = 1


@dataclass(frozen=True, slots=True)
class _Drafted:
    """What a costly source guessed at this step, behind which guesses of others, and what those thought."""

    source: Costly
    before: tuple[int, ...]
    proposal: Proposal
    kinds: Sequence[int]


Front = list[tuple[int, float]]
"""(width, seconds) of the passes that may be chosen, width 1 first."""


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
        self._looks: list[tuple[Free, Proposal]] = []
        self._drafted: _Drafted | None = None
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
        if self._looking > SHARE * plain and not self.ledger.admits(1 + self._looking / plain):
            return Attempt(why=MAKING_UP)
        front = self._admitted(n_cached, plain, min(room, WIDEST_PASS - 1))
        if len(front) == 1:
            return Attempt(why=MAKING_UP)
        lines = self._look(context, front[-1][0] - 1)
        pick = self._pick(lines, front, LEAST_GAIN)
        seconds_open = self._open(context, room, front)
        for costly in self.costly:
            start = self._start(costly, context, lines, front, pick) if costly.opened else None
            if start is not None:
                pick = self._pick([self._compute(costly, context, start, lines, front)], front, 0.0)
                break
        if not pick.kept:
            why = COSTS_MORE if lines or self._drafted else NOTHING_TO_COPY
            return Attempt(seconds_open=seconds_open, why=why)
        line = pick.line.cut(pick.kept)
        return Attempt(line.name, line.proposal, pick.width, seconds_open)

    def _admitted(self, n_cached: int, plain: float, room: int) -> Front:
        """The widths that fit and that the ledger can bear; width 1 always."""
        left = self.ledger.allowance - self.ledger.balance - self._looking / plain
        small = self.costs.worst
        front = [
            (width, seconds)
            for width, seconds in self.costs.front(n_cached)
            if width == 1 or (width <= room + 1 and small(width, n_cached) / plain - 1 <= left)
        ]
        return [f for i, f in enumerate(front) if i < 2 or small(f[0], n_cached) / plain - 1 <= STAKE * left]

    def _look(self, context: Sequence[int], limit: int) -> list[_Line]:
        """Ask every free source."""
        lines = []
        for source in self.free:
            proposal = source.drafter.propose(context, limit, _always)
            if proposal.tokens:
                line = _Line()
                line.add(source.drafter.name, proposal, map(source.chances.rate, proposal.confidence))
                lines.append(line)
                self._looks.append((source, proposal))
        return lines

    def _pick(self, lines: Sequence[_Line], front: Front, least: float) -> _Pick:
        """The most valuable way to go on; a plain pass unless a line is worth `least` more."""
        rate = self._tokens / self._seconds
        best = _Pick(1 - rate * front[0][1] + least)
        for line in lines:
            longest, gain = len(line), line.gain
            if self.drawn and self._drafted:  # what was drawn may not be dropped for what it is
                front = [next((f for f in front if f[0] > longest), (longest + 1, front[-1][1]))] * 2
                best = _Pick(-math.inf)
            for width, seconds in front[1:]:
                kept = min(width - 1, longest)
                value = 1 + gain[kept] - rate * seconds
                if value > best.value:
                    best = _Pick(value, line, kept, width)
                if width > longest:
                    break
            if self.drawn and self._drafted:
                break
        return best

    def _start(
        self, costly: Costly, context: Sequence[int], lines: Sequence[_Line], front: Front, pick: _Pick
    ) -> _Line | None:
        """From where `costly` should guess: the likely part of a line, or the empty one. None: not at all."""
        rate = self._tokens / self._seconds
        unseen = 1 + (costly.drafter.unseen(context) - 1) * AMORTISE
        expected = self._alone(costly, _Line(), front, 1 - rate * front[0][1])
        best, start = pick.value, None
        if lines:
            agree = costly.agrees.rate(lines[0].proposal.confidence[0])
            confirmed = max(self._confirmed(lines[0], front), pick.value)
            expected = agree * confirmed + (1 - agree) * expected
        expected -= rate * costly.cost.seconds(1, unseen)
        if expected > best:
            best, start = expected, _Line()
        for line in map(_likely, lines):
            if len(line):
                value = self._alone(costly, line, front, pick.value)
                value -= rate * costly.cost.seconds(1, unseen + len(line))
                if value > best:
                    best, start = value, line
        if start is None and costly.idle >= costly.probe_after and front[-1][0] >= 3:
            costly.probe_after = min(2 * costly.probe_after, PROBE_LATEST)
            return _Line()
        return start

    def _alone(self, costly: Costly, line: _Line, front: Front, otherwise: float) -> float:
        """What guesses of `costly` behind `line` are worth, when what the first one says decides how many it
        makes, and nothing it says can make things worse than `otherwise`."""
        rate, kept = self._tokens / self._seconds, len(line)
        gains = costly.outlook.gains(front[-1][0] - 1)
        behind = [(width, seconds) for width, seconds in front if width > kept + 1]
        if not behind:
            return otherwise
        widths, seconds = np.array(behind).T
        guesses = widths.astype(int) - 1 - kept
        more = line.reach[-1] * gains[:, guesses - 1] - rate * (seconds + costly.cost.guess * (guesses - 1))
        value = 1 + line.gain[-1] + more.max(axis=1)
        return float(costly.outlook.shares @ (value if self.drawn else np.maximum(value, otherwise)))

    def _confirmed(self, line: _Line, front: Front) -> float:
        """What a line is worth whose first guess another source makes too."""
        rate = self._tokens / self._seconds
        factor = CONFIRMED / line.reach[1]
        return max(
            1 + factor * line.gain[min(width - 1, len(line))] - rate * seconds for width, seconds in front[1:]
        )

    def _compute(
        self, costly: Costly, context: Sequence[int], line: _Line, lines: list[_Line], front: Front
    ) -> _Line:
        """Let a costly source go on behind `line` while another guess pays, and free ones behind that."""
        rate = self._tokens / self._seconds
        unseen = costly.drafter.unseen(context) + len(line)
        widest = front[-1][0]
        tokens = list(line.proposal.tokens)
        tail = lines[0].proposal if lines and not tokens else self._tail(tokens, widest - 1 - len(tokens))
        guesses: list[Guess] = []
        kinds: list[int] = []
        reach = line.reach[-1]
        started = self.clock()
        for guess in costly.drafter.follow(context, line.proposal.tokens):
            kind = ALONE if not tail.tokens else AGREED if tail.tokens[0] == guess.token else CONTRADICTED
            guesses.append(guess)
            kinds.append(kind)
            tokens.append(guess.token)
            reach *= costly.chances[kind].rate(_backed(guess.confidence, kind))
            size = len(tokens) + 1
            if size >= widest:
                tail = Proposal()
                break
            tail = self._tail(tokens, widest - size)
            if kind == AGREED and tail.tokens and tail.confidence[0] > TAKE_OVER:
                break
            usual = costly.outlook.after(guess.confidence)
            if not self._pays(front, size, reach, usual, rate * costly.cost.guess):
                break
        costly.cost.observe(len(guesses), unseen, self.clock() - started)
        costly.idle = 0
        proposal = proposal_of(guesses)
        self._drafted = _Drafted(costly, tuple(line.proposal.tokens), proposal, kinds)
        whole = line.cut(len(line))
        rates = [
            costly.chances[k].rate(_backed(c, k)) for c, k in zip(proposal.confidence, kinds, strict=True)
        ]
        whole.add(costly.drafter.name, proposal, rates)
        if tail.tokens and len(whole) == len(tokens) and not self.drawn:
            source = self.free[0]
            whole.add(source.drafter.name, tail, map(source.chances.rate, tail.confidence))
        return whole

    def _tail(self, tokens: Sequence[int], limit: int) -> Proposal:
        """What the first free source would guess behind `tokens`, if it can tell."""
        peek = getattr(self.free[0].drafter, "peek", None) if self.free else None
        return peek(tokens, limit) if peek else Proposal()

    def _pays(self, front: Front, size: int, reach: float, usual: float, guess: float) -> bool:
        """Whether going on from a pass of `size` tokens pays at some wider width; `guess` in tokens."""
        rate = self._tokens / self._seconds
        here = next((seconds for width, seconds in front if width >= size), front[-1][1])
        expected, ahead, done = 0.0, reach, size
        for width, seconds in front:
            while done < width:
                ahead *= usual
                expected += ahead
                done += 1
            if width > size and expected > rate * (seconds - here) + guess * (width - size):
                return True
        return False

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
        gain = costly.outlook.shares @ costly.outlook.gains(front[-1][0] - 1)
        best = max(
            (1 + float(gain[width - 2])) / (seconds + (width - 1) * costly.cost.guess)
            for width, seconds in front[1:]
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
        for source, proposal in self._looks:
            _judge(source.chances, proposal, step.tokens)
            if proposal.confidence[0] >= LONG_MATCH:
                self._rearm()
        for costly in self.costly:
            costly.idle += 1
        if self._drafted:
            self._learn_drafted(self._drafted, step.tokens)
        if any(map(self.wakes, step.tokens)):
            self._rearm()

    def _learn_drafted(self, drafted: _Drafted, emitted: Sequence[int]) -> None:
        costly, offset = drafted.source, len(drafted.before)
        if self._looks and not offset:
            first = self._looks[0][1]
            costly.agrees.learn(first.confidence[0], drafted.kinds[:1] == [AGREED])
        if drafted.before != emitted[:offset]:
            return
        right = judged = 0
        for guess, confidence, kind, token in zip(
            drafted.proposal.tokens,
            drafted.proposal.confidence,
            drafted.kinds,
            emitted[offset:],
            strict=False,
        ):
            judged += 1
            costly.chances[kind].learn(_backed(confidence, kind), guess == token)
            if guess != token:
                break
            right += 1
        if judged:
            costly.outlook.learn(drafted.proposal.confidence, right, judged)

    def _rearm(self) -> None:
        for costly in self.costly:
            costly.rearm()


def _backed(confidence: float, kind: int) -> float:
    """The confidence of a guess once it is known what a free source guesses there."""
    if kind == AGREED:
        return (1 + confidence) / 2
    return 0.95 * confidence if kind == CONTRADICTED else confidence


def _likely(line: _Line) -> _Line:
    """The part of a line that is more likely right than not."""
    return line.cut(next((k for k, chance in enumerate(line.reach) if chance < 0.5), len(line.reach)) - 1)


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
