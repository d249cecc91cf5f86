"""How often guesses are right: said, then saved, then seen."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.chances import (
    BINS,
    EDGES,
    MIDDLES,
    MOST,
    MOST_SAVED,
    SHARES,
    Chances,
    Outlook,
    saved_counts,
)

confidences = st.floats(0.0, 1.0)
judged = st.lists(st.tuples(confidences, st.booleans()), max_size=60)


def counted(right: float, trials: float) -> list[list[float]]:
    """The same counts in every bin."""
    return [[right, trials] for _ in range(BINS)]


def taught(chances: Chances, confidence: float, right: int, wrong: int) -> Chances:
    """After so many guesses, mixed evenly."""
    for i in range(right + wrong):
        chances.learn(confidence, (i + 1) * right // (right + wrong) > i * right // (right + wrong))
    return chances


def test_bins_cover_every_confidence_once() -> None:
    assert list(EDGES) == sorted(set(EDGES))
    assert len(MIDDLES) == BINS == len(EDGES) + 1
    for i, middle in enumerate(MIDDLES):
        chances = Chances()
        chances.learn(middle, True)
        assert [n for _, n in chances.counts()] == [float(i == j) for j in range(BINS)]
    chances = Chances()
    for confidence in (0.0, 1.0, *EDGES):
        chances.learn(confidence, False)
    assert sum(n for _, n in chances.counts()) == 2 + len(EDGES)


@given(confidences)
def test_a_source_is_believed_until_something_is_known(confidence: float) -> None:
    assert Chances().rate(confidence) == pytest.approx(confidence, abs=1e-6)


@pytest.mark.parametrize("confidence", [0.01, 0.55, 0.93, 1.0])
@pytest.mark.parametrize("share", [0, 3, 7, 10])
def test_what_is_seen_outweighs_what_is_said(confidence: float, share: int) -> None:
    chances = taught(Chances(), confidence, 40 * share, 40 * (10 - share))
    assert chances.rate(confidence) == pytest.approx(share / 10, abs=0.05)


def test_bins_do_not_teach_each_other() -> None:
    chances = taught(Chances(), 0.95, 0, 100)
    assert chances.rate(0.95) < 0.15
    assert chances.rate(0.5) == pytest.approx(0.5)
    assert chances.rate(0.99) == pytest.approx(0.99)


def test_a_change_of_the_text_shows() -> None:
    chances = taught(taught(Chances(), 0.8, 2000, 0), 0.8, 0, 1000)
    assert chances.rate(0.8) < 0.3


@given(judged, st.lists(confidences, min_size=1))
def test_a_rate_is_a_probability(trials: list[tuple[float, bool]], asked: list[float]) -> None:
    chances = Chances()
    for confidence, right in trials:
        chances.learn(confidence, right)
    rates = [chances.rate(confidence) for confidence in asked]
    assert all(0.0 < rate <= 1.0 + 1e-6 for rate in rates)
    assert list(chances.rates(asked)) == rates


def test_a_rate_follows_every_trial() -> None:
    chances = Chances()
    before = chances.rate(0.8)
    chances.learn(0.8, False)
    lower = chances.rate(0.8)
    chances.learn(0.8, True)
    assert lower < chances.rate(0.8) < before


# Earlier sessions.


@given(judged)
def test_saved_counts_come_back(trials: list[tuple[float, bool]]) -> None:
    first = Chances()
    for confidence, right in trials:
        first.learn(confidence, right)
    saved = json.loads(json.dumps(first.counts()))
    assert saved_counts({"x": saved}) == {"x": saved}
    again = Chances(saved)
    assert again.counts() == saved
    for confidence in MIDDLES:
        assert again.rate(confidence) == pytest.approx(first.rate(confidence), abs=0.02)


def test_counts_of_sessions_add_up() -> None:
    first = taught(Chances(), 0.5, 30, 10)
    second = taught(Chances(first.counts()), 0.5, 5, 15)
    assert [35, 60] in second.counts()
    assert sum(n for _, n in second.counts()) == 60


def test_old_counts_fade_and_never_outgrow_the_file() -> None:
    chances = Chances(counted(MOST_SAVED, MOST_SAVED))
    taught(chances, 0.5, 0, 3000)
    right, trials = next(pair for pair in chances.counts() if pair[0] != pair[1])
    assert trials == MOST_SAVED
    assert right / trials == pytest.approx(0.4, abs=0.01)


def test_what_is_saved_outweighs_what_is_said_and_is_outweighed_by_this_text() -> None:
    chances = Chances(counted(400, 2000))
    assert chances.rate(0.9) < 0.45
    taught(chances, 0.9, 150, 0)
    assert chances.rate(0.9) > 0.7


@pytest.mark.parametrize(
    "saved",
    [
        (),
        [[1.0, 2.0]],
        counted(1, 2)[1:],
        counted(3, 2),
        counted(-1, 2),
        counted(math.nan, 2),
        counted(1, math.nan),
    ],
)
def test_impossible_counts_are_no_counts(saved: Any) -> None:
    assert Chances(saved).rate(0.7) == pytest.approx(0.7)
    assert Chances(saved).counts() == counted(0, 0)


GOOD = counted(1, 2)


def spoilt(value: Any) -> list[Any]:
    """Good counts but for one entry."""
    return [*GOOD[:3], value, *GOOD[4:]]


@pytest.mark.parametrize("raw", [None, 3, "counts", [], [GOOD], True, math.nan])
def test_a_file_that_is_no_table_holds_no_counts(raw: object) -> None:
    assert saved_counts(raw) == {}


@pytest.mark.parametrize(
    "value",
    [
        *(None, 1, "x", [], {}, GOOD[:-1], [*GOOD, [1, 2]], {"0": [1, 2]}),
        *map(spoilt, (None, 1, "12", [], [1], [1, 2, 3], {"right": 1}, [1, None], [1, "2"], [[1], 2])),
        *map(spoilt, ([-1, 2], [1, -2], [1, math.nan], [1, math.inf], [1, 1e300], [1, 10**400])),
    ],
)
def test_what_is_not_counts_is_left_out(value: object) -> None:
    assert saved_counts({"bad": value, "good": GOOD}) == {"good": GOOD}


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=3), json_like | json_like.map(lambda x: [x] * BINS), max_size=3))
def test_whatever_is_read_can_be_used(raw: dict[str, Any]) -> None:
    for counts in saved_counts(raw).values():
        chances = Chances(counts)
        assert all(0.0 <= chances.rate(confidence) <= 1.0 + 1e-6 for confidence in MIDDLES)


# The outlook on guesses that are not made yet.


@pytest.mark.parametrize("prior", [0.2, 0.7, 0.95])
def test_an_outlook_expects_what_the_prior_says(prior: float) -> None:
    outlook = Outlook(Chances(), prior)
    mean = outlook.mean()
    first = sum(share * middle for share, middle in zip(SHARES, MIDDLES, strict=True))
    assert len(mean) == MOST + 1
    assert mean[:2] == pytest.approx([0.0, first], abs=1e-6)
    for k in range(1, MOST):
        assert mean[k + 1] - mean[k] == pytest.approx(first * prior**k, abs=1e-6)
    assert outlook.after(0.5) == pytest.approx(prior)


def test_an_outlook_learns_how_confident_guesses_are_and_how_long_they_hold() -> None:
    outlook = Outlook(Chances(), 0.7)
    for _ in range(2000):
        outlook.learn([0.97, 0.97, 0.97, 0.3], 3, 4)
    assert outlook.after(0.97) == pytest.approx(2 / 3, abs=0.05)  # two of three guesses after one like it
    assert outlook.after(0.3) == pytest.approx(0.7)
    assert outlook.mean()[1] == pytest.approx(0.97, abs=0.03)
    assert outlook.mean()[3] == pytest.approx(0.97 * (1 + 2 / 3 + 4 / 9), abs=0.15)


def test_the_best_way_is_chosen_once_the_first_guess_has_said_how_sure_it_is() -> None:
    outlook = Outlook(Chances(), 0.7)
    for i in range(2000):
        sure = i % 2 == 0
        outlook.learn([0.99 if sure else 0.1] * 8, 8 * sure, 8 if sure else 1)
    ways = [(1, 1.0), (8, 2.0)]
    fixed = [1 + outlook.mean()[width - 1] - cost for width, cost in ways]
    assert outlook.best(ways[:1]) == pytest.approx(fixed[0])
    assert outlook.best(ways[1:]) == pytest.approx(fixed[1])
    # Wide where it is sure, plain elsewhere: half of the time 8 - 2, else nothing, which is 1 - 1.
    assert max(fixed) + 0.1 < outlook.best(ways) == pytest.approx(3.0, abs=0.4)


@pytest.mark.parametrize("before", [0, 20, 400])
def test_an_outlook_follows_the_chances(before: int) -> None:
    """Even if nobody asks for it in between."""
    chances = Chances()
    outlook = Outlook(chances, 0.7)
    for _ in range(before):
        chances.learn(0.8, True)
        outlook.learn([0.8], 1, 1)
    expected = outlook.mean()
    for _ in range(100):
        chances.learn(0.8, False)
        outlook.learn([0.8], 0, 1)
    assert all(now < was - 0.2 for now, was in zip(outlook.mean()[1:], expected[1:], strict=True))


def test_a_long_session_that_never_asks_for_the_outlook() -> None:
    outlook = Outlook(Chances(), 0.7)
    for _ in range(30_000):
        outlook.learn([0.97], 1, 1)
    assert outlook.mean()[1] == pytest.approx(0.97, abs=0.03)
