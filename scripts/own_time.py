"""The scheduler's own time: what deciding and learning take in a replay, models and drafters left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeVar

from localspec.bench.decode import Prices
from localspec.bench.record import Recording
from localspec.bench.replay import Forced, PricedDrafter, PricedTarget, VirtualClock
from localspec.drafters import NgramDrafter
from localspec.engine.cost import DraftCost, PassCosts
from localspec.engine.generate import WIDEST_PASS, Generator
from localspec.engine.schedule import Scheduler
from localspec.engine.sources import Costly, Free
from localspec.engine.types import Attempt, Guess, Proposal, Sequential, Step, Suggest, nothing

NOTHING = Proposal()
T = TypeVar("T")


@dataclass(slots=True)
class Stopwatch:
    """Seconds that were not the scheduler's. `leak`: what taking the time of a call costs beyond them."""

    seconds: float = 0.0
    leak: float = 0.0


@dataclass(slots=True)
class WatchedNgram:
    """An n-gram source whose time is taken."""

    inner: NgramDrafter
    watch: Stopwatch
    name: str = "ngram"

    def begin(self, context: Sequence[int]) -> None:
        self.inner.begin(context)

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        start = perf_counter()
        proposal = self.inner.propose(context, limit, go_on)
        self.watch.seconds += perf_counter() - start + self.watch.leak
        return proposal

    def peek(self, guessed: Sequence[int], limit: int) -> Proposal:
        start = perf_counter()
        proposal = self.inner.peek(guessed, limit)
        self.watch.seconds += perf_counter() - start + self.watch.leak
        return proposal


@dataclass(slots=True)
class WatchedDraft:
    """A draft model whose time is taken, but not that of the scheduler's suggestions to it."""

    inner: Sequential
    watch: Stopwatch
    name: str = "draft"

    @property
    def seconds_to_load(self) -> float:
        return self.inner.seconds_to_load

    def begin(self, context: Sequence[int]) -> None:
        self.inner.begin(context)

    def open(self, context: Sequence[int]) -> None:
        self.inner.open(context)

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        return self.inner.propose(context, limit, go_on)

    def unseen(self, context: Sequence[int]) -> int:
        start = perf_counter()
        unseen = self.inner.unseen(context)
        self.watch.seconds += perf_counter() - start + self.watch.leak
        return unseen

    def follow(
        self, context: Sequence[int], guessed: Sequence[int], suggest: Suggest = nothing
    ) -> Iterator[Guess]:
        start = perf_counter()

        def suggested(made: Sequence[int]) -> Sequence[int]:
            asked = perf_counter()
            found = suggest(made)
            self.watch.seconds -= perf_counter() - asked
            return found

        for guess in self.inner.follow(context, guessed, suggested):
            self.watch.seconds += perf_counter() - start + self.watch.leak
            yield guess
            start = perf_counter()


@dataclass(slots=True)
class WatchedPolicy:
    """A policy whose time is taken step by step, that of its drafters left out."""

    inner: Scheduler
    drafters: Stopwatch
    steps: list[float] = field(default_factory=list)
    _deciding: float = 0.0

    def begin(self, context: Sequence[int]) -> None:
        self.inner.begin(context)

    def plain(self, n_cached: int) -> float:
        return self.inner.plain(n_cached)

    def draft(self, context: Sequence[int], room: int) -> Attempt:
        attempt, self._deciding = self._own(lambda: self.inner.draft(context, room))
        return attempt

    def learn(self, step: Step, n_cached: int) -> None:
        _, seconds = self._own(lambda: self.inner.learn(step, n_cached))
        self.steps.append(self._deciding + seconds)

    def _own(self, call: Callable[[], T]) -> tuple[T, float]:
        before, start = self.drafters.seconds, perf_counter()
        found = call()
        return found, perf_counter() - start - (self.drafters.seconds - before)


class Silent(NgramDrafter):
    """Guesses nothing, at once."""

    def peek(self, guessed: Sequence[int], limit: int) -> Proposal:
        return NOTHING


def leak(calls: int = 2000) -> float:
    """Seconds that watching a call adds to it without booking them."""
    watched = WatchedNgram(Silent(), Stopwatch())
    start = perf_counter()
    for _ in range(calls):
        watched.peek((), 0)
    return (perf_counter() - start - watched.watch.seconds) / calls


def own_seconds(recording: Recording, prices: Prices, replays: int = 5) -> list[float]:
    """What the scheduler itself takes at each step of a replay: the least of several, which decide alike, so
    that what interrupts one of them is not counted."""
    return [min(step) for step in zip(*(_replayed(recording, prices) for _ in range(replays)), strict=True)]


def _replayed(recording: Recording, prices: Prices) -> list[float]:
    assert recording.guesses
    clock, watch, curve = VirtualClock(), Stopwatch(leak=leak()), prices.curve
    drafter = PricedDrafter("draft", recording.guesses, clock, curve, prices.guess)
    free = [Free(WatchedNgram(NgramDrafter(), watch))]
    costly = [Costly(WatchedDraft(drafter, watch), DraftCost(prices.guess, curve))]
    policy = Scheduler(PassCosts(curve, widths=tuple(curve)), free, costly, clock)
    watched = WatchedPolicy(policy, watch)
    prompt, n_ctx = recording.text[: recording.n_prompt], len(recording.text) + WIDEST_PASS
    target = PricedTarget(clock, curve, n_ctx, tokens=list(prompt[:-1]))
    generator = Generator(target, Forced(recording.text), lambda _: False, watched, clock=clock)
    for _ in generator.generate(list(prompt), len(recording.emitted)):
        pass
    return watched.steps
