"""Search/replace blocks applied to a text: all of them or none.

Where a block's lines are not found as they stand, a ladder of looser comparisons is walked down, and every
step down is told. Two places, or none, is an error with line numbers. Pure; texts have \\n line ends.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise

from localspec.chat.prompt import quote
from localspec.edit.reply import BadReply, Block

_MOST_SHOWN = 12  # lines of a near miss
_LONGEST_SHOWN = 2_000  # characters of it
_MOST_COMPARED = 500  # lines compared letter by letter
_LONGEST_COMPARED = 120  # characters of them
_COMMON = 50  # a line this frequent says nothing about the place


@dataclass(frozen=True, slots=True)
class Applied:
    """The new text, and what had to be tolerated, in lines for the user."""

    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Change:
    """Lines `start` to `end` (excluded) of the text give way to `lines`, as block `number` asked."""

    start: int
    end: int
    lines: tuple[str, ...]
    number: int


@dataclass(frozen=True, slots=True)
class _Step:
    """One rung: lines are compared by `key`, the replacement is adapted by `fit(replace, search, found)`."""

    words: str
    key: Callable[[str], str]
    edges: bool = False
    indent: bool = False


def _same(line: str) -> str:
    return line


LADDER = (
    _Step("", _same),
    _Step("blank lines around it", _same, edges=True),
    _Step("spaces at line ends", str.rstrip, edges=True),
    _Step("indentation", str.strip, edges=True, indent=True),
)


def apply(text: str, blocks: Sequence[Block]) -> Applied:
    """`text` with every block applied to it as it stood before any of them.

    Raises BadReply, describing every block that fails. The state of the final newline stays.
    """
    lines = text.removesuffix("\n").split("\n") if text else []
    finder = _Finder(lines)
    changes: list[_Change] = []
    notes: list[str] = []
    problems: list[str] = []
    for number, block in _distinct(blocks, notes):
        try:
            change, note = finder.place(block, number)
        except _Unplaced as problem:
            problems.append(str(problem))
            continue
        notes += [note] if note else []
        if lines[change.start : change.end] == list(change.lines):
            notes.append(f"block {number} changes nothing")
        else:
            changes.append(change)
    changes.sort(key=lambda change: (change.start, change.end))
    problems += _overlaps(changes)
    if problems:
        raise BadReply("\n\n".join((*problems, "Nothing was changed.")))
    return Applied(_spliced(text, lines, changes), tuple(notes))


class _Unplaced(Exception):
    """Why a block has no place of its own, for the model."""


class _Finder:
    """Where blocks belong among `lines`; an index is built for each rung that is needed."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._keyed: dict[Callable[[str], str], tuple[list[str], dict[str, list[int]]]] = {}

    def place(self, block: Block, number: int) -> tuple[_Change, str]:
        """The change a block asks for, and a note if it was found only by a looser comparison."""
        if not any(line.strip() for line in block.search):
            return self._fill(block, number)
        for step in LADDER:
            search, replace = _without_edges(block) if step.edges else (block.search, block.replace)
            places = self._places(search, step)
            if step.indent:
                places = [
                    at
                    for at in places
                    if _shift(search, replace, self._lines[at : at + len(search)]) is not None
                ]
            if len(places) > 1:
                raise _Unplaced(_ambiguous(number, places))
            if places:
                note = f"block {number} was matched without regard to {step.words}" if step.words else ""
                return self._change(places[0], search, replace, step, number), note
        raise _Unplaced(self._missing(block, number))

    def _fill(self, block: Block, number: int) -> tuple[_Change, str]:
        if any(line.strip() for line in self._lines):
            raise _Unplaced(
                f"Block {number} has no SEARCH lines. To add lines, put lines that are there under SEARCH "
                "and repeat them under REPLACE."
            )
        return _Change(0, len(self._lines), block.replace, number), ""

    def _places(self, search: Sequence[str], step: _Step) -> list[int]:
        """Where `search` stands: every place, or the first few."""
        keyed, index = self._index(step.key)
        wanted = [step.key(line) for line in search]
        at = min(range(len(wanted)), key=lambda i: len(index.get(wanted[i], ())))
        places: list[int] = []
        for found in index.get(wanted[at], ()):
            start = found - at
            if start >= 0 and keyed[start : start + len(wanted)] == wanted:
                window = self._lines[start : start + len(wanted)]
                if not step.indent or _dedented(window) == _dedented(search):
                    places.append(start)
            if len(places) > 4:
                break
        return places

    def _index(self, key: Callable[[str], str]) -> tuple[list[str], dict[str, list[int]]]:
        if key not in self._keyed:
            keyed = [key(line) for line in self._lines]
            index: dict[str, list[int]] = defaultdict(list)
            for at, line in enumerate(keyed):
                index[line].append(at)
            self._keyed[key] = keyed, index
        return self._keyed[key]

    def _change(
        self, start: int, search: Sequence[str], replace: Sequence[str], step: _Step, number: int
    ) -> _Change:
        """The change, without the lines that stay: those keep what the comparison overlooked."""
        found = self._lines[start : start + len(search)]
        head = _common(search, replace)
        tail = _common(search[head:][::-1], replace[head:][::-1])
        new = (_shift(search, replace, found) or []) if step.indent else replace
        return _Change(start + head, start + len(search) - tail, tuple(new[head : len(new) - tail]), number)

    def _missing(self, block: Block, number: int) -> str:
        start = self._closest(block.search)
        if start is None:
            return f"The SEARCH lines of block {number} are not in the text, nor anything like them."
        end = min(start + len(block.search), start + _MOST_SHOWN, len(self._lines))
        near = "\n".join(self._lines[start:end])
        shown = quote(near, " The text has there").rstrip() if len(near) <= _LONGEST_SHOWN else ""
        return (
            f"The SEARCH lines of block {number} are not in the text. "
            f"Did you mean {_span(start, end)}? Copy them exactly.{shown}"
        )

    def _closest(self, search: Sequence[str]) -> int | None:
        """Where most lines of `search` stand in their order, or else its longest line nearly."""
        _, index = self._index(str.strip)
        votes: Counter[int] = Counter()
        for offset, line in enumerate(search):
            found = index.get(line.strip(), [])
            if line.strip() and len(found) <= _COMMON:
                votes.update(at - offset for at in found)
        if votes:
            return max(min(votes, key=lambda start: (-votes[start], start)), 0)
        longest = max(enumerate(search), key=lambda item: len(item[1].strip()))
        wanted = longest[1].strip()[:_LONGEST_COMPARED]
        lines = [line for line in index if 0 < len(line) <= _LONGEST_COMPARED][:_MOST_COMPARED]
        close = get_close_matches(wanted, lines, n=1, cutoff=0.6)
        return max(index[close[0]][0] - longest[0], 0) if close else None


def _distinct(blocks: Iterable[Block], notes: list[str]) -> list[tuple[int, Block]]:
    """Numbered from 1; a block that was written twice counts once."""
    kept: dict[Block, int] = {}
    for number, block in enumerate(blocks, 1):
        if block in kept:
            notes.append(f"block {number} repeats block {kept[block]}")
        kept.setdefault(block, number)
    return [(number, block) for block, number in kept.items()]


def _without_edges(block: Block) -> tuple[Sequence[str], Sequence[str]]:
    """Search and replacement without the blank lines that both have at their edges."""
    search, replace = list(block.search), list(block.replace)
    for end in (0, -1):
        while not search[end].strip():
            search.pop(end)
            if replace and not replace[end].strip():
                replace.pop(end)
    return search, replace


def _margin(lines: Sequence[str]) -> str:
    """The whitespace that all lines which are not blank begin with."""
    solid = [line for line in lines if line.strip()]
    if not solid:
        return ""
    low, high = min(solid), max(solid)
    length = next((i for i, char in enumerate(low) if i >= len(high) or char != high[i]), len(low))
    return low[: min(length, len(low) - len(low.lstrip()))]


def _dedented(lines: Sequence[str]) -> list[str]:
    margin = len(_margin(lines))
    return [line[margin:].rstrip() if line.strip() else "" for line in lines]


def _shift(search: Sequence[str], replace: Sequence[str], found: Sequence[str]) -> list[str] | None:
    """`replace` moved as far as `found` stands from `search`, or None where a line cannot move so far."""
    ours, theirs = _margin(search), _margin(found)
    if theirs.endswith(ours):
        gone, come = "", theirs.removesuffix(ours)
    elif ours.endswith(theirs):
        gone, come = ours.removesuffix(theirs), ""
    else:
        gone, come = ours, theirs
    if not all(line.startswith(gone) for line in replace if line.strip()):
        return None
    return [come + line.removeprefix(gone) if line.strip() else line for line in replace]


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many first lines are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _ambiguous(number: int, places: Sequence[int]) -> str:
    where = ", ".join(str(at + 1) for at in places[:4]) + (" and more" if len(places) > 4 else "")
    return (
        f"The SEARCH lines of block {number} are in the text more than once, beginning at lines {where}. "
        "Add lines before or after them until they are found only once."
    )


def _overlaps(changes: Sequence[_Change]) -> list[str]:
    """Complaints about changes, in order of place, that touch the same lines."""
    problems: list[str] = []
    for one, other in pairwise(changes):
        if other.start < one.end or (one.start, one.end) == (other.start, other.end):
            first, second = sorted((one.number, other.number))
            where = _span(other.start, max(min(one.end, other.end), other.start + 1))
            problems.append(f"Blocks {first} and {second} both change {where}. Make one block of them.")
    return problems


def _span(start: int, end: int) -> str:
    """Lines `start` to `end` (excluded), counted from 0, as people count them."""
    return f"lines {start + 1}-{end}" if end - start > 1 else f"line {start + 1}"


def _spliced(text: str, lines: Sequence[str], changes: Sequence[_Change]) -> str:
    new: list[str] = []
    done = 0
    for change in changes:
        new += [*lines[done : change.start], *change.lines]
        done = change.end
    new += lines[done:]
    ends = text.endswith("\n") or not text
    return "\n".join(new) + "\n" * ends if new else ""
