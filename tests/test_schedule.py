"""The scheduler on a virtual clock: it never loses more than promised, and wins what can be won.

A plain pass takes 1 second. Nothing here knows how the scheduler decides, only what comes of it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import TableModel, joint_law
from test_accept import OFF, PROMPT, DiceSampler, branches, end_is, law_of, never
from virtual import N_PROMPT, READS_FREE, Answer, Computed, Scripted, Timed, flat, seconds, steep, tokens

from localspec.bench.replay import Guesses, PricedDrafter, VirtualClock
from localspec.drafters import ModelDrafter, NgramDrafter
from localspec.engine.accept import Dice
from localspec.engine.cost import LADDER, DraftCost, PassCosts
from localspec.engine.generate import Generator
from localspec.engine.ledger import SHARE, START, Ledger
from localspec.engine.sampling import Sampler
from localspec.engine.schedule import Scheduler
from localspec.engine.sources import Costly, Free
from localspec.engine.types import Attempt, Sampling, Step
from localspec.llama.model import LlamaModel, LoadOptions

SAWTOOTH = {n: 1.0 + 0.15 * (n - 1) + (0.8 if n % 4 == 3 else 0.0) for n in LADDER}
CURVES = {
    "flat": flat(),
    "mild": flat(0.1),
    "sawtooth": SAWTOOTH,
    "as dear as tokens": steep(),
    "dearer": steep(1.5),
}
HOSTILE: dict[str, Callable[[int], bool]] = {
    "always wrong": lambda place: False,
    "right for 30 tokens, then never": lambda place: place < N_PROMPT + 30,
    "every second one": lambda place: place % 2 == 0,
    "stretches": lambda place: place // 40 % 2 == 0,
    "one in ten": lambda place: place % 10 == 0,
}


def promised(steps: Sequence[Step]) -> float:
    """Seconds that the steps may take."""
    return (1 + SHARE) * tokens(steps) + START + 1e-9


def kept(steps: Sequence[Step]) -> bool:
    """Whether the promise held at every moment."""
    return all(seconds(steps[:n]) <= promised(steps[:n]) for n in range(1, len(steps) + 1))


# It never loses more than promised.


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
@pytest.mark.parametrize("right", HOSTILE.values(), ids=HOSTILE)
def test_a_source_that_is_sure_and_wrong_costs_no_more_than_promised(
    curve: Mapping[int, float], right: Callable[[int], bool]
) -> None:
    answer = Answer(curve)
    assert kept(answer.play(free=[Free(Scripted("liar", answer.text, right))]))


@st.composite
def machines(draw: st.DrawFn) -> dict[int, float]:
    """Any curve, from flat over jagged to far dearer than single passes."""
    power, jagged = draw(st.floats(0.0, 2.0)), draw(st.floats(0.0, 1.0))
    rng = random.Random(draw(st.integers(0, 1000)))
    return {1: 1.0, **{n: 1.001 + (n**power - 1) * rng.uniform(1 - jagged, 1) for n in LADDER[1:]}}


@dataclass(frozen=True)
class Way:
    """How a source behaves: in stretches good or bad or silent; `honest`: it knows which."""

    stretch: int
    good: float
    honest: bool
    seed: int

    def source(self, make: type[Scripted], name: str, answer: Answer, **more: Any) -> Any:
        rng, places = random.Random(self.seed), range(len(answer.text))
        rates = [rng.choice([0.0, self.good, 1.0]) for _ in places]
        rights = [rng.random() < rates[place // self.stretch] for place in places]
        silent = [rng.random() < 0.2 for _ in places]
        return make(
            name,
            answer.text,
            rights.__getitem__,
            lambda place: max(0.001, rates[place // self.stretch]) if self.honest else rng.random(),
            lambda place: not silent[place // self.stretch],
            answer.clock,
            **more,
        )


ways = st.builds(
    Way,
    stretch=st.sampled_from([1, 3, 20, 100]),
    good=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    honest=st.booleans(),
    seed=st.integers(0, 1000),
)


@given(machines(), st.lists(ways, min_size=1, max_size=3))
@settings(max_examples=80, deadline=None)
def test_no_machine_and_no_free_sources_cost_more_than_promised(
    curve: dict[int, float], some: list[Way]
) -> None:
    answer = Answer(curve, length=250)
    free = [Free(way.source(Scripted, f"s{i}", answer)) for i, way in enumerate(some)]
    assert kept(answer.play(free=free))


@given(
    st.floats(0.001, 1.0),
    st.floats(0.0, 1.0),
    st.sets(st.sampled_from(LADDER)),
    st.sampled_from(sorted(HOSTILE)),
)
@settings(max_examples=60, deadline=None)
def test_nor_do_widths_that_were_never_measured(
    share: float, power: float, known: set[int], right: str
) -> None:
    curve = {n: 1.0 + share * (n - 1) ** power if n > 1 else 1.0 for n in LADDER}
    answer = Answer(curve, costs=PassCosts({n: curve[n] for n in {1, *known}}), length=250)
    assert kept(answer.play(free=[Free(Scripted("liar", answer.text, HOSTILE[right]))]))


@pytest.mark.parametrize("looks", [0.001, 0.015, 0.3])
@pytest.mark.parametrize("curve", ["flat", "sawtooth", "dearer"])
def test_looking_is_paid_for(looks: float, curve: str) -> None:
    """What the first looks cost is not known before; from then on they are counted like guesses."""
    answer = Answer(CURVES[curve])
    source = Scripted("slow", answer.text, HOSTILE["always wrong"], clock=answer.clock, looks=looks)
    steps = answer.play(free=[Free(source)])
    assert seconds(steps) <= promised(steps) + looks


def model_source(answer: Answer, right: Callable[[int], bool], cost: float, said: float = 0.0) -> Costly:
    """A source whose guesses take `cost`; `said`: what they are believed to take at first."""
    drafter = Computed("model", answer.text, right, clock=answer.clock, seconds=cost)
    return Costly(drafter, DraftCost(said or cost, READS_FREE))


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
@pytest.mark.parametrize("right", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("cost", [0.05, 0.4])
def test_a_bad_model_costs_no_more_than_promised(
    curve: Mapping[int, float], right: Callable[[int], bool], cost: float
) -> None:
    answer = Answer(curve)
    assert kept(answer.play(costly=[model_source(answer, right, cost)]))


@given(machines(), st.lists(ways, max_size=2), ways, st.floats(0.001, 2.0), st.floats(0.2, 5.0))
@settings(max_examples=80, deadline=None)
def test_nor_do_models_beside_free_sources(
    curve: dict[int, float], some: list[Way], way: Way, cost: float, wrong: float
) -> None:
    """What its guesses take is known only roughly: one of them may come too late to be stopped."""
    answer = Answer(curve, length=250)
    free = [Free(one.source(Scripted, f"s{i}", answer)) for i, one in enumerate(some)]
    model = way.source(Computed, "model", answer, seconds=cost)
    steps = answer.play(free, [Costly(model, DraftCost(cost * wrong, READS_FREE))])
    over = max(seconds(steps[:n]) - promised(steps[:n]) for n in range(1, len(steps) + 1))
    assert over <= 2 * cost


def test_a_source_that_gives_its_guess_no_chance() -> None:
    answer = Answer(flat())
    answer.play([Free(Scripted("modest", answer.text, confidence=0.0))], [model_source(answer, never, 0.1)])


def test_a_model_slower_than_thought_is_stopped_before_it_has_cost_much() -> None:
    answer = Answer(flat())
    steps = answer.play(costly=[model_source(answer, HOSTILE["always wrong"], 2.0, said=0.05)])
    assert seconds(steps) <= promised(steps) + 3 * 2.0


def test_the_promise_is_for_the_session_not_for_each_turn() -> None:
    answer = Answer(steep(0.5), length=60)
    policy = answer.scheduler(free=[Free(Scripted("liar", answer.text, HOSTILE["always wrong"]))])
    steps = [step for _ in range(8) for step in answer.play(policy=policy)]
    assert tokens(steps) == 480
    assert kept(steps)


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_every_pass_without_guesses_says_why(curve: Mapping[int, float]) -> None:
    answer = Answer(curve)
    steps = answer.play([Free(Scripted("liar", answer.text, HOSTILE["stretches"]))])
    assert all(bool(step.why) == (step.drafted == 0) for step in steps)


# It wins what can be won.


@pytest.mark.parametrize("curve", ["flat", "mild", "sawtooth"])
def test_a_perfect_source_gets_close_to_the_speed_possible(curve: str) -> None:
    answer = Answer(CURVES[curve], length=800)
    steps = answer.play(free=[Free(Scripted("seer", answer.text))])
    possible = 800 * min(t / n for n, t in answer.curve.items())
    assert seconds(steps) <= 1.25 * possible
    assert all(step.accepted == step.drafted for step in steps)


@pytest.mark.parametrize("curve", ["flat", "mild", "sawtooth"])
@pytest.mark.parametrize("cost", [0.02, 0.2])
def test_a_perfect_model_too(curve: str, cost: float) -> None:
    answer = Answer(CURVES[curve], length=800)
    steps = answer.play(costly=[model_source(answer, lambda _: True, cost)])
    possible = 800 * min((t + (n - 1) * cost) / n for n, t in answer.curve.items())
    assert seconds(steps) <= 1.25 * possible


@pytest.mark.parametrize("curve", ["flat", "mild"])
def test_a_source_that_is_right_half_of_the_time_and_knows_when(curve: str) -> None:
    """In its silent stretches it costs nothing, in the others it is used to the full."""
    answer = Answer(CURVES[curve], length=800)
    source = Scripted("seer", answer.text, speaks=lambda place: place // 100 % 2 == 0)
    assert seconds(answer.play(free=[Free(source)])) < 0.65 * 800


def test_the_better_of_two_free_sources_is_found() -> None:
    answer = Answer(CURVES["mild"], length=800)
    bad, good = Scripted("bad", answer.text, HOSTILE["one in ten"]), Scripted("good", answer.text)
    steps = answer.play(free=[Free(bad), Free(good)])
    used = [step.source for step in steps[len(steps) // 2 :] if step.drafted]
    assert used.count("good") > 0.9 * len(used)
    assert seconds(steps) < 0.3 * 800


def test_nothing_is_guessed_where_it_cannot_pay() -> None:
    answer = Answer(CURVES["dearer"])
    assert all(step.width == 1 for step in answer.play(free=[Free(Scripted("seer", answer.text))]))


@pytest.mark.parametrize("wide", [0.9, 1.0])
def test_a_wide_pass_as_cheap_as_a_plain_one(wide: float) -> None:
    answer = Answer({n: 1.0 if n == 1 else wide for n in LADDER})
    assert seconds(answer.play(free=[Free(Scripted("seer", answer.text))])) < 40


def test_guesses_are_padded_up_to_a_cheaper_width() -> None:
    curve = {1: 1.0, 2: 2.5, 3: 2.5, 4: 1.2}
    answer = Answer(curve, costs=PassCosts(curve, widths=tuple(curve)))

    class Two(Scripted):
        def propose(self, context, limit, go_on):  # type: ignore[no-untyped-def]
            return super().propose(context, min(limit, 2), go_on)

    steps = answer.play(free=[Free(Two("two", answer.text))])
    assert {(step.width, step.drafted) for step in steps if step.drafted} == {(4, 2)}
    assert len(steps) < 200


# A model that has to be loaded.


def loaded(length: int, load: float, right: Callable[[int], bool] = lambda _: True) -> tuple[Computed, float]:
    """The source after an answer of `length` tokens, and the seconds that took."""
    answer = Answer(CURVES["mild"], length=length)
    drafter = Computed("model", answer.text, right, clock=answer.clock, seconds=0.1, load=load)
    steps = answer.play(costly=[Costly(drafter, DraftCost(0.1, READS_FREE))])
    assert sum(step.seconds_open for step in steps) == pytest.approx(load if drafter.opened else 0.0)
    assert answer.clock.now == pytest.approx(seconds(steps) + (load if drafter.opened else 0.0))
    return drafter, answer.clock.now


@pytest.mark.parametrize(("length", "load"), [(60, 1.0), (250, 10.0), (800, 10.0)])
def test_a_model_that_repays_is_loaded_once(length: int, load: float) -> None:
    drafter, took = loaded(length, load)
    assert len(drafter.opened) == 1
    assert took < 0.6 * length


@pytest.mark.parametrize(("length", "load"), [(5, 5.0), (20, 20.0), (60, 60.0), (250, 250.0), (800, 1000.0)])
def test_a_model_that_does_not_is_never_loaded(length: int, load: float) -> None:
    drafter, took = loaded(length, load)
    assert not drafter.opened
    assert not drafter.made
    assert took == pytest.approx(length)


# A source that lost is paused, and comes back.

FENCE = 900
"""A place of the text."""


def uses(wakes: bool) -> list[int]:
    """Where a model that is always wrong was tried in an answer of 2000 tokens with a fence in it."""
    answer = Answer(flat(0.3), length=2000)
    source = model_source(answer, HOSTILE["always wrong"], 0.3)
    fence = answer.text[FENCE]
    policy = answer.scheduler(costly=[source], wakes=lambda token: wakes and token == fence)
    answer.play(policy=policy)
    assert isinstance(source.drafter, Computed)
    return source.drafter.used


def gap(used: Sequence[int], place: int) -> int:
    """Tokens from `place` to the next use after it."""
    return next(p for p in [*used, 10_000] if p > place) - place


def test_a_model_that_loses_is_tried_ever_more_seldom() -> None:
    used = uses(wakes=False)
    assert len(used) < 30
    pauses = [b - a for a, b in itertools.pairwise(used)]
    assert max(pauses) >= 256
    assert pauses[-1] > 4 * pauses[0]


def test_a_fence_brings_it_back() -> None:
    assert gap(uses(wakes=False), FENCE) > 100
    assert gap(uses(wakes=True), FENCE) <= 50


def test_a_new_turn_brings_it_back() -> None:
    answer = Answer(flat(0.3), length=1000)
    source = model_source(answer, HOSTILE["always wrong"], 0.3)
    policy = answer.scheduler(costly=[source])
    answer.play(policy=policy)
    used = source.drafter.used  # type: ignore[attr-defined]
    first = len(used)
    answer.play(policy=policy)
    assert used[first] <= N_PROMPT + 50
    assert source.drafter.begun == [N_PROMPT, N_PROMPT]  # type: ignore[attr-defined]


def test_a_model_is_not_asked_within_a_sure_copy() -> None:
    """What asking is worth and what the copy is worth are told at the same rate of tokens a second."""
    answer = Answer(flat(0.03), length=2000)
    copy = Scripted("copy", answer.text, confidence=0.98, speaks=lambda at: at >= N_PROMPT + 50)
    source = model_source(answer, lambda at: at % 5 > 0, 0.12)
    answer.play(policy=answer.scheduler(free=[Free(copy)], costly=[source]))
    assert isinstance(source.drafter, Computed)
    before, within = (
        [p for p in source.drafter.used if (p < N_PROMPT + 80) == early] for early in (True, False)
    )
    assert before
    assert len(within) <= 3


def test_a_model_that_could_not_pay_were_it_always_right_is_hardly_tried() -> None:
    answer = Answer({1: 1.0, 2: 1.9, 4: 2.8, 8: 4.0, 16: 6.2}, length=2000)
    source = model_source(answer, lambda _: True, 1.0)
    steps = answer.play(policy=answer.scheduler(costly=[source], ledger=Ledger(tokens=10**9)))
    assert isinstance(source.drafter, Computed)
    assert 1 <= len(source.drafter.used) <= 4  # its price might have changed
    assert seconds(steps) < 1.01 * answer.length


STAIRS = {
    1: 1.0,
    2: 1.8,
    4: 1.7,
    5: 1.85,
    6: 2.0,
    7: 2.15,
    8: 2.3,
    12: 2.9,
    16: 3.0,
    24: 3.6,
    32: 4.2,
    48: 5.6,
}


def reader(answer: Answer, right: Callable[[int], bool], sure: Callable[[int], float]) -> Costly:
    """A model that pays for what it reads as the target does, a guess at 0.15 of a plain pass."""

    def ask(place: int, off: tuple[int, ...]) -> tuple[int, float]:
        return answer.text[place] + bool(off or not right(place)), sure(place)

    drafter = PricedDrafter("model", Guesses(answer.text, ask), answer.clock, answer.curve, 0.15)
    return Costly(drafter, DraftCost(0.15, answer.curve))


@pytest.mark.parametrize("seed", range(6))
def test_a_model_that_had_bad_luck_gets_another_chance(seed: int) -> None:
    """What it has not read meanwhile it reads at once, which must not look as dear as token by token, and
    reading it is wasted unless enough may be lost for a whole draft and its check."""
    answer, rng = Answer(STAIRS, length=600), random.Random(seed)
    sure = [rng.choice((0.4, 0.55, 0.75, 0.93, 0.98, 0.99)) for _ in answer.text]
    lucky = [rng.random() < chance for chance in sure]
    source = reader(answer, lambda place: place > N_PROMPT + 6 and lucky[place], sure.__getitem__)
    steps = answer.play(costly=[source])
    assert kept(steps)
    assert not any(step.accepted for step in steps[:5])
    assert seconds(steps) < 0.9 * answer.length


def test_a_draft_that_will_not_be_checked_is_not_drawn_out() -> None:
    """Where whatever checks a guess costs the same, further guesses look cheap until none is checked."""
    curve, rng = {1: 1.0, 4: 1.9}, random.Random(1)
    answer = Answer(curve, length=1500, costs=PassCosts(curve, widths=(1, 4)))
    sure = [rng.choice((0.35, 0.97)) for _ in answer.text]
    rights = [rng.random() < chance for chance in sure]
    model = Computed(
        "model", answer.text, rights.__getitem__, sure.__getitem__, clock=answer.clock, seconds=0.15
    )
    answer.play(costly=[Costly(model, DraftCost(0.15, READS_FREE))])
    weak = [made for place, made in zip(model.used, model.made, strict=True) if sure[place] < 0.5]
    assert len(weak) > 50
    assert sum(map(len, weak)) < 1.5 * len(weak)


def test_behind_a_long_copy_time_is_soon_worth_less() -> None:
    """Else nothing that is slower than the copy was would seem worth its time."""
    answer, end = Answer(STAIRS, length=900), N_PROMPT + 700
    copy = Scripted("copy", answer.text, confidence=0.99, speaks=lambda place: place < end - 50)
    source = reader(answer, lambda place: place % 8 > 0, lambda _: 0.85)
    steps = answer.play(free=[Free(copy)], costly=[source])
    places = list(itertools.accumulate((len(step.tokens) for step in steps), initial=N_PROMPT))
    behind = [step for step, place in zip(steps, places, strict=False) if place >= end]
    assert tokens(behind) > 150
    assert seconds(behind) < 0.75 * tokens(behind)


@pytest.mark.parametrize("turning", [150, 700])
def test_a_source_that_becomes_good_is_found_again(turning: int) -> None:
    answer = Answer(CURVES["mild"], length=2000)
    source = Scripted("late", answer.text, lambda place: place >= turning)
    steps = answer.play(free=[Free(source)])
    assert seconds(steps) < turning + 0.45 * (2000 - turning)


# Limits.


class Ask:
    """The scheduler without a loop: what it wants at each place, told what came of it as the text says."""

    def __init__(self, answer: Answer, policy: Scheduler) -> None:
        self.answer, self.policy = answer, policy
        policy.begin(answer.text[:N_PROMPT])
        self.place = N_PROMPT

    def step(self, room: int) -> Attempt:
        answer = self.answer
        start = answer.clock.now
        attempt = self.policy.draft(answer.text[: self.place], room)
        drafting = answer.clock.now - start
        guesses = attempt.proposal.tokens
        right = 0
        while right < len(guesses) and guesses[right] == answer.text[self.place + right]:
            right += 1
        emitted = tuple(answer.text[self.place : self.place + right + 1])
        took = answer.curve[attempt.width]
        answer.clock.now += took
        step = Step(
            emitted, attempt.source, len(guesses), right, drafting, took, 0.0, attempt.width, why=attempt.why
        )
        self.policy.learn(step, self.place - 1)
        self.place += len(emitted)
        return attempt


@pytest.mark.parametrize("costly", [False, True])
def test_no_pass_is_taken_at_an_old_price_that_could_now_lose_too_much(costly: bool) -> None:
    answer = Answer(flat(), length=3000)
    models = [model_source(answer, lambda _: True, 0.01)]
    policy = answer.scheduler(
        [] if costly else [Free(Scripted("seer", answer.text))], models if costly else []
    )
    ask = Ask(answer, policy)
    while ask.step(200).width < 16:
        pass
    for width in LADDER[1:]:
        for _ in range(3):
            policy.costs.observe(width, ask.place, 100.0)
    for _ in range(3):
        width, plain = ask.step(200).width, policy.costs.plain(ask.place)
        assert width == 1 or policy.ledger.admits(policy.costs.worst(width, ask.place) / plain)


@pytest.mark.parametrize("curve", ["flat", "sawtooth"])
@pytest.mark.parametrize("costly", [False, True])
def test_guesses_and_padding_fit_the_room(curve: str, costly: bool) -> None:
    answer = Answer(CURVES[curve], length=3000)
    free = [Free(Scripted("seer", answer.text))]
    models = [model_source(answer, lambda _: True, 0.01)]
    ask = Ask(answer, answer.scheduler([] if costly else free, models if costly else []))
    drafted = 0
    for step in range(400):
        room = step % 8 if step % 3 else step % 70
        attempt = ask.step(room)
        assert len(attempt.proposal.tokens) + 1 <= attempt.width
        assert attempt.width <= room + 1
        assert attempt.width in LADDER
        drafted += len(attempt.proposal.tokens)
    assert drafted > 1000


@pytest.mark.parametrize("spare", [0, 1, 2, 3, 5, 8, 30])
def test_an_answer_fills_the_context_and_not_more(spare: int) -> None:
    """The target refuses a pass past its end; at the end of the context there is no room for padding."""
    answer = Answer(SAWTOOTH, length=300, n_ctx=N_PROMPT + 40 + spare)
    steps = answer.play(free=[Free(Scripted("seer", answer.text))])
    assert tokens(steps) == 41 + spare
    answer = Answer(SAWTOOTH, length=40 + spare)
    assert tokens(answer.play(free=[Free(Scripted("seer", answer.text))])) == 40 + spare


def test_the_end_of_an_answer_says_nothing_about_the_next_one() -> None:
    """There is room again."""
    answer = Answer(flat(), length=3000)
    policy = answer.scheduler([Free(Scripted("seer", answer.text))])
    ask = Ask(answer, policy)
    assert max(ask.step(200).width for _ in range(12)) > 24
    assert all(ask.step(2).width <= 3 for _ in range(4))
    policy.begin(answer.text[: ask.place])
    assert max(ask.step(200).width for _ in range(2)) > 24


# Drawn guesses.


@pytest.mark.parametrize("curve", ["flat", "mild", "sawtooth"])
@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("sure", [(0.3, 0.7, 0.99), (0.6, 0.9), (0.05, 0.5)])
def test_every_guess_that_was_drawn_is_submitted(curve: str, free: bool, sure: tuple[float, ...]) -> None:
    answer, rng = Answer(CURVES[curve], length=3000), random.Random(1)
    rates = [rng.choice(sure) for _ in answer.text]
    rights = [rng.random() < rate for rate in rates]
    model = Computed(
        "model",
        answer.text,
        rights.__getitem__,
        rates.__getitem__,
        clock=answer.clock,
        seconds=0.02,
        drawn=True,
    )
    others = [Free(Scripted("copy", answer.text, HOSTILE["stretches"], 0.7))] if free else []
    costly = [Costly(model, DraftCost(0.02, READS_FREE))]
    policy = Scheduler(PassCosts(answer.curve), others, costly, answer.clock, drawn=True)
    ask = Ask(answer, policy)
    drafts = 0
    while ask.place < 1500:
        before = len(model.made)
        proposal = ask.step(200).proposal
        if len(model.made) > before:
            made = model.made[-1]
            submitted = list(proposal.tokens)[len(proposal.tokens) - len(made) :]
            assert submitted == made
            assert proposal.dists is not None
            assert len(proposal.dists) == len(proposal.tokens) == len(proposal.confidence)
            drafts += 1
    assert drafts > 20


LAW_CURVES = {"flat": flat(), "sawtooth": SAWTOOTH}


@pytest.mark.parametrize("curve", LAW_CURVES.values(), ids=LAW_CURVES)
@pytest.mark.parametrize("copies", [False, True])
def test_drawn_guesses_leave_the_targets_law_exact(curve: Mapping[int, float], copies: bool) -> None:
    """Every outcome of the dice, for four tokens behind what the first pass measures."""
    target = TableModel(seed=1, n_vocab=3, spread=1.0, end=2)
    draft = TableModel(seed=2, n_vocab=3, spread=0.5, near=TableModel(seed=1, n_vocab=3, spread=1.0))
    used = 0

    def run(dice: Dice) -> tuple[int, ...]:
        nonlocal used
        target.rewind(0)
        draft.rewind(0)
        clock = VirtualClock()
        sampler = DiceSampler(OFF, dice)
        drafter = ModelDrafter("draft", draft, sampler, 3, end_is(2), dice)
        free = [Free(NgramDrafter())] if copies else []
        policy = Scheduler(
            PassCosts(curve), free, [Costly(drafter, DraftCost(0.01, {1: 1.0}))], clock, drawn=True
        )
        loop = Generator(Timed(target, clock, curve), sampler, target.is_end, policy, dice, clock)
        steps = list(loop.generate(PROMPT, 4))
        used += any("draft" in step.source for step in steps)
        return tuple(token for step in steps for token in step.tokens)

    assert law_of(branches(run)) == pytest.approx(joint_law(target, OFF, PROMPT, 4), abs=1e-9)
    assert used > 20


# What it tells.


def whys(steps: Sequence[Step]) -> set[str]:
    return {step.why for step in steps}


def test_it_says_why_nothing_was_guessed() -> None:
    answer = Answer(CURVES["mild"])
    assert answer.play()[0].why == "measuring the plain speed"
    silent = Scripted("silent", answer.text, speaks=lambda _: False)
    assert "nothing to guess from" in whys(answer.play(free=[Free(silent)]))
    dear = Answer(CURVES["dearer"])
    assert "guesses cost more than they save here" in whys(
        dear.play(free=[Free(Scripted("seer", dear.text))])
    )
    lost = Answer(CURVES["mild"])
    liar = Scripted("liar", lost.text, HOSTILE["always wrong"])
    policy = lost.scheduler(free=[Free(liar)], ledger=Ledger(balance=START))
    assert "making up for guesses that lost" in whys(lost.play(policy=policy))


@pytest.mark.parametrize("right", HOSTILE.values(), ids=HOSTILE)
def test_a_step_without_guesses_has_a_reason_and_one_with_guesses_has_none(
    right: Callable[[int], bool],
) -> None:
    answer = Answer(CURVES["mild"])
    steps = answer.play(free=[Free(Scripted("liar", answer.text, right))])
    assert any(step.drafted for step in steps)
    assert all(bool(step.why) == (step.drafted == 0) for step in steps[:-1])
    assert all((step.source == "none") == (step.drafted == 0) for step in steps)


def test_the_plain_speed_is_measured_at_first_and_now_and_then() -> None:
    answer = Answer(CURVES["flat"], length=20_000)
    steps = answer.play(free=[Free(Scripted("seer", answer.text))])
    plain = [i for i, step in enumerate(steps) if step.why == "measuring the plain speed"]
    assert plain[0] == 0
    assert 2 <= len(plain) <= 2 + len(steps) / 128
    assert all(steps[i].width == 1 for i in plain)


@pytest.mark.parametrize(("looks", "share"), [(0.001, 0.9), (0.01, 0.2)])
def test_looks_that_are_dear_and_find_nothing_become_rare(looks: float, share: float) -> None:
    answer = Answer(flat())
    silent = Scripted("silent", answer.text, speaks=lambda _: False, clock=answer.clock, looks=looks)
    answer.play(free=[Free(silent)])
    places = [place for place, _ in silent.asked]
    assert (len(places) > share * answer.length) == (share > 0.5)
    assert max(later - place for place, later in itertools.pairwise(places)) <= 8


@pytest.mark.parametrize("looks", [0.001, 0.01])
def test_a_copy_that_begins_after_a_long_time_is_found_at_once(looks: float) -> None:
    answer, begins = Answer(flat()), N_PROMPT + 300
    late = Scripted("late", answer.text, speaks=lambda at: at >= begins, clock=answer.clock, looks=looks)
    steps = answer.play(free=[Free(late)])
    emitted = itertools.accumulate((len(step.tokens) for step in steps), initial=N_PROMPT)
    found = next(place for place, step in zip(emitted, steps, strict=False) if step.width > 1)
    assert begins <= found <= begins + 8


@pytest.mark.parametrize("n", [1, 2, 20, 100, 399])
def test_nothing_is_missing_in_the_ledger_at_any_time(n: int) -> None:
    answer = Answer(flat())
    silent = Scripted("silent", answer.text, speaks=lambda _: False, clock=answer.clock, looks=0.01)
    policy = answer.scheduler([Free(silent)])
    steps = answer.play(policy=policy, most_steps=n)
    assert policy.ledger.tokens == tokens(steps) == n
    assert policy.ledger.balance == pytest.approx(seconds(steps) - n)


def test_steps_tell_what_plain_decoding_would_have_taken() -> None:
    answer = Answer(CURVES["mild"])
    steps = answer.play(free=[Free(Scripted("seer", answer.text))])
    assert sum(step.seconds_plain for step in steps) == pytest.approx(tokens(steps))


# A real model.


@pytest.mark.parametrize("right", HOSTILE.values(), ids=HOSTILE)
def test_a_real_model_with_a_liar_loses_no_more_than_promised(
    real_model: Path, right: Callable[[int], bool]
) -> None:
    """The text is that of plain decoding; a virtual clock prices the passes, so that the promise is exact."""
    with LlamaModel(real_model, LoadOptions(n_ctx=1024, threads=1, flash_attn="on")) as model:
        prompt = model.vocab.tokenize("Once upon a time", special=False)
        greedy = Sampler(Sampling(temperature=0.0))
        text = [t for step in Generator(model, greedy, never).generate(prompt, 60) for t in step.tokens]
        model.rewind(0)
        clock = VirtualClock()
        target = Timed(model, clock, CURVES["mild"])
        liar = Scripted("liar", [*prompt, *text, *[0] * 70], right)
        policy = Scheduler(PassCosts(CURVES["mild"]), [Free(liar)], [], clock)
        loop = Generator(target, greedy, never, policy, clock=clock)
        steps = list(loop.generate(prompt, 60))
    assert [token for step in steps for token in step.tokens] == text
    assert any(step.drafted for step in steps)
    assert kept(steps)
