"""A draft model guess by guess, and one that is loaded only when that repays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import pytest
from tables import TableModel, plain_text, plain_token
from test_accept import never
from virtual import READS_FREE, Timed, flat

from localspec.bench.replay import VirtualClock
from localspec.drafters import LazyDrafter, ModelDrafter
from localspec.engine.cost import DraftCost, PassCosts
from localspec.engine.generate import Generator
from localspec.engine.sampling import RandomDice, Sampler
from localspec.engine.schedule import Costly, Scheduler
from localspec.engine.types import Guess, Sampling, Step

CONTEXT = [1, 2, 3, 4, 1, 2]
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "sampled": Sampling(temperature=0.9, seed=3),
    "penalties": Sampling(temperature=0.9, seed=3, repeat_penalty=1.4),
}


def drafter(sampling: Sampling = SAMPLINGS["sampled"], n_ctx: int = 256, **more: object) -> ModelDrafter:
    model = TableModel(seed=2, n_vocab=12, n_ctx=n_ctx, spread=2.0)
    return ModelDrafter("draft", model, Sampler(sampling), 12, **{"is_end": never, **more})  # type: ignore[arg-type]


def table(source: ModelDrafter) -> TableModel:
    assert isinstance(source.model, TableModel)
    return source.model


def guesses(source: ModelDrafter, context: list[int], guessed: list[int], count: int) -> list[Guess]:
    return list(islice(source.follow(context, guessed), count))


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_draft_says_what_its_model_would_say_there(sampling: Sampling) -> None:
    source = drafter(sampling)
    text = list(CONTEXT)
    for guess in guesses(source, CONTEXT, [], 20):
        assert guess.token == plain_token(table(source), source.sampler, text)
        assert 0.0 <= guess.confidence <= 1.0
        assert guess.dist is None
        text.append(guess.token)
    assert len(text) == len(CONTEXT) + 20


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_guesses_behind_guesses_are_those_of_a_longer_context(sampling: Sampling) -> None:
    for guessed in ([5], [6, 7, 8], CONTEXT):
        assert guesses(drafter(sampling), CONTEXT, guessed, 6) == guesses(
            drafter(sampling), [*CONTEXT, *guessed], [], 6
        )


def test_proposing_is_following_to_the_limit() -> None:
    proposal = drafter().propose(CONTEXT, 5, lambda _: True)
    expected = guesses(drafter(), CONTEXT, [], 5)
    assert proposal.tokens == [guess.token for guess in expected]
    assert proposal.confidence == [guess.confidence for guess in expected]
    assert drafter().propose(CONTEXT, 0, lambda _: True).tokens == []


def test_a_guess_is_computed_when_it_is_asked_for() -> None:
    source = drafter()
    follow = source.follow(CONTEXT, [5, 6])
    assert table(source).widths == []
    next(follow)
    assert table(source).widths == [len(CONTEXT) + 2]
    next(follow)
    next(follow)
    assert table(source).widths == [len(CONTEXT) + 2, 1, 1]


def test_nothing_is_read_twice() -> None:
    source = drafter()
    source.begin(CONTEXT)
    assert source.unseen(CONTEXT) == len(CONTEXT)
    source.open(CONTEXT)
    assert source.unseen(CONTEXT) == 1
    assert table(source).tokens == CONTEXT[:-1]
    made = [guess.token for guess in guesses(source, CONTEXT, [], 4)]
    right = [*CONTEXT, *made[:2], (made[2] + 1) % 12]
    assert source.unseen(right) == 1  # two guesses were right, so their place in the cache is
    guesses(source, right, [], 1)
    assert table(source).widths == [1, 1, 1, 1, 1]
    longer = [*right, 3, 4, 5]
    assert 1 <= source.unseen(longer) <= 4  # the guess made last may be right by chance
    guesses(source, longer, [], 1)
    assert table(source).tokens == longer


def test_another_turn_may_begin_anywhere() -> None:
    source = drafter()
    guesses(source, [*CONTEXT, 5, 6], [7], 4)
    for context in ([1, 2, 3], [9, 9], [*CONTEXT, 5, 6, 7, 8], CONTEXT):
        source.begin(context)
        assert guesses(source, context, [], 3) == guesses(drafter(), context, [], 3)


def test_a_follow_left_halfway_leaves_no_trace() -> None:
    source = drafter()
    first = source.follow(CONTEXT, [5])
    next(first)
    for context, guessed in ((CONTEXT, [6, 6]), ([*CONTEXT, 1], []), ([*CONTEXT, 1, 2], [4])):
        assert guesses(source, context, guessed, 3) == guesses(drafter(), context, guessed, 3)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("wrong", [0, 1, 3, 7, 99])
def test_what_is_suggested_changes_no_guess_but_saves_passes(sampling: Sampling, wrong: int) -> None:
    """Suggestions are right up to one of them; each pass reads four of them along."""
    alone = guesses(drafter(sampling), CONTEXT, [5], 12)
    said = [guess.token for guess in alone]
    said[wrong:] = [(token + 1) % 12 for token in said[wrong:]]
    source, asked = drafter(sampling), list[int]()

    def suggest(made: Sequence[int]) -> list[int]:
        asked.append(len(made))
        return said[len(made) : len(made) + 4]

    assert list(islice(source.follow(CONTEXT, [5], suggest), 12)) == alone
    widths = table(source).widths
    assert widths[0] == len(CONTEXT) + 1 + 4
    assert len(widths) == len(asked)
    assert asked == sorted(set(asked))
    assert len(widths) == {0: 12, 1: 11, 3: 9, 7: 6, 99: 3}[wrong]
    longer = [*CONTEXT, 5, *(guess.token for guess in alone[:3]), 7]
    assert guesses(source, longer, [], 3) == guesses(drafter(sampling), longer, [], 3)


def test_no_more_is_suggested_than_the_context_holds() -> None:
    small = drafter(n_ctx=10)
    alone = guesses(drafter(), CONTEXT, [], 5)
    assert list(small.follow(CONTEXT, [], lambda _made: [1] * 90)) == alone
    assert max(table(small).widths) <= 10


def test_it_ends_with_the_turn_and_with_its_context() -> None:
    tokens = [guess.token for guess in guesses(drafter(), CONTEXT, [], 10)]
    end = tokens[3]
    ending = drafter(is_end=lambda token: token == end)
    assert [guess.token for guess in ending.follow(CONTEXT, [])] == tokens[: tokens.index(end) + 1]
    small = drafter(n_ctx=10)
    assert [guess.token for guess in small.follow(CONTEXT, [])] == tokens[:5]
    assert len(list(small.follow(CONTEXT, [5, 6]))) == 3
    assert list(small.follow([*CONTEXT, *CONTEXT], [])) == []
    assert list(small.follow(CONTEXT, CONTEXT)) == []


def test_drawn_guesses_carry_their_laws() -> None:
    source = drafter(dice=RandomDice(5))
    for guess in guesses(source, CONTEXT, [], 8):
        assert guess.dist is not None
        assert guess.token in guess.dist.ids
        assert guess.dist.probs.sum() == pytest.approx(1.0)
        assert 0.0 <= guess.confidence <= 1.0


def test_a_greedy_draft_says_the_likeliest_whatever_the_sampler() -> None:
    assert guesses(drafter(greedy=True), CONTEXT, [], 8) == guesses(
        drafter(SAMPLINGS["greedy"]), CONTEXT, [], 8
    )


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_confidence_tells_right_from_wrong(sampling: Sampling) -> None:
    """A draft like its target: guesses it is surer of are right more often."""
    target = TableModel(seed=1, n_vocab=12, spread=2.0, order=4)
    draft = TableModel(seed=2, n_vocab=12, spread=1.0, order=4, near=target)
    source = ModelDrafter("draft", draft, Sampler(sampling), 12, never)
    context, judged = list(CONTEXT), []
    for _ in range(240):
        token = plain_token(target, source.sampler, context)
        guess = next(iter(source.follow(context, [])))
        judged.append((guess.confidence, guess.token == token))
        context.append(token)
    judged.sort()
    low, high = judged[:80], judged[-80:]
    assert sum(right for _, right in high) > sum(right for _, right in low) + 15


# Loaded when it repays.

CHEAP = {n: 0.1 * t for n, t in flat().items()}


@dataclass
class Loader:
    """Makes a draft model that is its target, in `seconds` of the clock, or fails."""

    target: TableModel
    sampler: Sampler
    clock: VirtualClock
    seconds: float
    fails: bool = False
    loads: int = 0
    told: list[str] = field(default_factory=list)

    def __call__(self) -> ModelDrafter:
        self.loads += 1
        self.clock.now += self.seconds
        if self.fails:
            raise RuntimeError("no memory")
        twin = TableModel(seed=self.target.seed, n_vocab=12, n_ctx=512, order=3)
        return ModelDrafter("inner", Timed(twin, self.clock, CHEAP), self.sampler, 12, never)

    def drafter(self) -> LazyDrafter:
        return LazyDrafter("draft", self, self.seconds, lambda error: self.told.append(str(error)))


def loader(seconds: float = 2.0, fails: bool = False) -> Loader:
    target = TableModel(seed=1, n_vocab=12, n_ctx=512, order=3)
    return Loader(target, Sampler(Sampling(temperature=0.7, seed=1)), VirtualClock(), seconds, fails)


def test_a_lazy_draft_loads_at_the_first_guess_and_once() -> None:
    load = loader()
    lazy = load.drafter()
    lazy.begin(CONTEXT)
    assert (lazy.seconds_to_load, lazy.unseen(CONTEXT), load.loads) == (2.0, len(CONTEXT), 0)
    lazy.open(CONTEXT)
    assert (lazy.seconds_to_load, lazy.unseen(CONTEXT), load.loads) == (0.0, 1, 1)
    lazy.begin([*CONTEXT, 5])
    made = list(islice(lazy.follow([*CONTEXT, 5], [6]), 3))
    assert made == list(islice(load().follow([*CONTEXT, 5], [6]), 3))
    assert load.loads == 2  # the second by this test
    assert lazy.propose(CONTEXT, 3, lambda _: True).tokens
    assert load.loads == 2


@pytest.mark.parametrize("ask", ["open", "propose", "follow"])
def test_a_draft_that_cannot_be_loaded_is_silent_and_tells_once(ask: str) -> None:
    load = loader(fails=True)
    lazy = load.drafter()
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: lazy.open(CONTEXT),
        "propose": lambda: lazy.propose(CONTEXT, 4, lambda _: True),
        "follow": lambda: list(lazy.follow(CONTEXT, [])),
    }
    for name in (ask, *calls):
        calls[name]()
    assert load.told == ["no memory"]
    assert load.loads == 1
    assert lazy.propose(CONTEXT, 4, lambda _: True).tokens == ()
    assert list(lazy.follow(CONTEXT, [1])) == []
    assert lazy.seconds_to_load == 0.0


def answers(load: Loader, lengths: list[int]) -> list[list[Step]]:
    """Turns of one session with that draft; the text must be the target's."""
    clock = load.clock
    source = Costly(load.drafter(), DraftCost(0.1, READS_FREE), prior=0.9)
    policy = Scheduler(PassCosts(flat()), [], [source], clock)
    model = Timed(load.target, clock, flat())
    loop = Generator(model, load.sampler, never, policy, clock=clock)
    turns = []
    for length in lengths:
        steps = list(loop.generate(CONTEXT, length))
        text = [token for step in steps for token in step.tokens]
        assert text == plain_text(load.target, load.sampler, CONTEXT, length)
        turns.append(steps)
    return turns


def test_the_scheduler_loads_a_draft_for_a_long_answer_and_keeps_it() -> None:
    load = loader(seconds=5.0)
    turns = answers(load, [6, 200, 200])
    assert load.loads == 1
    assert all(step.drafted == 0 for step in turns[0])
    assert sum(step.drafted for step in turns[1]) > 100
    assert sum(step.seconds_open for step in turns[1]) == pytest.approx(5.0, abs=0.5)
    assert sum(step.drafted for step in turns[2]) > 100
    assert sum(step.seconds for step in turns[2]) < 100


@pytest.mark.parametrize(("seconds", "length"), [(10.0, 8), (60.0, 50), (1000.0, 400)])
def test_the_scheduler_never_loads_what_the_answer_does_not_repay(seconds: float, length: int) -> None:
    load = loader(seconds)
    answers(load, [length])
    assert load.loads == 0


def test_a_draft_that_fails_to_load_costs_its_time_once() -> None:
    load = loader(seconds=5.0, fails=True)
    turns = answers(load, [150, 150])
    assert load.loads == 1
    assert load.told == ["no memory"]
    assert not any(step.drafted for steps in turns for step in steps)
    assert load.clock.now == pytest.approx(305.0, rel=0.02)
