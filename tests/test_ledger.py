"""The ledger's promise holds whatever is guessed and whatever that costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.ledger import HOARD, SHARE, START, Ledger

# A step that somebody wants: its worst cost, the part of it that it takes, the tokens it emits, what looking
# took whether the step was admitted or not. In plain passes.
Wish = tuple[float, float, int, float]
wishes = st.lists(
    st.tuples(
        st.one_of(st.floats(0.5, 6.0), st.floats(1.0, 70.0)),
        st.one_of(st.just(1.0), st.floats(0.0, 1.0)),
        st.one_of(st.just(1), st.integers(1, 64)),
        st.sampled_from([0.0, 0.01, 0.3, 2.0]),
    ),
    max_size=120,
)


def take(ledger: Ledger, wish: Wish) -> tuple[float, int]:
    """The step if it is admitted, else a plain one, with a look before it if that is; its cost and tokens."""
    worst, part, tokens, looking = wish
    if not ledger.admits(1 + looking):
        looking = 0.0
    if ledger.admits(worst + looking):
        cost = part * worst + looking
    else:
        cost, tokens = 1 + looking, 1
    ledger.add(cost, tokens)
    return cost, tokens


def spend(ledger: Ledger, steps: list[Wish], costs: float = 0.0, tokens: int = 0) -> tuple[float, int]:
    """What all cost and emitted, with what had been before; kept within the promise at every moment."""
    for wish in steps:
        cost, emitted = take(ledger, wish)
        costs, tokens = costs + cost, tokens + emitted
        assert costs <= (1 + SHARE) * tokens + START + 1e-9
        assert ledger.tokens == tokens
    return costs, tokens


@given(wishes)
def test_no_sequence_of_steps_costs_more_than_promised(steps: list[Wish]) -> None:
    spend(Ledger(), steps)


@given(wishes, wishes, st.floats(0.0, 50.0))
def test_one_overrun_adds_itself_and_no_more(before: list[Wish], after: list[Wish], over: float) -> None:
    ledger = Ledger()
    costs, tokens = spend(ledger, before)
    assert ledger.admits(1.0)
    ledger.add(1.0 + over, 1)
    spend(ledger, after, costs + 1.0, tokens + 1)


@given(wishes)
def test_what_can_be_lost_at_once_is_bounded_whatever_was_gained(steps: list[Wish]) -> None:
    ledger = Ledger()
    spend(ledger, steps)
    before = ledger.balance
    assert before >= -HOARD
    lost = 0.0
    while ledger.admits(5.0):
        ledger.add(5.0, 1)
        lost += 4.0
    assert lost <= HOARD + SHARE * ledger.tokens + START


def test_gains_are_hoarded_only_so_far() -> None:
    ledger = Ledger()
    for _ in range(100):
        ledger.add(1.0, 60)
    assert ledger.balance == -HOARD
    assert ledger.tokens == 6000
    assert ledger.admits(1 + HOARD + START + SHARE * 6000)
    assert not ledger.admits(1 + HOARD + START + SHARE * 6000 + 0.01)


def test_a_new_ledger_lets_something_be_lost_at_once() -> None:
    assert Ledger().admits(1 + START)
    assert not Ledger().admits(1.01 + START)
    assert Ledger().allowance == START


def test_what_was_lost_is_made_up_by_plain_steps() -> None:
    ledger = Ledger()
    ledger.add(1 + START, 1)
    assert not ledger.admits(1.5)
    steps = 0
    while not ledger.admits(1.5):
        ledger.add(1.0, 1)
        steps += 1
    assert steps == pytest.approx(0.5 / SHARE, abs=1)
