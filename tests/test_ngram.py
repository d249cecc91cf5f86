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


def expected_draft(text: list[int], limit: int, min_match: int) -> list[int]:
    length, end = list(matches(text))[-1] if text else (0, 0)
    draft = list(text)
    for j in range(min(limit, length) if length >= min_match else 0):
        draft.append(draft[end + j])
    return draft[len(text) :]


@given(repetitive_texts, st.integers(0, 40), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_draft_copies_what_followed_the_match(text: list[int], limit: int, min_match: int) -> None:
    drafter = NgramDrafter(min_match)
    drafter.begin(text)
    assert propose(drafter, text, limit) == expected_draft(text, limit, min_match)


def test_draft_is_as_long_as_the_match() -> None:
    context = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    assert propose(NgramDrafter(), context) == [4, 5, 6]
    assert propose(NgramDrafter(), context, limit=2) == [4, 5]
    assert propose(NgramDrafter(), context, limit=0) == []


def test_short_matches_are_not_drafted_unless_asked() -> None:
    context = [1, 2, 3, 4, 5, 1, 2]
    assert propose(NgramDrafter(), context) == []
    assert propose(NgramDrafter(min_match=2), context) == [3, 4]
    assert propose(NgramDrafter(min_match=0), [1, 2, 3]) == []


def test_fill_limit_drafts_every_match_to_the_limit() -> None:
    assert propose(NgramDrafter(fill_limit=True), [1, 2, 3, 4, 5, 1], limit=4) == [2, 3, 4, 5]
    assert propose(NgramDrafter(fill_limit=True), [1, 2, 3, 4, 5], limit=4) == []


def test_repeating_pattern_is_drafted_past_the_end() -> None:
    assert propose(NgramDrafter(), [1, 2, 3, 1, 2, 3, 1, 2, 3, 1]) == [2, 3, 1, 2, 3, 1, 2]
    assert propose(NgramDrafter(fill_limit=True), [5, 5], limit=6) == [5] * 6


def test_confidence_is_the_prior_of_the_growing_match() -> None:
    proposal = NgramDrafter().propose([1, 2, 3, 4, 9, 8, 7, 6, 1, 2, 3, 4], 16, yes)
    assert proposal == Proposal([9, 8, 7, 6], [0.73, 0.78, 0.78, 0.82])
    assert NgramDrafter(fill_limit=True).propose([1, 2, 1], 1, yes).confidence == [0.28]
    assert NgramDrafter().propose([1] * 90, 1, yes).confidence == [0.98]


def test_go_on_is_asked_after_each_guess_and_the_refused_one_is_kept() -> None:
    asked: list[float] = []

    def twice(confidence: float) -> bool:
        asked.append(confidence)
        return len(asked) < 2

    proposal = NgramDrafter().propose([1, 2, 3, 4, 9, 8, 7, 6, 1, 2, 3, 4], 16, twice)
    assert proposal.tokens == [9, 8]
    assert asked == proposal.confidence


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
    assert propose(drafter, [1, 2, 3, 4, 5, 1, 2, 3]) == [4, 5, 1]


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
        assert propose(drafter, context, limit=3) == expected_draft(text, 3, 3)
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
    assert propose(drafter, context) == [4, 1, 2]
