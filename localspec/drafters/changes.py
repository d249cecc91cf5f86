"""What was changed in a file so far, and what it makes likely further down: words replaced, changes repeated.

Knows an `Original`, and through `Words` how text becomes tokens; nothing of where the text stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from localspec.drafters.align import Original, Segment, renamed, replaced_words, shifted
from localspec.engine.generate import common_prefix

LONGEST_CHANGE = 64
"""Tokens of a change that is remembered, on either side."""
CONTEXT = 1
"""Tokens before a change that another place must have too."""
FADE = 0.6
"""What earlier occurrences count after one that contradicts them."""
DOUBT = 0.5
"""Occurrences that no count is worth."""
RELATED, LEAST_PART = 0.6, 3
"""Occurrences that a word is credited with when another one was replaced of which it holds what was replaced;
and how many bytes that must have."""
APPLIED = 0.5
"""What was changed before is changed in the guesses too from this chance on."""


@dataclass(slots=True)
class Habit:
    """Something that was changed, into what, and how often it was, and was not, of late."""

    into: bytes | tuple[int, ...]
    changed: float = 0.0
    kept: float = 0.0

    @property
    def chance(self) -> float:
        return self.changed / (self.changed + self.kept + DOUBT)

    def see(self, into: bytes | tuple[int, ...] | None) -> None:
        """It was changed, or kept if `into` is None."""
        if into is None:
            self.changed, self.kept = FADE * self.changed, self.kept + 1
        else:
            self.changed = 1 + (self.changed if into == self.into else 0)
            self.into, self.kept = into, FADE * self.kept


@dataclass(frozen=True, slots=True)
class Way:
    """How the text may go through tokens `first` to `end` of the original. `chance`: of the first token that
    is not the original's; `changes`, `keeps`: the habits that it follows and those it does not."""

    first: int
    end: int
    tokens: tuple[int, ...]
    chance: float = 1.0
    changes: tuple[Habit, ...] = ()
    keeps: tuple[Habit, ...] = ()

    def confirm(self) -> None:
        """The text did go this way."""
        for habit in self.changes:
            habit.see(habit.into)
        for habit in self.keeps:
            habit.see(None)


@dataclass(slots=True)
class Changes:
    """The changes of one rewriting. `piece`: the bytes of a token; `tokenize`: the tokens of a text."""

    original: Original
    piece: Callable[[int], bytes]
    tokenize: Callable[[str], Sequence[int]]
    words: dict[bytes, Habit] = field(default_factory=dict)
    places: dict[int, tuple[int, Habit]] = field(default_factory=dict)  # first token -> end, habit
    marks: set[int] = field(default_factory=set)  # where words that were replaced, or changes, begin
    _cut: dict[bytes, tuple[int, ...]] = field(default_factory=dict)

    def way(self, at: int, shift: int) -> Way | None:
        """How the text will go on at `at`, if not as the original does."""
        if at not in self.marks and not (shift and at in self.original.breaks):
            return None
        if at in self.places and self.places[at][1].chance > APPLIED:
            return self._changed(at)
        segment = self.original.segments.get(at)
        if segment is None:
            return None
        expected = any(h.chance > APPLIED for h in self._habits(segment))
        if expected or (shift and segment.breaks):
            return self._through(segment, shift, APPLIED)
        return None

    def next_mark(self, at: int, stop: int, shift: int) -> int:
        """The first place from `at` to `stop` where the original may not go on as it is, else `stop`."""
        marks, breaks = self.marks, self.original.breaks if shift else ()
        if not marks and not breaks:
            return stop
        return next((i for i in range(at, stop) if i in marks or i in breaks), stop)

    def others(self, first: int, shift: int) -> list[Way]:
        """All ways the text may take from `first` on, the original's among them."""
        ways = []
        if first in self.places:
            ways.append(self._changed(first))
            ways.append(Way(first, first + 1, (self.original.tokens[first],), keeps=(self.places[first][1],)))
        segment = self.original.segments.get(first)
        if segment and self._habits(segment):
            ways += [self._through(segment, shift, least) for least in (0.0, 1.0)]
        return ways

    def doubt(self, at: int) -> float:
        """How likely the text leaves the original at `at` because of what was changed before."""
        if at in self.places:
            return self.places[at][1].chance
        segment = self.original.segments.get(at) if self.words else None
        return max((h.chance for h in self._habits(segment)), default=0.0) if segment else 0.0

    def passed(self, at: int) -> None:
        """The text kept what ends at `at`."""
        segment = self.original.segments.get(self.original.segment_of[at - 1])
        if segment and segment.end == at:
            for habit in self._habits(segment):
                habit.see(None)
        if at - 1 in self.places:
            self.places[at - 1][1].see(None)

    def learn(self, first: int, end: int, text: Sequence[int], start: int, stop: int) -> None:
        """Tokens `first` to `end` of the original became tokens `start` to `stop` of `text`."""
        if not 0 <= end - first <= LONGEST_CHANGE or not 0 <= stop - start <= LONGEST_CHANGE:
            return
        before, after = self.original.tokens[first:end], text[start:stop]
        for tag, i, j, m, n in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            if tag == "equal" or self._learn_words(first + i, first + j, text, start + m, start + n):
                continue
            self._learn_change(first + i, first + j, tuple(text[start + m : start + n]))

    def _learn_words(self, first: int, end: int, text: Sequence[int], start: int, stop: int) -> bool:
        """Remember replaced words, if nothing else was changed."""
        original = self.original
        if not first < end:
            return False
        low = original.segment_of[first]
        segment = original.segments.get(original.segment_of[end - 1])
        high = max(end, segment.end) if segment else end
        if start < first - low or stop + high - end > len(text):
            return False
        if text[start - (first - low) : start] != original.tokens[low:first]:
            return False
        if text[stop : stop + high - end] != original.tokens[end:high]:
            return False
        before = original.bytes_of(low, high)
        after = b"".join(map(self.piece, text[start - (first - low) : stop + high - end]))
        pairs = replaced_words(before, after)
        for old, new in pairs:
            if old not in self.words or self.words[old].into != new:
                self._expect_related(old, new)
            self.words.setdefault(old, Habit(new)).see(new)
            self.marks.update(original.with_word.get(old, ()))
        return bool(pairs)

    def _expect_related(self, old: bytes, new: bytes) -> None:
        """Words that hold the replaced part of `old`, in whatever case, will perhaps change like it."""
        same = common_prefix(old, new)
        old, new = old[same:], new[same:]
        end = common_prefix(old[::-1], new[::-1])
        old, new = old[: len(old) - end], new[: len(new) - end]
        if min(len(old), len(new)) < LEAST_PART:
            return
        for form in (bytes.lower, bytes.upper, bytes.capitalize):
            part, into = form(old), form(new)
            for word in self.original.with_word:
                if word not in self.words and part in word:
                    self.words[word] = Habit(word.replace(part, into), RELATED)
                    self.marks.update(self.original.with_word[word])

    def _learn_change(self, first: int, end: int, into: tuple[int, ...]) -> None:
        """Remember a change for all later places with the same tokens around."""
        tokens = self.original.tokens
        low, high = first - CONTEXT, end + 1 + (first == end)
        if low < 0 or high > len(tokens):
            return
        around, length = tokens[low:high], end - first
        if not into or not length:  # a way has tokens, and leads on
            into, length = (*into, tokens[end]), length + 1
        habit = Habit(into)
        habit.see(into)
        for place in self.original.places[tokens[low]]:
            at = place + CONTEXT
            if at > first and tokens[place : place + len(around)] == around:
                self.places[at] = at + length, habit
                self.marks.add(at)

    def _changed(self, at: int) -> Way:
        end, habit = self.places[at]
        assert isinstance(habit.into, tuple)
        return Way(at, end, habit.into, habit.chance, (habit,))

    def _habits(self, segment: Segment) -> list[Habit]:
        return [self.words[word] for word in segment.words if word in self.words]

    def _through(self, segment: Segment, shift: int, least: float) -> Way:
        """The segment with its indentation shifted and the words replaced whose chance is above `least`."""
        changes: list[Habit] = []
        keeps: list[Habit] = []

        def name(word: bytes) -> bytes:
            habit = self.words.get(word)
            if habit is None or habit.chance <= least or not isinstance(habit.into, bytes):
                keeps.extend([habit] if habit else [])
                return word
            changes.append(habit)
            return habit.into

        text = shifted(segment.text, shift) if segment.breaks and shift else segment.text
        tokens = self._tokens_of(renamed(text, name))
        if not tokens:
            return Way(segment.first, segment.end, tuple(self.original.tokens[segment.first : segment.end]))
        chance = min((habit.chance for habit in changes), default=1.0)
        return Way(segment.first, segment.end, tokens, chance, tuple(changes), tuple(keeps))

    def _tokens_of(self, text: bytes) -> tuple[int, ...]:
        """The tokens of a text, none if there are none that stand for it."""
        known = self._cut.get(text)
        if known is None:
            try:
                known = tuple(self.tokenize(text.decode()))
            except UnicodeDecodeError:
                known = ()
            if b"".join(map(self.piece, known)) != text:
                known = ()
            self._cut[text] = known
        return known
