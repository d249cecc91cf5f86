"""Answers on a virtual clock: a known text decoded by the scheduler with sources that do as they are told."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from localspec.bench.replay import Forced, PricedTarget, VirtualClock, padded
from localspec.engine.cost import LADDER, PassCosts
from localspec.engine.generate import Generator
from localspec.engine.ledger import Ledger
from localspec.engine.schedule import Scheduler
from localspec.engine.sources import Costly, Free
from localspec.engine.types import Dist, Guess, Logits, Model, Proposal, Step, Suggest, nothing

N_PROMPT = 10


@dataclass
class Bounded(PricedTarget):
    """Refuses more tokens than fit."""

    def eval(self, tokens: Sequence[int], rows: int = 1) -> Logits:
        assert len(self.tokens) + len(tokens) <= self.n_ctx
        return PricedTarget.eval(self, tokens, rows)


@dataclass
class Timed:
    """A model that computes, on a virtual clock: a pass over n tokens takes curve(n), a prompt no time."""

    inner: Model
    clock: VirtualClock
    curve: Mapping[int, float]

    @property
    def n_ctx(self) -> int:
        return self.inner.n_ctx

    @property
    def n_vocab(self) -> int:
        return self.inner.n_vocab

    @property
    def tokens(self) -> Sequence[int]:
        return self.inner.tokens

    def eval(self, tokens: Sequence[int], rows: int = 1) -> Logits:
        if rows:
            self.clock.now += padded(self.curve, len(tokens))
        return self.inner.eval(tokens, rows)

    def rewind(self, length: int) -> None:
        self.inner.rewind(length)


def flat(dearer: float = 0.01) -> dict[int, float]:
    """Every width costs what one token costs, but for `dearer` a token."""
    return {n: 1.0 + dearer * (n - 1) for n in LADDER}


def steep(power: float = 1.0) -> dict[int, float]:
    """A pass over n tokens costs as much as n plain passes (`power` 1) or more."""
    return {n: float(n) ** power for n in LADDER}


READS_FREE = {1: 1.0, 4096: 1.0}
"""Passes of a draft that take no longer however much they read."""


def distinct(length: int) -> list[int]:
    """A text in which no token comes twice, and every token has a wrong neighbour."""
    return list(range(0, 2 * length, 2))


@dataclass
class Scripted:
    """Knows the text; guesses token `place` of it correctly where `right` says so. It looks for `looks` s."""

    name: str
    text: Sequence[int]
    right: Callable[[int], bool] = lambda _: True
    confidence: float | Callable[[int], float] = 1.0
    speaks: Callable[[int], bool] = lambda _: True
    clock: VirtualClock | None = None
    looks: float = 0.0
    asked: list[tuple[int, int]] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)

    def begin(self, context: Sequence[int]) -> None:
        self.begun.append(len(context))

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        place = len(context)
        self.asked.append((place, limit))
        if self.clock:
            self.clock.now += self.looks
        places = range(place, min(place + limit, len(self.text))) if self.speaks(place) else ()
        return Proposal([self.guess(p) for p in places], [self.sure(p) for p in places])

    def guess(self, place: int) -> int:
        return self.text[place] + (not self.right(place))

    def sure(self, place: int) -> float:
        return self.confidence(place) if callable(self.confidence) else self.confidence


@dataclass
class Computed(Scripted):
    """The same, guess by guess: each takes `seconds` of the clock, loading takes `load`.

    `used`: the length of the context each time; `made`: the guesses then.
    """

    seconds: float = 0.0
    load: float = 0.0
    drawn: bool = False
    opened: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    made: list[list[int]] = field(default_factory=list)

    @property
    def seconds_to_load(self) -> float:
        return 0.0 if self.opened else self.load

    def unseen(self, context: Sequence[int]) -> int:
        return 1 if self.opened or not self.load else len(context)

    def open(self, context: Sequence[int]) -> None:
        assert self.clock is not None
        self.clock.now += self.seconds_to_load
        self.opened.append(len(context))

    def follow(
        self, context: Sequence[int], guessed: Sequence[int], suggest: Suggest = nothing
    ) -> Iterator[Guess]:
        assert self.clock is not None
        made: list[int] = []
        self.made.append(made)
        self.used.append(len(context))
        for place in itertools.count(len(context) + len(guessed)):
            if place >= len(self.text):
                return
            self.clock.now += self.seconds
            made.append(self.guess(place))
            yield Guess(made[-1], self.sure(place), Dist.point(made[-1]) if self.drawn else None)


@dataclass
class Answer:
    """A text of `length` tokens after a prompt on a machine with `curve`; `costs`: what is believed of it."""

    curve: Mapping[int, float]
    length: int = 400
    costs: PassCosts | None = None
    n_ctx: int = 0
    text: list[int] = field(default_factory=list)
    clock: VirtualClock = field(default_factory=VirtualClock)

    def __post_init__(self) -> None:
        self.text = self.text or distinct(N_PROMPT + self.length + 70)
        self.costs = self.costs or PassCosts(self.curve)
        self.n_ctx = self.n_ctx or len(self.text) + 100

    def scheduler(
        self,
        free: Sequence[Free] = (),
        costly: Sequence[Costly] = (),
        wakes: Callable[[int], bool] = lambda _: False,
        ledger: Ledger | None = None,
    ) -> Scheduler:
        assert self.costs is not None
        return Scheduler(self.costs, free, costly, self.clock, wakes=wakes, ledger=ledger)

    def play(
        self,
        free: Sequence[Free] = (),
        costly: Sequence[Costly] = (),
        most_steps: int | None = None,
        policy: Scheduler | None = None,
        n_prompt: int = N_PROMPT,
    ) -> list[Step]:
        """Decode the text; the steps it took. It must come out as it is."""
        policy = policy or self.scheduler(free, costly)
        target = Bounded(self.clock, self.curve, self.n_ctx)
        loop = Generator(target, Forced(self.text), lambda _: False, policy, clock=self.clock)
        turn = loop.generate(self.text[:n_prompt], self.length)
        steps = list(itertools.islice(turn, most_steps))
        turn.close()
        said = [token for step in steps for token in step.tokens]
        assert said == self.text[n_prompt : n_prompt + len(said)]
        return steps


def tokens(steps: Sequence[Step]) -> int:
    return sum(len(step.tokens) for step in steps)


def seconds(steps: Sequence[Step]) -> float:
    """Of the steps, opening left aside."""
    return sum(step.seconds for step in steps)
