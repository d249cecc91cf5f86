"""The suffix index against a search of the whole text, and the draft it becomes."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.drafters.ngram import NgramDrafter, SuffixAutomaton
from localspec.engine.types import Drafter, Proposal

random_texts = st.integers(1, 4).flatmap(lambda n: st.lists(st.integers(0, n - 1), max_size=60))
# Repeated units cut off anywhere, some with a token between them.
repetitive_texts = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.integers(1, 24), st.integers(0, 5)),
    max_size=6,
).map(lambda pieces: [token for piece in pieces for token in spell(*piece)])


def spell(unit: list[int], length: int, between: int) -> list[int]:
    return [unit[i % len(unit)] for i in range(length)] + [between] * (between > 2)


def matches(text: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(match_length, match_end) after every token of `text`, by comparing with every earlier position."""
    shared: list[int] = []  # shared[e]: how many tokens before position e equal those before the end
    for here, token in enumerate(text):
        shared = [0] + [shared[e - 1] + 1 if text[e - 1] == token else 0 for e in range(1, here + 1)]
        length = max(shared)
        yield length, max(e for e in range(here + 1) if shared[e] == length) if length else 0
        shared.append(0)


def indexed(text: Sequence[int]) -> Iterator[tuple[int, int]]:
    index = SuffixAutomaton()
    for token in text:
        index.extend([token])
        yield index.match_length, index.match_end


def yes(confidence: float) -> bool:
    return True


def propose(drafter: Drafter, context: Sequence[int], limit: int = 16) -> list[int]:
    return list(drafter.propose(context, limit, yes).tokens)


def test_reference_search() -> None:
    assert list(matches([7, 8, 9, 7, 8, 5, 7, 8])) == [
        (0, 0), (0, 0), (0, 0), (1, 1), (2, 2), (0, 0), (1, 4), (2, 5),
    ]  # fmt: skip


@given(random_texts)
@settings(max_examples=500, deadline=None)
def test_match_is_the_longest_and_most_recent_in_random_text(text: list[int]) -> None:
    assert list(indexed(text)) == list(matches(text))


@given(repetitive_texts)
@settings(max_examples=500, deadline=None)
def test_match_is_the_longest_and_most_recent_in_repetitive_text(text: list[int]) -> None:
    assert list(indexed(text)) == list(matches(text))


def long_texts() -> dict[str, list[int]]:
    rng = random.Random(1)
    page = [rng.randrange(50) for _ in range(200)]
    edited = [token if rng.random() > 0.03 else 50 + i for i in range(6) for token in page]
    return {
        "run after run": [0] * 600 + [1] + [0] * 600 + [2] + [0] * 300,
        "pairs after pairs": [0, 1] * 300 + [2] + [0, 1] * 300,
        "runs of any length": [t for i in range(40) for t in [0] * rng.randrange(60) + [1 + i]],
        "fibonacci": fibonacci(1400),
        "bits": [rng.randrange(2) for _ in range(1400)],
        "a page and five edits of it": edited,
    }


def fibonacci(length: int) -> list[int]:
    older, newer = [0], [0, 1]
    while len(newer) < length:
        older, newer = newer, newer + older
    return newer[:length]


@pytest.mark.parametrize("name", long_texts())
def test_match_in_long_texts(name: str) -> None:
    text = long_texts()[name]
    assert list(indexed(text)) == list(matches(text))


class CountedReads(list[int]):
    reads = 0

    def __getitem__(self, place: Any) -> Any:
        self.reads += 1
        return super().__getitem__(place)


@pytest.mark.parametrize("name", long_texts())
def test_following_hints_takes_few_steps(name: str) -> None:
    index = SuffixAutomaton()
    index._hint = hint = CountedReads([0])  # type: ignore[assignment]
    index.extend(long_texts()[name])
    assert hint.reads <= 20 * len(index.tokens)


def bytes_a_token(text: list[int]) -> float:
    tracemalloc.start()
    try:
        index = SuffixAutomaton()
        index.extend(text)
        return tracemalloc.get_traced_memory()[0] / len(text)
    finally:
        tracemalloc.stop()


def test_memory() -> None:
    rng = random.Random(1)
    assert bytes_a_token([rng.randrange(50_000) for _ in range(8192)]) < 250
    assert bytes_a_token([rng.randrange(2) for _ in range(8192)]) < 400
    assert bytes_a_token([i % 50 for i in range(8192)]) < 60


def continued(text: Sequence[int], end: int, limit: int) -> list[int]:
    """`limit` tokens copied from position `end` on, past the end of the text from the copy itself."""
    copy = list(text)
    for j in range(limit):
        copy.append(copy[end + j])
    return copy[len(text) :]


def expected_draft(text: list[int], limit: int) -> list[int]:
    length, end = list(matches(text))[-1] if text else (0, 0)
    return continued(text, end, limit) if length else []


@given(repetitive_texts, st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_draft_copies_what_followed_the_match(text: list[int], limit: int) -> None:
    drafter = NgramDrafter()
    drafter.begin(text)
    assert propose(drafter, text, limit) == expected_draft(text, limit)


def test_draft_fills_the_limit_whatever_the_match() -> None:
    context = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    assert propose(NgramDrafter(), context) == [*range(4, 10), 1, 2, 3, *range(4, 10), 1]
    assert propose(NgramDrafter(), context, limit=2) == [4, 5]
    assert propose(NgramDrafter(), context, limit=0) == []
    assert propose(NgramDrafter(), [1, 2, 3, 4, 5, 1], limit=4) == [2, 3, 4, 5]
    assert propose(NgramDrafter(), [1, 2, 3, 4, 5], limit=4) == []
    assert propose(NgramDrafter(), [], limit=4) == []


def test_repeating_pattern_is_drafted_past_the_end() -> None:
    assert propose(NgramDrafter(), [1, 2, 3, 1, 2, 3, 1], limit=7) == [2, 3, 1, 2, 3, 1, 2]
    assert propose(NgramDrafter(), [5, 5], limit=6) == [5] * 6


def matched(length: int) -> list[int]:
    """A context that ends with a match of `length` tokens and no longer one; nothing was copied before."""
    return [*range(length), 900, 901, *range(length)]


def confidence_of(length: int, limit: int = 1) -> list[float]:
    return list(NgramDrafter().propose(matched(length), limit, yes).confidence)


def test_confidence_is_that_of_the_growing_match() -> None:
    first = [confidence_of(length)[0] for length in range(1, 40)]
    assert first == sorted(first)
    assert 0.1 < first[0] < 0.5
    assert 0.9 < first[-1] < 1.0
    assert len({first[i] for i in (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)}) == 10
    for length in (1, 3, 12, 30):
        proposal = NgramDrafter().propose(matched(length), 8, yes)
        assert proposal.confidence == [confidence_of(length + i)[0] for i in range(8)]
        assert len(proposal.tokens) == 8
        assert proposal.dists is None


def test_every_guess_of_a_long_draft_has_a_confidence() -> None:
    proposal = NgramDrafter().propose([1] * 300, 63, yes)
    assert len(proposal.confidence) == len(proposal.tokens) == 63


PAGE = list(range(100, 200))


def after_copying(place: int, length: int, *, copied: bool) -> list[float]:
    """Confidence in a match of `length` tokens of a page at `place`, after its tokens 20 to 30 were copied,
    which the drafter has seen itself or not."""
    drafter = NgramDrafter()
    context = [*PAGE, 7, *PAGE[20:30]]
    if copied:
        assert propose(drafter, context, 3) == PAGE[30:33]
    context += [8, *PAGE[place : place + length]]
    return list(drafter.propose(context, 1, yes).confidence)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_matches_near_the_place_copied_last_are_trusted_more(length: int) -> None:
    for place in (30, 31, 45, 70):
        assert after_copying(place, length, copied=True) > after_copying(place, length, copied=False)
    for place in (2, 90):
        assert after_copying(place, length, copied=True) == after_copying(place, length, copied=False)


def test_begin_on_another_text_forgets_what_was_copied() -> None:
    drafter = NgramDrafter()
    propose(drafter, [*PAGE, 7, *PAGE[20:30]])
    context = [8, *PAGE, 9, PAGE[31]]
    drafter.begin(context)
    assert drafter.propose(context, 1, yes).confidence == confidence_of(1)


def test_go_on_is_never_asked_since_guesses_cost_nothing() -> None:
    def never(confidence: float) -> bool:
        raise AssertionError("asked")

    assert NgramDrafter().propose(matched(4), 5, never).tokens == [900, 901, 0, 1, 2]


def occurrences(text: Sequence[int], more: Sequence[int]) -> tuple[int, set[int]]:
    """The longest suffix of `text` + `more` that occurs in `text`, and where it ends there."""
    whole = [*text, *more]
    for length in range(len(text), 0, -1):
        suffix = whole[len(whole) - length :]
        ends = {e for e in range(length, len(text) + 1) if list(text[e - length : e]) == suffix}
        if ends:
            return length, ends
    return 0, set()


short_texts = st.one_of(random_texts, repetitive_texts.map(lambda text: text[:60]))
few_tokens = st.lists(st.integers(0, 3), min_size=1, max_size=8)


@given(short_texts, few_tokens)
@settings(max_examples=400, deadline=None)
def test_a_walk_finds_the_longest_suffix_with_more_tokens_behind_the_text(
    text: list[int], more: list[int]
) -> None:
    index = SuffixAutomaton()
    index.extend(text)
    before = index.match_length, index.match_end
    state, length = index.walk(*index.here(), more)
    end = index.end_of(state)
    found, ends = occurrences(text, more)
    assert length == found
    assert end in ends if ends else end == 0
    assert (index.match_length, index.match_end, list(index.tokens)) == (*before, text)
    index.extend(more)  # and its further growth is undisturbed
    assert (index.match_length, index.match_end) == list(matches([*text, *more]))[-1]


@given(short_texts, few_tokens, st.integers(0, 12))
@settings(max_examples=400, deadline=None)
def test_peek_guesses_what_follows_behind_guesses(text: list[int], more: list[int], limit: int) -> None:
    drafter = NgramDrafter()
    drafter.begin(text)
    drafter.propose(text, 4, yes)
    proposal = drafter.peek(more, limit)
    length, ends = occurrences(text, more)
    ways = [continued(text, end, limit) for end in ends if end < len(text)]
    if list(proposal.tokens):
        assert list(proposal.tokens) in ways
        assert len(proposal.confidence) == len(proposal.tokens) == limit
        assert proposal.confidence[0] >= confidence_of(length)[0]
    else:  # what it found last is the end of the text
        assert not limit or not ways or len(text) in ends
    assert propose(drafter, text) == expected_draft(text, 16)


def test_peek_goes_on_from_a_correction() -> None:
    drafter, page = NgramDrafter(), list(range(10, 40))
    context = [*page, 1, 10, 11, 12]
    assert propose(drafter, context, 3) == [13, 14, 15]
    assert drafter.peek([13, 14], 3).tokens == [15, 16, 17]
    assert drafter.peek([20], 3).tokens == [21, 22, 23]
    assert drafter.peek([99], 3) == Proposal()
    assert drafter.peek([13, 14], 1).confidence == confidence_of(5)


def test_begin_appends_to_what_is_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    appended: list[list[int]] = []
    extend = SuffixAutomaton.extend

    def record(self: SuffixAutomaton, tokens: Sequence[int]) -> None:
        appended.append(list(tokens))
        extend(self, tokens)

    monkeypatch.setattr(SuffixAutomaton, "extend", record)
    drafter = NgramDrafter()
    drafter.begin([1, 2, 3, 4, 5])
    drafter.begin([1, 2, 3, 4, 5, 1, 2, 3])
    assert appended == [[1, 2, 3, 4, 5], [1, 2, 3]]
    assert propose(drafter, [1, 2, 3, 4, 5, 1, 2, 3], 4) == [4, 5, 1, 2]


@pytest.mark.parametrize("context", [[], [1, 2, 3, 4], [1, 2, 3, 9, 1, 2, 3], [1, 2, 3, 4, 5, 1, 2, 9] * 2])
def test_begin_after_divergence_forgets_the_old_text(context: list[int]) -> None:
    drafter = NgramDrafter()
    drafter.begin([1, 2, 3, 4, 5, 1, 2, 3])
    drafter.begin(context)
    assert propose(drafter, context) == propose(NgramDrafter(), context)


class CountedSlices(list[int]):
    read = 0

    def __getitem__(self, place: Any) -> Any:
        part = super().__getitem__(place)
        self.read += len(part) if isinstance(place, slice) else 1
        return part

    def __iter__(self) -> Iterator[int]:
        self.read += len(self)
        return super().__iter__()


def test_a_step_reads_only_what_is_new() -> None:
    drafter, text, context = NgramDrafter(), [1, 2, 3, 4] * 100, CountedSlices([1, 2, 3, 4] * 100)
    drafter.begin(context)
    context.read = 0
    for step in range(50):
        assert propose(drafter, context, limit=3) == expected_draft(text, 3)
        emitted = [1, 2, 3 + step % 3]
        text.extend(emitted)
        context.extend(emitted)
    assert context.read <= 3 * 50


class Interrupting(int):
    """A token at which the user presses Ctrl-C, in the middle of the work on it."""

    def __hash__(self) -> int:
        raise KeyboardInterrupt


def test_an_interrupt_leaves_no_half_indexed_text() -> None:
    context = [9, 1, 2, 3, 4, 1, 2, 3]
    drafter = NgramDrafter()
    drafter.begin(context[:5])
    with pytest.raises(KeyboardInterrupt):
        propose(drafter, [*context[:5], Interrupting(1), 2])
    assert propose(drafter, context, 3) == [4, 1, 2]
