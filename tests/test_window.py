"""When a conversation does not fit: the turn being asked and the system message stay, whatever else goes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.prompt import Message
from localspec.chat.window import (
    CUT_TO,
    MARKER,
    Fit,
    compacted,
    drop_oldest,
    older,
    summary_pair,
    summary_request,
)

SYSTEM = Message("system", "Be brief.")
TURNS = st.lists(
    st.tuples(st.integers(0, 40), st.lists(st.integers(0, 40), max_size=2)).map(
        lambda sizes: [
            Message("user", "q" * sizes[0]),
            *(Message("assistant", "a" * n, (n,)) for n in sizes[1]),
        ]
    ),
    min_size=1,
    max_size=12,
)


def talk(turns: int) -> list[Message]:
    said = [[Message("user", f"q{i}"), Message("assistant", f"a{i}")] for i in range(turns)]
    return [SYSTEM, *(message for turn in said for message in turn)]


def length(messages: Sequence[Message]) -> int:
    return sum(len(message.content) + 4 for message in messages)


def test_fit() -> None:
    assert [Fit(used, 100).warn for used in (0, 79, 80, 120)] == [False, False, True, True]
    assert [Fit(used, 100).room for used in (0, 99, 100, 120)] == [100, 1, 0, 0]


def test_what_fits_stays_as_it_is() -> None:
    messages = talk(5)
    assert drop_oldest(messages, length, length(messages)) == (messages, [])


def test_the_oldest_turns_go_and_a_message_says_so() -> None:
    messages = talk(60)
    room = length(messages) - 1
    kept, dropped = drop_oldest(messages, length, room)
    assert kept[0] == SYSTEM
    assert tuple(kept[1:3]) == MARKER
    assert [message.role for message in MARKER] == ["user", "assistant"]
    assert [*messages[:1], *dropped, *kept[3:]] == messages
    assert length(kept) <= CUT_TO * room, "so that the next turns fit without cutting again"
    assert length(kept) > CUT_TO * room - 12, "no more than needed"


def test_few_questions_are_asked_of_the_tokenizer() -> None:
    asked = 0

    def counting(messages: Sequence[Message]) -> int:
        nonlocal asked
        asked += 1
        return length(messages)

    drop_oldest(talk(1000), counting, 500)
    assert asked <= 12


@given(TURNS, st.booleans(), st.integers(0, 600))
def test_turns_stay_whole_and_the_last_one_stays(turns: list[list[Message]], system: bool, room: int) -> None:
    messages = [*([SYSTEM] if system else []), *(message for turn in turns for message in turn)]
    kept, dropped = drop_oldest(messages, length, room)
    assert kept[len(kept) - len(turns[-1]) :] == turns[-1]
    assert (kept[0] == SYSTEM) == system
    n = len(dropped)
    assert dropped == messages[system : system + n]
    assert not n or messages[system + n].role == "user", "cut before a question"
    if not n:
        assert kept == messages
        assert length(kept) <= room or len(turns) == 1
    else:
        assert kept == [*messages[:system], *MARKER, *messages[system + n :]]
        assert length(kept) <= room or messages[system + n :] == turns[-1]


@given(TURNS, st.booleans(), st.integers(1, 4))
def test_a_summary_replaces_just_the_older_turns(turns: list[list[Message]], system: bool, keep: int) -> None:
    head = [SYSTEM] if system else []
    messages = [*head, *(message for turn in turns for message in turn)]
    last = [message for turn in turns[-keep:] for message in turn]
    old = [message for turn in turns[:-keep] for message in turn]
    assert older(messages, keep) == old
    request, after = summary_request(messages, keep), compacted(messages, "S", keep)
    if not old:
        assert request == []
        assert after == messages
        return
    assert request[:-1] == [*head, *old], "begins as the conversation: its cache serves"
    assert request[-1].role == "user"
    assert after == [*head, *summary_pair("S"), *last]
    assert [m.role for m in summary_pair("S")] == ["user", "assistant"]
    assert "S" in summary_pair("S")[0].content


@pytest.mark.parametrize("keep", [0, -3])
def test_the_last_turn_is_never_summed_up(keep: int) -> None:
    assert compacted(talk(3), "S", keep)[-2:] == talk(3)[-2:]


def test_nothing_said_yet() -> None:
    assert drop_oldest([], length, 0) == ([], [])
    assert drop_oldest([SYSTEM], length, 0) == ([SYSTEM], [])
    assert (older([SYSTEM]), summary_request([]), compacted([], "S")) == ([], [], [])
