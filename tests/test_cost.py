"""What passes cost: kept as measured, learnt from what is seen, wrong memories corrected."""

from __future__ import annotations

import random
from collections.abc import Mapping
from copy import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual import N_PROMPT, Answer, Scripted, steep, tokens

from localspec.engine.cost import LADDER, DraftCost, PassCosts, calibrate
from localspec.engine.sources import Free
from localspec.engine.types import Step

SAWTOOTH = {1: 1.0, 2: 1.3, 3: 1.8, 4: 1.5, 5: 2.2, 6: 2.4, 7: 2.6, 8: 2.1, 16: 3.0}
curves = st.fixed_dictionaries({n: st.floats(0.5, 20.0) for n in LADDER})


def watched(costs: PassCosts, truth: Mapping[int, float], times: int = 10) -> PassCosts:
    """`costs` after passes of every width have been seen, each `times` times."""
    for _ in range(times):
        for n, seconds in truth.items():
            costs.observe(n, 0, seconds)
    return costs


# What a table says of each width.


def test_a_table_needs_a_plain_pass() -> None:
    for table in ({}, {2: 1.0}, {1: 0.0}):
        with pytest.raises(ValueError, match="one token"):
            PassCosts(table)


def test_the_sawtooth_is_kept_and_dominated_widths_are_skipped() -> None:
    costs = PassCosts(SAWTOOTH, widths=tuple(SAWTOOTH))
    assert costs.known() == SAWTOOTH
    assert costs.front(0) == [(1, 1.0), (2, 1.3), (4, 1.5), (8, 2.1), (16, 3.0)]


@given(curves)
def test_front_ascends_and_holds_the_cheapest_way_for_any_number_of_tokens(curve: dict[int, float]) -> None:
    front = PassCosts(curve).front(0)
    assert [n for n, _ in front] == sorted({n for n, _ in front})
    assert [t for _, t in front] == sorted({t for _, t in front})
    assert set(front) <= set(curve.items())
    for n in range(1, 49):
        cheapest = next(t for width, t in front if width >= n)
        assert cheapest == min(t for width, t in curve.items() if n <= width <= 48)


def test_only_widths_that_may_run_are_known_or_offered() -> None:
    costs = PassCosts({1: 1.0, 3: 1.2, 4: 1.1, 8: 1.5}, widths=(4, 8))
    assert costs.ladder == (1, 4, 8)
    assert costs.known() == {1: 1.0, 4: 1.1, 8: 1.5}
    assert [n for n, _ in costs.front(0)] == [1, 4, 8]


def test_an_unknown_width_is_hoped_to_be_cheap_and_admitted_as_dear() -> None:
    costs = PassCosts({1: 1.0, 2: 1.5, 8: 3.0}, widths=(1, 2, 4, 8, 16))
    front = dict(costs.front(0))
    assert front[4] == 1.5
    assert front[16] == 3.0
    assert costs.worst(4, 0) >= 2 * costs.worst(2, 0) > 2 * 1.5
    assert costs.worst(16, 0) >= 2 * costs.worst(8, 0)
    costs.observe(4, 0, 2.0)
    assert dict(costs.front(0))[4] == 2.0
    assert 2.0 <= costs.worst(4, 0) < 3.0


@given(curves)
def test_worst_is_no_less_than_expected(curve: dict[int, float]) -> None:
    costs = PassCosts(curve)
    assert all(costs.worst(n, c) >= t for c in (0, 500) for n, t in costs.front(c))


def test_attention_reads_the_cache_once_a_row() -> None:
    costs = PassCosts({1: 1.0, 4: 2.0}, slope=0.001, widths=(1, 4))
    assert costs.plain(1000) == pytest.approx(2.0)
    assert costs.front(1000) == [(1, pytest.approx(2.0)), (4, pytest.approx(6.0))]


# Learning from passes.


def test_observations_are_followed() -> None:
    costs = PassCosts({1: 1.0, 2: 1.5})
    for _ in range(30):
        costs.observe(2, 0, 1.2)
    assert costs.known() == {1: 1.0, 2: pytest.approx(1.2, rel=0.02)}
    for i in range(60):
        costs.observe(2, 0, 1.2 + 0.002 * i)
    assert costs.known()[2] == pytest.approx(1.32, rel=0.03)


def settled() -> PassCosts:
    """A plain pass takes 1.00 +- 0.02, seen often."""
    costs, rng = PassCosts({1: 1.0, 2: 1.5}), random.Random(1)
    for _ in range(40):
        costs.observe(1, 0, 1.0 + rng.uniform(-0.02, 0.02))
    return costs


@pytest.mark.parametrize("odd", [10.0, 0.05])
def test_outliers_are_dropped(odd: float) -> None:
    costs = settled()
    before, spread = costs.plain(0), costs.spread()
    for _ in range(10):
        costs.observe(1, 0, odd)
        costs.observe(1, 0, odd)
        assert costs.plain(0) == pytest.approx(before, rel=0.02)
        costs.observe(1, 0, 1.0)
    assert costs.plain(0) == pytest.approx(before, rel=0.02)
    assert costs.spread() <= spread


def test_the_third_in_a_row_is_a_new_level() -> None:
    costs = settled()
    costs.observe(1, 0, 1.3)
    costs.observe(1, 0, 1.3)
    assert costs.plain(0) == pytest.approx(1.0, rel=0.03)
    for _ in range(4):
        costs.observe(1, 0, 1.3)
    assert costs.plain(0) == pytest.approx(1.3, rel=0.05)


def test_widths_not_seen_move_with_the_plain_pass() -> None:
    costs = PassCosts({1: 1.0, 2: 1.5, 8: 2.0})
    for _ in range(30):
        costs.observe(1, 0, 1.2)
    assert costs.known() == {n: pytest.approx(1.2 * t, rel=0.03) for n, t in ((1, 1.0), (2, 1.5), (8, 2.0))}


@pytest.mark.parametrize("factor", [1.7, 1 / 1.7])
def test_a_big_shift_of_the_plain_pass_forgets_the_other_widths(factor: float) -> None:
    costs = watched(PassCosts({1: 1.0, 2: 1.5, 8: 2.0}), {1: 1.0, 2: 1.5, 8: 2.0})
    for _ in range(20):
        costs.observe(1, 0, factor)
    assert costs.known() == {1: pytest.approx(factor, rel=0.1)}


@pytest.mark.parametrize("factor", [1.3, 1 / 1.3])
def test_a_small_shift_does_not(factor: float) -> None:
    costs = watched(PassCosts({1: 1.0, 2: 1.5, 8: 2.0}), {1: 1.0, 2: 1.5, 8: 2.0})
    for _ in range(20):
        costs.observe(1, 0, factor)
    assert set(costs.known()) == {1, 2, 8}


TRUTH = {1: 1.0, 2: 1.2, 4: 1.5, 8: 2.0, 16: 3.0}


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_a_table_wrong_throughout_is_corrected(factor: float) -> None:
    costs = PassCosts({n: factor * t for n, t in TRUTH.items()}, widths=tuple(TRUTH))
    for _ in range(10):
        for n in (1, 2, 4, 8, 16):
            costs.observe(n, 0, TRUTH[n])
    assert costs.known() == {n: pytest.approx(t, rel=0.2) for n, t in TRUTH.items()}


@pytest.mark.parametrize("wrong", [2, 4, 8, 16])
@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_one_wrong_entry_is_corrected_once_it_is_seen(wrong: int, factor: float) -> None:
    costs = PassCosts({**TRUTH, wrong: factor * TRUTH[wrong]}, widths=tuple(TRUTH))
    for _ in range(20):
        costs.observe(wrong, 0, TRUTH[wrong])
        costs.observe(1, 0, 1.0)
    assert costs.known() == {n: pytest.approx(t, rel=0.1) for n, t in TRUTH.items()}


def scheduled(table: Mapping[int, float], curve: Mapping[int, float]) -> tuple[PassCosts, list[Step]]:
    """What the scheduler makes of `table` in 50 steps on `curve` with a source that is right 4 times in 5."""
    costs = PassCosts(table, widths=tuple(curve))
    answer = Answer(curve=curve, costs=costs, length=2000)
    source = Scripted("copy", answer.text, right=lambda place: place % 5 > 0, confidence=0.8)
    steps = answer.play(free=[Free(source)], most_steps=50)
    assert len(steps) == 50
    return costs, steps


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_the_scheduler_corrects_a_table_wrong_throughout(factor: float) -> None:
    costs, steps = scheduled({n: factor * t for n, t in TRUTH.items()}, TRUTH)
    assert costs.plain(N_PROMPT + tokens(steps)) == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize("wrong", [2, 4, 8, 16])
def test_the_scheduler_sees_through_an_entry_that_looks_too_cheap(wrong: int) -> None:
    """It may be tried, but not again once its true cost has shown."""
    curve = steep()
    costs, steps = scheduled({**curve, wrong: curve[wrong] / 3}, curve)
    tried = [step.width for step in steps].count(wrong)
    assert tried <= 5
    assert costs.known()[wrong] > 0.6 * curve[wrong] or not tried
    assert costs.plain(0) == pytest.approx(1.0, rel=0.1)


# The growth with context.


# Calibration.


class Machine:
    """A clock that a pass over n tokens moves by what `curve` says, and a list of the passes."""

    def __init__(self, curve: Mapping[int, float]) -> None:
        self.curve, self.now, self.passes = curve, 0.0, [0] * 0

    def run(self, n: int) -> None:
        self.passes.append(n)
        self.now += self.curve[n]

    def clock(self) -> float:
        return self.now


def test_calibration_measures_every_width_when_there_is_time() -> None:
    curve = {n: 0.001 * n for n in LADDER}
    machine = Machine(curve)
    found = calibrate(machine.run, machine.clock)
    assert found == {n: pytest.approx(t) for n, t in curve.items()}
    assert all(machine.passes.count(n) >= 2 for n in LADDER)


def test_the_quicker_of_two_passes_counts() -> None:
    machine, slow = Machine({}), {1: 0.009, 2: 0.007}

    def run(n: int) -> None:  # only the first time
        machine.passes.append(n)
        machine.now += slow.pop(n, 0.001 * n) if len(machine.passes) > 1 else 0.1

    assert calibrate(run, machine.clock, (1, 2)) == {1: pytest.approx(0.001), 2: pytest.approx(0.002)}


@given(curves, st.floats(0.0, 40.0), st.sets(st.sampled_from(LADDER)))
def test_calibration_keeps_to_its_budget(curve: dict[int, float], budget: float, widths: set[int]) -> None:
    machine = Machine({n: t * n for n, t in curve.items()})
    found = calibrate(machine.run, machine.clock, sorted(widths), budget)
    assert found == {n: pytest.approx(machine.curve[n]) for n in found}
    assert {1} <= set(found) <= {1, *widths}
    # the first two plain passes are made whatever they cost; of the last pass the cost is only foreseen
    assert machine.now - machine.curve[machine.passes[-1]] <= max(budget, 2 * machine.curve[1]) + 1e-9


def test_calibration_without_time_measures_the_plain_pass() -> None:
    machine = Machine({n: float(n) for n in LADDER})
    assert calibrate(machine.run, machine.clock, LADDER, 0.0) == {1: 1.0}
    assert machine.passes == [1, 1]


def test_calibration_leaves_out_what_will_not_fit() -> None:
    machine = Machine({n: float(n) for n in LADDER})
    found = calibrate(machine.run, machine.clock, LADDER, 20.0)
    assert 2 in found
    assert 64 not in found
    assert machine.now <= 20.0


@pytest.mark.parametrize("factor", [1e5, 1e-5])
def test_the_first_plain_pass_of_a_session_corrects_a_plain_pass_remembered_wrong(factor: float) -> None:
    costs = PassCosts({1: factor, 2: 1.5 * factor})
    costs.observe(1, 0, 1.0)
    assert costs.plain(0) == pytest.approx(1.0)
    assert costs.known() == {1: pytest.approx(1.0), 2: pytest.approx(1.5)}


# A source's guesses.


PASSES = {1: 2.0, 2: 3.0, 4: 2.8, 8: 6.0}


def test_draft_cost_counts_what_must_be_read_first() -> None:
    """A pass over so many tokens takes as many guesses as one of the target takes plain passes."""
    cost = DraftCost(0.3, PASSES)
    assert cost.reading(0) == cost.reading(1) == 0.0
    assert cost.reading(2) == pytest.approx(0.5 * 0.3)
    assert cost.reading(5) == cost.reading(8) == pytest.approx(2.0 * 0.3)
    assert cost.reading(80) == pytest.approx((3.0 * 10 - 1) * 0.3)  # beyond the widest: the same a token


@given(
    st.dictionaries(st.integers(2, 64), st.floats(0.5, 50)),
    st.integers(1, 200),
    st.integers(0, 60),
)
def test_reading_more_never_costs_less(curve: dict[int, float], unseen: int, more: int) -> None:
    cost = DraftCost(0.3, {1: 1.0, **curve})
    assert 0 <= cost.reading(unseen) <= cost.reading(unseen + more) + 1e-9


def test_what_is_read_along_costs_the_difference() -> None:
    cost = DraftCost(0.3, PASSES)
    for _ in range(2):
        for unseen in (1, 3, 8, 20):
            differences = [(cost.reading(unseen + n) - cost.reading(unseen)) / cost.guess for n in range(13)]
            assert cost.along(unseen, 12)[:13] == pytest.approx(differences)
            assert cost.along(unseen, 3)[:4] == pytest.approx(differences[:4])
        cost.observe(1, cost.reading(30), 20.0)  # it reads slower than thought


def test_what_one_copy_learns_the_other_does_not() -> None:
    first = DraftCost(0.3, PASSES)
    before = first.along(1, 4)
    second = copy(first)
    second.observe(1, second.reading(30), 20.0)
    assert second.along(1, 4) != before
    assert first.along(1, 4) == before


@pytest.mark.parametrize("dearer", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("guess", [0.02, 0.2])
def test_draft_cost_is_learnt_from_both_kinds_of_drafts(guess: float, dearer: float) -> None:
    """Guesses and reading may both take another time than was thought."""
    rng, cost = random.Random(1), DraftCost(0.06, PASSES)

    def truth(guesses: int, unseen: int) -> float:
        return guess * (guesses + dearer * DraftCost(1.0, PASSES).reading(unseen))

    for i in range(200):
        guesses, unseen = (1, rng.randint(30, 60)) if i % 2 else (rng.randint(2, 8), 1)
        cost.observe(guesses, cost.reading(unseen), truth(guesses, unseen) * rng.uniform(0.95, 1.05))
    assert cost.guess == pytest.approx(guess, rel=0.25)
    assert cost.reading(40) == pytest.approx(truth(0, 40), rel=0.25)


def test_draft_cost_never_falls_to_nothing() -> None:
    cost = DraftCost(0.1, {1: 1.0})
    for _ in range(50):
        cost.observe(1, cost.reading(20), 1e-4)
        cost.observe(4, 0.0, 1e-4)
        cost.observe(0, 0.0, 1e-4)
    assert cost.guess > 0
    assert cost.reading(2) > 0
