"""The scheduler's own time: what deciding and learning take in a replay, models and drafters left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from localspec.bench import settings
from localspec.bench.decode import Prices
from localspec.bench.record import Recording
from localspec.bench.replay import Forced, PricedDrafter, PricedTarget, VirtualClock
from localspec.bench.report import AUTO
from localspec.bench.settings import Parts
from localspec.drafters import NAMED
from localspec.engine.cost import DraftCost
from localspec.engine.generate import WIDEST_PASS, Generator
from localspec.engine.schedule import Scheduler
from localspec.engine.types import Attempt, Guess, Step

T = TypeVar("T")


@dataclass
class Stopwatch:
    """Seconds spent in calls."""

    seconds: float = 0.0

    def time(self, call: Callable[[], T]) -> T:
        start = time.perf_counter()
        try:
            return call()
        finally:
            self.seconds += time.perf_counter() - start


@dataclass
class Watched:
    """A drafter whose time is taken."""

    inner: Any
    watch: Stopwatch

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name == "follow":
            return lambda *given: self._each(found(*given))
        return (lambda *given: self.watch.time(lambda: found(*given))) if callable(found) else found

    def _each(self, guesses: Iterator[Guess]) -> Iterator[Guess]:
        while (guess := self.watch.time(lambda: next(guesses, None))) is not None:
            yield guess


@dataclass
class WatchedPolicy:
    """A policy whose time is taken step by step, that of its drafters left out."""

    inner: Scheduler
    drafters: Stopwatch
    steps: list[float] = field(default_factory=list)
    _drafting: float = 0.0

    def begin(self, context: Sequence[int]) -> None:
        self.inner.begin(context)

    def plain(self, n_cached: int) -> float:
        return self.inner.plain(n_cached)

    def draft(self, context: Sequence[int], room: int) -> Attempt:
        attempt, self._drafting = self._own(lambda: self.inner.draft(context, room))
        return attempt

    def learn(self, step: Step, n_cached: int) -> None:
        _, seconds = self._own(lambda: self.inner.learn(step, n_cached))
        self.steps.append(self._drafting + seconds)

    def _own(self, call: Callable[[], T]) -> tuple[T, float]:
        before, watch = self.drafters.seconds, Stopwatch()
        found = watch.time(call)
        return found, watch.seconds - (self.drafters.seconds - before)


def own_seconds(recording: Recording, prices: Prices) -> list[float]:
    """What the scheduler itself takes at each step of a replay."""
    clock, watch = VirtualClock(), Stopwatch()
    assert recording.guesses
    drafter = PricedDrafter("draft", recording.guesses, clock, prices.curve, prices.guess)
    parts = Parts(
        prices.curve, clock, tuple(NAMED), None, lambda: drafter, DraftCost(prices.guess, prices.guess)
    )
    policy = settings.make(AUTO, parts)
    assert isinstance(policy, Scheduler)
    for source in (*policy.free, *policy.costly):
        source.drafter = Watched(source.drafter, watch)
    watched = WatchedPolicy(policy, watch)
    prompt, n_ctx = recording.text[: recording.n_prompt], len(recording.text) + WIDEST_PASS
    target = PricedTarget(clock, prices.curve, n_ctx, tokens=list(prompt[:-1]))
    generator = Generator(target, Forced(recording.text), lambda _: False, watched, clock=clock)
    for _ in generator.generate(list(prompt), len(recording.emitted)):
        pass
    return watched.steps
