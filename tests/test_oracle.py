"""The offline optimum: against every schedule there is, and by hand where padding or a pair decides."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.engine.oracle import Choice, Schedule, Score, best_schedule, perfect, plain, score


class Case(NamedTuple):
    n_tokens: int
    reach: dict[str, list[int]]
    widths: dict[int, float]
    cost_guess: dict[str, float]
    follows: list[tuple[str, str]]


@st.composite
def cases(draw: st.DrawFn, longest: int = 6) -> Case:
    """Costs are sixteenths, so that every sum is exact. A wider pass may be cheaper, guesses mostly pay."""
    n_tokens = draw(st.integers(0, longest) | st.just(longest))
    counts = st.lists(st.integers(0, 2) | st.integers(0, longest + 2), min_size=n_tokens, max_size=n_tokens)
    costs_pass = st.integers(12, 40).map(lambda n: n / 16)
    widths = draw(st.dictionaries(st.integers(2, longest), costs_pass, max_size=4))
    costs_guess = st.just(0.0) | st.integers(1, 8).map(lambda n: n / 16)
    return Case(
        n_tokens,
        {"ngram": draw(counts), "draft": draw(counts)},
        {**widths, longest: 1.5, 1: 1.0},
        {"ngram": draw(costs_guess), "draft": draw(costs_guess)},
        draw(st.sampled_from([[("ngram", "draft"), ("draft", "ngram")], [("ngram", "draft")], []])),
    )


def passes(case: Case, position: int) -> Iterator[tuple[str, int, int, float]]:
    """All one can do at `position`: (source, guesses, right ones, seconds), wrong guesses included."""
    widest, left = max(case.widths), case.n_tokens - position - 1

    def right(source: str, at: int) -> int:
        return min(case.reach[source][at], case.n_tokens - at - 1)

    def seconds(guesses: int) -> float:
        return min(cost for width, cost in case.widths.items() if width > guesses)

    yield "none", 0, 0, seconds(0)
    for guesses in range(1, min(widest - 1, left) + 1):
        for source, cost in case.cost_guess.items():
            kept = min(guesses, right(source, position))
            yield source, guesses, kept, seconds(guesses) + guesses * cost
        for first, second in case.follows:
            for own in range(1, min(guesses - 1, right(first, position)) + 1):
                kept = own + min(guesses - own, right(second, position + own))
                spent = own * case.cost_guess[first] + (guesses - own) * case.cost_guess[second]
                yield f"{first}+{second}", guesses, kept, seconds(guesses) + spent


def all_schedules(case: Case, position: int = 0) -> Iterator[float]:
    if position == case.n_tokens:
        yield 0.0
        return
    for _, _, kept, seconds in passes(case, position):
        for rest in all_schedules(case, position + kept + 1):
            yield seconds + rest


def seconds_of(choice: Choice, case: Case) -> float:
    """What the pass costs at least, when it does what it says and all its guesses are right."""
    return min(
        seconds
        for source, guesses, kept, seconds in passes(case, choice.position)
        if source == choice.source and guesses == kept == choice.guesses
    )


@given(cases(longest=5))
@settings(max_examples=200, deadline=None)
def test_no_schedule_is_faster_and_one_is_as_fast(case: Case) -> None:
    assert best_schedule(*case).seconds == min(all_schedules(case))


@given(cases(longest=12))
@settings(max_examples=200, deadline=None)
def test_the_choices_emit_the_text_in_the_time_claimed(case: Case) -> None:
    schedule = best_schedule(*case)
    position = 0
    for choice in schedule.choices:
        assert choice.position == position
        position += choice.guesses + 1
    assert position == case.n_tokens
    assert sum(seconds_of(choice, case) for choice in schedule.choices) == schedule.seconds


@given(st.integers(0, 200), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_between_perfect_and_plain_to_the_last_bit(n_tokens: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    widths = {1: 0.1, **{int(n): float(random.random()) for n in random.integers(2, 65, 5)}}
    reach = {name: random.geometric(0.2, n_tokens).tolist() for name in ("ngram", "draft")}
    cost = {"ngram": 0.0, "draft": float(random.random()) / 50}
    oracle = best_schedule(n_tokens, reach, widths, cost, [("ngram", "draft")]).seconds
    assert perfect(n_tokens, widths) <= oracle <= plain(n_tokens, widths)


@given(cases(longest=12))
@settings(max_examples=100, deadline=None)
def test_perfect_is_a_free_source_right_to_the_end(case: Case) -> None:
    everything = {"all": [case.n_tokens] * case.n_tokens}
    best = best_schedule(case.n_tokens, everything, case.widths, {"all": 0.0})
    assert perfect(case.n_tokens, case.widths) == best.seconds


def test_plain_is_what_remains_without_sources() -> None:
    widths = {1: 1.0, 8: 1.5}
    assert plain(5, widths) == 5.0
    assert best_schedule(5, {}, widths, {}) == Schedule(5.0, tuple(Choice(i, "none", 0) for i in range(5)))


def test_plain_is_padded_like_any_pass() -> None:
    assert plain(3, {1: 2.0, 2: 3.0, 4: 1.5}) == 4.5


def test_a_pass_is_padded_over_the_teeth_of_a_saw() -> None:
    # Three tokens cost more than four: the two right guesses ride in a pass of four.
    widths = {1: 1.0, 2: 1.75, 3: 2.5, 4: 1.5}
    schedule = best_schedule(4, {"ngram": [2, 0, 0, 0]}, widths, {"ngram": 0.0})
    assert schedule == Schedule(2.5, (Choice(0, "ngram", 2), Choice(3, "none", 0)))


def test_fewer_guesses_where_the_next_step_of_cost_is_too_high() -> None:
    schedule = best_schedule(4, {"ngram": [3, 0, 1, 0]}, {1: 1.0, 2: 1.1, 4: 5.0}, {"ngram": 0.0})
    assert schedule == Schedule(2.2, (Choice(0, "ngram", 1), Choice(2, "ngram", 1)))


def test_a_guess_that_costs_more_than_it_saves_is_not_made() -> None:
    widths, reach = {1: 1.0, 2: 1.25}, {"draft": [1, 0]}
    assert best_schedule(2, reach, widths, {"draft": 0.5}).choices == (Choice(0, "draft", 1),)
    assert best_schedule(2, reach, widths, {"draft": 1.0}).choices[0] == Choice(0, "none", 0)


def test_a_plain_pass_first_where_more_is_right_behind_it() -> None:
    schedule = best_schedule(6, {"ngram": [1, 4, 0, 0, 0, 0]}, {1: 1.0, 6: 1.5}, {"ngram": 0.0})
    assert schedule == Schedule(2.5, (Choice(0, "none", 0), Choice(1, "ngram", 4)))


def test_a_pair_beats_both_its_sources() -> None:
    reach = {"ngram": [3, 0, 0, 0, 0, 0], "draft": [0, 0, 0, 2, 0, 0]}
    widths, cost = {1: 1.0, 6: 1.25}, {"ngram": 0.0, "draft": 0.125}
    pair = best_schedule(6, reach, widths, cost, [("ngram", "draft")])
    assert pair == Schedule(1.5, (Choice(0, "ngram+draft", 5),))
    apart = best_schedule(6, reach, widths, cost)
    assert apart.seconds > 1.5
    assert apart == best_schedule(6, reach, widths, cost, [("draft", "ngram")])  # the order matters


def test_the_second_of_a_pair_may_take_over_early() -> None:
    # Behind all three guesses of the n-gram the draft is lost; behind the first two it has three more.
    reach = {"ngram": [3, 0, 0, 0, 0, 0], "draft": [0, 0, 3, 0, 0, 0]}
    widths, cost = {1: 1.0, 6: 1.25}, {"ngram": 0.0, "draft": 0.125}
    schedule = best_schedule(6, reach, widths, cost, [("ngram", "draft")])
    assert schedule == Schedule(1.625, (Choice(0, "ngram+draft", 5),))


def test_reach_beyond_the_widest_pass_is_cut() -> None:
    schedule = best_schedule(9, {"ngram": [99] * 9}, {1: 1.0, 4: 1.0}, {"ngram": 0.0})
    assert schedule.seconds == 3.0
    assert [choice.guesses for choice in schedule.choices] == [0, 3, 3]  # on a tie fewer guesses first


def test_on_a_tie_the_source_named_first_guesses() -> None:
    reach, cost = {"draft": [1, 0], "ngram": [1, 0]}, {"ngram": 0.0, "draft": 0.0}
    assert best_schedule(2, reach, {1: 1.0, 2: 1.0}, cost).choices == (Choice(0, "draft", 1),)


def test_an_empty_text_takes_no_time() -> None:
    assert best_schedule(0, {"ngram": []}, {1: 1.0}, {"ngram": 0.0}) == Schedule(0.0, ())
    assert perfect(0, {1: 1.0}) == plain(0, {1: 1.0}) == 0.0


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="reach of ngram: 1 positions for 2 tokens"):
        best_schedule(2, {"ngram": [1]}, {1: 1.0}, {"ngram": 0.0})
    for widths in ({}, {2: 1.0}, {0: 1.0, 1: 1.0}):
        with pytest.raises(ValueError, match="widths must start at 1"):
            plain(2, widths)
    with pytest.raises(KeyError, match="draft"):
        best_schedule(1, {"draft": [0]}, {1: 1.0}, {})


def test_a_long_text_takes_under_two_seconds() -> None:
    """The worst case: both sources right everywhere, so every split of every pair is looked at."""
    reach = {"ngram": [63] * 2000, "draft": [63] * 2000}
    widths = {n: 1.0 + n / 50 for n in range(1, 65)}
    start = time.process_time()
    best_schedule(2000, reach, widths, {"ngram": 0.0, "draft": 0.1}, [("ngram", "draft")])
    assert time.process_time() - start < 2.0


def test_score() -> None:
    # Speeds over plain: auto 1.5, oracle 2, perfect 4.
    assert score(8.0, 12.0, 6.0, 3.0) == Score(auto_over_oracle=0.75, gain_share=0.5, perfect_share=0.375)
    assert score(16.0, 12.0, 6.0, 3.0).gain_share == -0.25


def test_score_where_there_is_nothing_to_gain() -> None:
    assert score(12.0, 12.0, 12.0, 12.0) == Score(1.0, 1.0, 1.0)
    assert score(10.0, 12.0, 13.0, 6.0).gain_share == 1.0
    assert score(13.0, 12.0, 12.0, 6.0).gain_share == 0.0
