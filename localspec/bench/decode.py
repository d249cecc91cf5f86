"""Decodes recordings again under a setting: with real models on the wall clock, or priced on a virtual one.

Either way by the real Generator and the real policies, from a fresh state: nothing read, nothing learnt. The
target's cache is the exception, since reading the prompt is the same for every setting and is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median

from localspec.bench.record import Recording
from localspec.bench.replay import Forced, Guesses, PricedDrafter, PricedTarget, VirtualClock
from localspec.bench.report import AUTO, Run
from localspec.bench.settings import NOTHING, WARM, Parts, Tables, learnt, make, pooled
from localspec.drafters import LazyDrafter, ModelDrafter
from localspec.engine.cost import DraftCost
from localspec.engine.generate import WIDEST_PASS, Generator
from localspec.engine.sampling import Sampler
from localspec.engine.schedule import Scheduler
from localspec.engine.types import Policy, Step
from localspec.llama.model import LlamaModel

TURN = 16
"""Tokens each setting decodes before it is another one's turn."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A recording decoded under `setting`. `seconds`, `seconds_price` as in `report.Run`, of either clock.

    `same`: the text is the recorded one; real kernels may part from it at a near tie.
    """

    recording: Recording
    setting: str
    steps: tuple[Step, ...]
    seconds: float
    seconds_price: float
    same: bool

    @property
    def run(self) -> Run:
        return Run(
            self.recording.family,
            self.recording.prompt,
            self.setting,
            sum(len(step.tokens) for step in self.steps),
            self.seconds,
            self.seconds_price,
            len(self.steps),
            sum(step.drafted for step in self.steps),
            sum(step.accepted for step in self.steps),
            cold=self.setting != WARM,
        )


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft that is loaded, and `load`, which loads it again in about `seconds_load`.

    `cost`, `prior`: what the scheduler is told to expect of it.
    """

    model: LlamaModel
    load: Callable[[], LlamaModel]
    cost: DraftCost
    prior: float
    seconds_load: float


@dataclass(frozen=True, slots=True)
class Bench:
    """The models and sources of a benchmark. `known`: measured seconds of the target's passes by width."""

    target: LlamaModel
    is_end: Callable[[int], bool]
    known: Mapping[int, float]
    free: Sequence[str]
    draft: DraftModel | None = None
    wakes: Callable[[int], bool] = lambda _: False
    clock: Callable[[], float] = time.perf_counter

    def seconds_guess(self, recording: Recording, guesses: int = 8, repeats: int = 5) -> float:
        """What a guess of the draft takes: the median of drafts behind a recorded prompt; 0 without one."""
        if self.draft is None:
            return 0.0
        drafter = _drafter(self.draft.model, self, recording, greedy=False)
        prompt = recording.text[: recording.n_prompt]
        drafter.open(prompt)
        found = []
        for _ in range(repeats):
            start = self.clock()
            made = len(drafter.propose(prompt, guesses, lambda _: True).tokens)
            found.append((self.clock() - start) / max(1, made))
        return median(found)


@dataclass(frozen=True, slots=True)
class Prices:
    """A cost table in passes over one token: of a pass by width, and of a guess of the draft."""

    curve: Mapping[int, float]
    guess: float

    @staticmethod
    def of(known: Mapping[int, float], guess: float) -> Prices:
        """From any unit."""
        return Prices({n: cost / known[1] for n, cost in known.items()}, guess / known[1])


def on_the_wall(bench: Bench, recording: Recording, setting: str, tables: Tables = NOTHING) -> Measured:
    """Decode with the real models. The price is reading the prompt with the draft, and for the scheduler,
    which decides whether it wants that, loading it too."""
    return side_by_side([bench], recording, [setting], tables)[0]


def side_by_side(
    benches: Sequence[Bench], recording: Recording, settings: Sequence[str], tables: Tables = NOTHING
) -> list[Measured]:
    """Decode under each setting with models of its own, `TURN` tokens each by turns: what slows the machine
    down for a while slows them all down."""
    with ExitStack() as stack:
        prices: list[list[float]] = [[] for _ in settings]
        runs = []
        for bench, setting, price in zip(benches, settings, prices, strict=True):
            policy = make(setting, _real_parts(bench, recording, price, stack), tables)
            generator = Generator(bench.target, recording.sampler(), bench.is_end, policy, clock=bench.clock)
            runs.append(_Run(generator, recording, setting))
        going = runs
        while going:
            going = [run for run in going if run.advance(TURN)]
        return [run.measured(sum(price)) for run, price in zip(runs, prices, strict=True)]


def replay(
    recording: Recording,
    setting: str,
    prices: Prices,
    parts: Parts,
    is_end: Callable[[int], bool],
    tables: Tables = NOTHING,
) -> tuple[Measured, Policy]:
    """Decode on a virtual clock. Of `parts` only `free`, `prior` and `wakes` are looked at."""
    clock = VirtualClock()
    policy = make(setting, _priced_parts(recording, prices, parts, clock, is_end), tables)
    n_ctx = len(recording.text) + WIDEST_PASS
    target = PricedTarget(clock, prices.curve, n_ctx, tokens=list(recording.text[: recording.n_prompt - 1]))
    generator = Generator(target, Forced(recording.text), is_end, policy, clock=clock)
    return _decode(generator, recording, setting, 0.0), policy


def replays(
    recordings: Sequence[Recording],
    settings: Sequence[str],
    prices: Prices,
    parts: Parts,
    is_end: Callable[[int], bool],
) -> dict[str, list[Measured]]:
    """Every recording under every setting and under `auto`, in order."""
    found: dict[str, list[Measured]] = {}
    tables: list[Tables] = []
    for setting in dict.fromkeys((AUTO, *settings)):
        found[setting] = []
        for i, recording in enumerate(recordings):
            known = others(tables, recordings, i) if setting == WARM else NOTHING
            measured, policy = replay(recording, setting, prices, parts, is_end, known)
            found[setting].append(measured)
            if setting == AUTO:
                assert isinstance(policy, Scheduler)
                tables.append(learnt(policy))
    return found


def tables_of(
    recordings: Sequence[Recording], prices: Prices, parts: Parts, is_end: Callable[[int], bool]
) -> list[Tables]:
    """What a scheduler learns on each recording, and on nothing else."""
    policies = (replay(recording, AUTO, prices, parts, is_end)[1] for recording in recordings)
    return [learnt(policy) for policy in policies if isinstance(policy, Scheduler)]


def others(tables: Sequence[Tables], recordings: Sequence[Recording], i: int) -> Tables:
    """What was learnt on the other prompts, greedy or drawn as the i-th one is."""
    own = recordings[i]
    return pooled(
        [
            table
            for table, other in zip(tables, recordings, strict=True)
            if (other.family, other.prompt) != (own.family, own.prompt)
            and (other.temperature == 0) == (own.temperature == 0)
        ]
    )


@dataclass(slots=True)
class _Run:
    """A recording being decoded."""

    generator: Generator
    recording: Recording
    setting: str
    steps: list[Step] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    seconds: float = 0.0
    _going: Iterator[Step] = field(init=False)

    def __post_init__(self) -> None:
        recording = self.recording
        prompt = list(recording.text[: recording.n_prompt])
        self._going = self.generator.generate(prompt, len(recording.emitted))

    def advance(self, tokens: int) -> bool:
        """Decode `tokens` more, or a few above; whether there is anything left."""
        goal, clock = len(self.emitted) + tokens, self.generator.clock
        start = clock()
        step = None
        while len(self.emitted) < goal and (step := next(self._going, None)):
            self.steps.append(step)
            self.emitted += step.tokens
        self.seconds += clock() - start
        return step is not None

    def measured(self, price: float) -> Measured:
        """What came of it. `price`: seconds that were spent before it began."""
        opened = sum(step.seconds_open for step in self.steps)
        seconds = self.seconds - self.generator.last_prefill.seconds - opened
        same = tuple(self.emitted) == self.recording.emitted
        return Measured(self.recording, self.setting, tuple(self.steps), seconds, price + opened, same)


def _decode(generator: Generator, recording: Recording, setting: str, price: float) -> Measured:
    run = _Run(generator, recording, setting)
    while run.advance(len(recording.emitted)):
        pass
    return run.measured(price)


def _drafter(model: LlamaModel, bench: Bench, recording: Recording, *, greedy: bool) -> ModelDrafter:
    sampler = Sampler(recording.sampling)
    return ModelDrafter("draft", model, sampler, bench.target.n_vocab, bench.is_end, greedy=greedy)


def _real_parts(bench: Bench, recording: Recording, prices: list[float], stack: ExitStack) -> Parts:
    """`prices` hears what reading the prompt took; a model that is loaded lazily is closed with `stack`."""
    draft = bench.draft
    if draft is None:
        return Parts(bench.known, bench.clock, bench.free, wakes=bench.wakes)

    def ready(greedy: bool) -> ModelDrafter:
        drafter = _drafter(draft.model, bench, recording, greedy=greedy)
        draft.model.rewind(0)
        start = bench.clock()
        drafter.open(recording.text[: recording.n_prompt])
        prices.append(bench.clock() - start)
        return drafter

    def load() -> ModelDrafter:
        model = draft.load()
        stack.callback(model.close)
        return _drafter(model, bench, recording, greedy=False)

    def lazy() -> LazyDrafter:
        return LazyDrafter("draft", load, draft.seconds_load, _raise)

    return Parts(bench.known, bench.clock, bench.free, ready, lazy, draft.cost, draft.prior, bench.wakes)


def _raise(error: Exception) -> None:
    """A chat goes on without a draft that cannot be loaded; a measurement must not."""
    raise error


def _priced_parts(
    recording: Recording, prices: Prices, parts: Parts, clock: VirtualClock, is_end: Callable[[int], bool]
) -> Parts:
    """Loading the draft and reading the prompt are free on a virtual clock."""
    guesses = recording.guesses
    if guesses is None:
        return Parts(prices.curve, clock, parts.free, wakes=parts.wakes)

    def priced(known: Guesses) -> PricedDrafter:
        return PricedDrafter("draft", known, clock, prices.curve, prices.guess, is_end)

    def ready(greedy: bool) -> PricedDrafter:
        return priced((recording.greedy if greedy else None) or guesses)

    cost = DraftCost(prices.guess, prices.curve)
    return Parts(
        prices.curve, clock, parts.free, ready, lambda: priced(guesses), cost, parts.prior, parts.wakes
    )


def in_turn(settings: Sequence[str], repeats: int) -> Iterator[str]:
    """The order of the runs of one recording: forwards, then backwards, so that drift cancels (ABBA)."""
    for repeat in range(repeats):
        yield from settings if repeat % 2 == 0 else reversed(settings)
