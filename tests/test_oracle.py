"""The offline optimum: against every schedule there is, and by hand where padding or a pair decides."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.engine.oracle import UNREAD, Costly, Score, least_seconds, perfect, plain, score


class Case(NamedTuple):
    n_tokens: int
    free: dict[str, list[int]]
    widths: dict[int, float]
    costly: Costly | None


@st.composite
def cases(draw: st.DrawFn, longest: int = 6) -> Case:
    """Costs are sixteenths, so that every sum is exact. A wider pass may be cheaper, guesses mostly pay."""
    n_tokens = draw(st.integers(0, longest) | st.just(longest))
    counts = st.lists(st.integers(0, 2) | st.integers(0, longest + 2), min_size=n_tokens, max_size=n_tokens)
    costs_pass = st.integers(12, 40).map(lambda n: n / 16)
    widths = draw(st.dictionaries(st.integers(2, longest), costs_pass, max_size=4))
    cost_guess = st.integers(0, 8).map(lambda n: n / 16)
    first = draw(st.lists(cost_guess, min_size=1, max_size=longest + 1))
    costly = draw(st.none() | st.builds(Costly, counts, cost_guess, st.just(first)))
    free = draw(st.dictionaries(st.sampled_from(["ngram", "edit"]), counts))
    return Case(n_tokens, free, {**widths, longest: 1.5, 1: 1.0}, costly)


def passes(case: Case, position: int, unread: int) -> Iterator[tuple[int, int, float]]:
    """All one can do at `position`: (right guesses, tokens unread afterwards, seconds), wrong guesses
    included."""
    widest, left = max(case.widths), case.n_tokens - position - 1

    def right(counts: Sequence[int], at: int) -> int:
        return min(counts[at], case.n_tokens - at - 1)

    def seconds(guesses: int) -> float:
        return min(cost for width, cost in case.widths.items() if width > guesses)

    yield 0, unread + 1, seconds(0)
    for guesses in range(1, min(widest - 1, left) + 1):
        for counts in case.free.values():
            kept = min(guesses, right(counts, position))
            yield kept, unread + kept + 1, seconds(guesses)
        for counts in ([], *case.free.values()) if case.costly else ():
            assert case.costly
            for copied in range(min(guesses, right(counts, position) + 1) if counts else 1):
                own = guesses - copied
                kept = copied + min(own, right(case.costly.right, position + copied))
                first = case.costly.first[min(unread + copied, len(case.costly.first)) - 1]
                yield kept, UNREAD, seconds(guesses) + first + (own - 1) * case.costly.guess


def all_schedules(case: Case, position: int = 0, unread: int = 1) -> Iterator[float]:
    if position == case.n_tokens:
        yield 0.0
        return
    for kept, left, seconds in set(passes(case, position, unread)):
        for rest in all_schedules(case, position + kept + 1, left):
            yield seconds + rest


@given(cases(longest=4))
@settings(max_examples=300, deadline=None)
def test_no_schedule_is_faster_and_one_is_as_fast(case: Case) -> None:
    found = least_seconds(*case)
    assert found[0, 0] == min(all_schedules(case))
    for position in range(case.n_tokens + 1):
        for unread in range(1, found.shape[1] + 1):
            assert found[position, unread - 1] == min(all_schedules(case, position, unread))


@given(st.integers(0, 200), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_between_perfect_and_plain_to_the_last_bit(n_tokens: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    widths = {1: 0.1, **{int(n): float(random.random()) for n in random.integers(2, 65, 5)}}
    ngram, draft = (random.geometric(0.2, n_tokens).tolist() for _ in range(2))
    guess = float(random.random()) / 50
    costly = Costly(draft, guess, [guess, 1.5 * guess, 2 * guess])
    oracle = least_seconds(n_tokens, {"ngram": ngram}, widths, costly)[0, 0]
    assert perfect(n_tokens, widths) <= oracle <= plain(n_tokens, widths)


def test_plain_is_what_remains_without_sources() -> None:
    widths = {1: 1.0, 8: 1.5}
    assert plain(5, widths) == 5.0
    assert least_seconds(5, {}, widths).tolist() == [[5.0], [4.0], [3.0], [2.0], [1.0], [0.0]]


def test_plain_is_padded_like_any_pass() -> None:
    assert plain(3, {1: 2.0, 2: 3.0, 4: 1.5}) == 4.5


def test_a_pass_is_padded_over_the_teeth_of_a_saw() -> None:
    # Three tokens cost more than four: the two right guesses ride in a pass of four.
    widths = {1: 1.0, 2: 1.75, 3: 2.5, 4: 1.5}
    assert least_seconds(4, {"ngram": [2, 0, 0, 0]}, widths)[0, 0] == 2.5


def test_fewer_guesses_where_the_next_step_of_cost_is_too_high() -> None:
    assert least_seconds(4, {"ngram": [3, 0, 1, 0]}, {1: 1.0, 2: 1.1, 4: 5.0})[0, 0] == 2.2


def test_a_guess_that_costs_more_than_it_saves_is_not_made() -> None:
    widths = {1: 1.0, 2: 1.25}
    assert least_seconds(2, {}, widths, Costly([1, 0], 0.5, [0.5]))[0, 0] == 1.75
    assert least_seconds(2, {}, widths, Costly([1, 0], 1.0, [1.0]))[0, 0] == 2.0


def test_a_plain_pass_first_where_more_is_right_behind_it() -> None:
    assert least_seconds(6, {"ngram": [1, 4, 0, 0, 0, 0]}, {1: 1.0, 6: 1.5})[0, 0] == 2.5


def test_one_source_goes_on_behind_another_and_reads_what_that_one_guessed() -> None:
    widths, ngram = {1: 1.0, 6: 1.25}, {"ngram": [3, 0, 0, 0, 0, 0]}
    whole = Costly([0, 0, 0, 2, 0, 0], 0.125, [0.125])
    assert least_seconds(6, ngram, widths, whole)[0, 0] == 1.25 + 2 * 0.125
    reads = Costly([0, 0, 0, 2, 0, 0], 0.125, [0.125, 0.25, 0.375, 0.5])
    assert least_seconds(6, ngram, widths, reads)[0, 0] == 1.25 + 0.5 + 0.125
    # Behind all three guesses of the n-gram the draft is lost; behind the first two it has three more.
    early = Costly([0, 0, 3, 0, 0, 0], 0.125, [0.125])
    assert least_seconds(6, ngram, widths, early)[0, 0] == 1.25 + 3 * 0.125


def test_what_was_not_read_has_to_be_before_the_next_guess() -> None:
    # Two plain passes, then the draft: three tokens unread. After a draft that was right, two.
    widths, dear = {1: 1.0, 2: 1.0}, [0.0, 0.25, 0.5]
    assert least_seconds(4, {}, widths, Costly([0, 0, 1, 0], 0.0, dear))[0, 0] == 3.5
    assert least_seconds(4, {}, widths, Costly([1, 0, 1, 0], 0.0, dear))[0, 0] == 2.25
    assert least_seconds(4, {}, widths, Costly([0, 0, 1, 0], 0.0, dear[:2]))[0, 0] == 3.25


def test_reach_beyond_the_widest_pass_is_cut() -> None:
    assert least_seconds(9, {"ngram": [99] * 9}, {1: 1.0, 4: 1.0})[0, 0] == 3.0


def test_an_empty_text_takes_no_time() -> None:
    assert least_seconds(0, {"ngram": []}, {1: 1.0}).tolist() == [[0.0]]
    assert perfect(0, {1: 1.0}) == plain(0, {1: 1.0}) == 0.0


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="reach of ngram: 1 positions for 2 tokens"):
        least_seconds(2, {"ngram": [1]}, {1: 1.0})
    with pytest.raises(ValueError, match="reach of the costly one: 1 positions for 2 tokens"):
        least_seconds(2, {}, {1: 1.0}, Costly([1], 0.1, [0.1]))
    for widths in ({}, {2: 1.0}, {0: 1.0, 1: 1.0}):
        with pytest.raises(ValueError, match="widths must start at 1"):
            plain(2, widths)


def test_a_long_text_takes_under_two_seconds() -> None:
    """The worst case: both sources right everywhere, so every split of every pair is looked at."""
    everywhere = [63] * 2000
    widths = {n: 1.0 + n / 50 for n in range(1, 65)}
    start = time.process_time()
    least_seconds(
        2000, {"ngram": everywhere}, widths, Costly(everywhere, 0.1, [0.1 * n for n in range(1, 65)])
    )
    assert time.process_time() - start < 2.0


def test_score() -> None:
    # Speeds over plain: auto 1.5, oracle 2, perfect 4.
    assert score(8.0, 12.0, 6.0, 3.0) == Score(auto_over_oracle=0.75, gain_share=0.5, perfect_share=0.375)
    assert score(16.0, 12.0, 6.0, 3.0).gain_share == -0.25


def test_score_where_there_is_nothing_to_gain() -> None:
    assert score(12.0, 12.0, 12.0, 12.0) == Score(1.0, 1.0, 1.0)
    assert score(10.0, 12.0, 13.0, 6.0).gain_share == 1.0
    assert score(13.0, 12.0, 12.0, 6.0).gain_share == 0.0
