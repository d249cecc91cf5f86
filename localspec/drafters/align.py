"""Where a text that is being written stands in the file it rewrites.

`Original` is the file, indexed: where each token occurs, and which tokens make up a word or a line break with
its indentation, so that these can be rewritten as text. `places` are the positions of it at which the text
might go on, each with how likely it goes on there. Knows token ids and the bytes they stand for; nothing of
models, of the tokenizer's rules, or of drafts.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

LONGEST_RUN = 24
"""Tokens of agreement that are looked at, backwards from the end of the text."""
NEAR = 4
"""Occurrences of a token looked at behind the place where text and original parted; half of it before."""
FEW = 8
"""A token that occurs no more often than this is looked up everywhere."""

_WORD = re.compile(rb"[A-Za-z_\x80-\xff][A-Za-z0-9_\x80-\xff]*")
_BREAK = re.compile(rb"[ \t\r]*\n\s*")


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens `first` to `end` of the original, which stand for `text`: whole words, or a line break, its
    indentation and what shares a token with it. `breaks`: there is a line break in it."""

    first: int
    end: int
    text: bytes
    words: tuple[bytes, ...]
    breaks: bool


class Original:
    """A file as the tokens of a reply that repeats it. `piece`: the bytes of a token."""

    def __init__(self, tokens: Sequence[int], piece: Callable[[int], bytes]) -> None:
        self.tokens = list(tokens)
        self.places: dict[int, list[int]] = {}
        for i, token in enumerate(self.tokens):
            self.places.setdefault(token, []).append(i)
        pieces = [piece(token) for token in self.tokens]
        self.text = b"".join(pieces)
        self.starts = list(accumulate(map(len, pieces), initial=0))
        self.segments = {segment.first: segment for segment in self._segments()}
        self.segment_of = list(range(len(self.tokens)))
        for segment in self.segments.values():
            for i in range(segment.first, segment.end):
                self.segment_of[i] = segment.first
        self.breaks = {segment.first for segment in self.segments.values() if segment.breaks}
        self.with_word: dict[bytes, list[int]] = {}
        for segment in self.segments.values():
            for word in segment.words:
                self.with_word.setdefault(word, []).append(segment.first)
        self.indents, self.kinds = self._lines(pieces)
        self.lines = list(accumulate((piece.count(b"\n") for piece in pieces), initial=0))
        self.words = bytearray(bool(_WORD.match(piece.lstrip(b" "))) for piece in pieces)
        self.joins = bytearray(bool(_WORD.match(piece)) for piece in pieces)

    def __len__(self) -> int:
        return len(self.tokens)

    def bytes_of(self, first: int, end: int) -> bytes:
        """What tokens `first` to `end` stand for."""
        return self.text[self.starts[first] : self.starts[end]]

    def _segments(self) -> Iterator[Segment]:
        """Words and line breaks that share a token are one segment."""
        spans = [(m.start(), m.end(), False) for m in _WORD.finditer(self.text)]
        spans += [(m.start(), m.end(), True) for m in _BREAK.finditer(self.text)]
        first = end = -1
        breaks = False
        for low, high, is_break in sorted(spans):
            a, b = self._covering(low, high)
            if a < end:
                end, breaks = max(end, b), breaks or is_break
                continue
            if end > first:
                yield self._segment(first, end, breaks)
            first, end, breaks = a, b, is_break
        if end > first:
            yield self._segment(first, end, breaks)

    def _covering(self, low: int, high: int) -> tuple[int, int]:
        """The tokens that hold bytes `low` to `high`."""
        a = bisect_left(self.starts, low + 1) - 1
        return a, bisect_left(self.starts, high, lo=a)

    def _segment(self, first: int, end: int, breaks: bool) -> Segment:
        text = self.bytes_of(first, end)
        return Segment(first, end, text, tuple(_WORD.findall(text)), breaks)

    def _lines(self, pieces: Sequence[bytes]) -> tuple[list[int], bytearray]:
        """For each token: the indentation, in bytes, of the line it ends in; and whether it begins a line
        (1: a break, 2: the first of the line's own tokens, 0: any other)."""
        indents, kinds = [], bytearray(len(pieces))
        indent = line_indent(self.text, 0)
        begins = True
        for i, piece in enumerate(pieces):
            if b"\n" in piece:
                indent = line_indent(self.text, self.starts[i] + piece.rindex(b"\n") + 1)
            indents.append(indent)
            if b"\n" in piece or not piece.strip():
                kinds[i] = 1 if b"\n" in piece or begins else 0
                begins = begins or b"\n" in piece
            else:
                kinds[i] = 2 if begins else 0
                begins = False
        return indents, kinds


def line_indent(text: bytes, start: int) -> int:
    """Bytes of white space at the beginning of the line that starts at `start`."""
    end = start
    while end < len(text) and text[end] in b" \t":
        end += 1
    return end - start


def shifted(text: bytes, by: int) -> bytes:
    """`text` with `by` bytes more, or fewer, of white space behind its last line break."""
    line = text.rfind(b"\n") + 1
    indent = line_indent(text, line)
    if by < 0:
        return text[:line] + text[line + min(-by, indent) :]
    fill = text[line : line + 1] if indent else b" "
    return text[:line] + fill * by + text[line:]


def renamed(text: bytes, names: Callable[[bytes], bytes]) -> bytes:
    """`text` with each word replaced by what `names` says."""
    return _WORD.sub(lambda match: names(match[0]), text)


def replaced_words(before: bytes, after: bytes) -> list[tuple[bytes, bytes]]:
    """The words that differ between two texts that differ in nothing else; none if they do."""
    if _WORD.split(before) != _WORD.split(after):
        return []
    pairs = zip(_WORD.findall(before), _WORD.findall(after), strict=True)
    return [(old, new) for old, new in pairs if old != new]


@dataclass(frozen=True, slots=True)
class Place:
    """A position of the original at which the text may go on. `run`: tokens up to here that agree;
    `shift`: bytes of indentation the text has more here; `chance`: how likely the next token agrees too."""

    at: int
    run: int
    shift: int = 0
    chance: float = 1.0


@dataclass(frozen=True, slots=True)
class Gap:
    """The text has parted from the original: at `at` of it, `length` tokens ago. `lines`: line breaks since
    then; `indent`: of the line being written, None while that is not known."""

    at: int
    length: int
    lines: int
    indent: int | None


def features(original: Original, gap: Gap, at: int, run: int, rivals: int, shift: int) -> tuple[float, ...]:
    """What tells whether the text goes on at `at`, where `run` tokens agree; `rivals`: places as good."""
    fresh = run if run < gap.length else gap.length
    ahead = at - gap.at
    lines = original.lines[at] - original.lines[gap.at]
    begins = at > 0 and original.kinds[at - 1] == 1
    word = original.words[at]
    return (
        1.0,
        run == 0,
        _LOG[fresh],
        _LOG[run - fresh],
        _LOG[rivals],
        math.log2(1 + ahead) if ahead >= 0 else 0.0,
        math.log2(1 - ahead) if ahead < 0 else 0.0,
        ahead < 0,
        ahead == 0,
        shift != 0,
        math.log2(gap.length),
        begins,
        word,
        word and original.joins[at] and at > 0 and original.words[at - 1],
        lines == gap.lines,
        begins and lines == gap.lines > 0,
        begins and lines == 0 < gap.lines,
    )


_LOG = [math.log2(1 + n) for n in range(256)]
# Of `features`, by logistic regression on what followed each of the candidates at 11,000 tokens where
# functions had been changed between two releases of thirteen packages.
_WEIGHTS = (
    *(-0.43, -1.26, 1.79, 0.46, -0.26, -0.25, -0.06, -1.18, -0.76),
    *(-0.53, -0.14, -0.29, -0.49, 1.08, 0.16, 0.66, 0.2),
)


def candidates(original: Original, text: Sequence[int], gap: Gap) -> dict[int, int]:
    """Positions at which `text` may go on, each with how many tokens agree up to there."""
    tokens, size = original.tokens, len(original)
    found: dict[int, int] = {}
    occurrences = original.places.get(text[-1], ())
    for place in _chosen(occurrences, gap.at):
        run, most = 1, min(LONGEST_RUN, place + 1, len(text))
        while run < most and tokens[place - run] == text[-1 - run]:
            run += 1
        if place + 1 < size:
            found[place + 1] = run
    for at in (gap.at, gap.at + gap.length):
        if at < size and at not in found:
            found[at] = 0
    segment = original.segments.get(original.segment_of[gap.at]) if gap.at < size else None
    if segment and segment.end < size and segment.end not in found:
        found[segment.end] = 0
    return found


def _chosen(occurrences: Sequence[int], near: int) -> Sequence[int]:
    """All of a few occurrences, of many the next ones to the place `near`."""
    if len(occurrences) <= FEW:
        return occurrences
    middle = bisect_left(occurrences, near - 1)
    return occurrences[max(0, middle - NEAR // 2) : middle + NEAR]


def best_place(original: Original, text: Sequence[int], gap: Gap) -> Place | None:
    """Where the text most likely goes on."""
    most, best = -math.inf, None
    found = candidates(original, text, gap)
    runs = sorted(found.values())
    for at, run in found.items():
        rivals = len(runs) - bisect_left(runs, run) - 1
        shift = 0 if gap.indent is None or not run else gap.indent - original.indents[at - 1]
        score = sum(map(mul, _WEIGHTS, features(original, gap, at, run, rivals, shift)))
        if score > most:
            most, best = score, (at, run, shift)
    return Place(*best, 1 / (1 + math.exp(-most))) if best else None
