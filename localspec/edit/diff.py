"""What an edit changes: hunks to show and choose from, and the same as a patch.

Works on lines with their original ends, so that a change of a line end is a change like any other and
applying all hunks gives the new text to the byte. Knows nothing of files, terminals or models.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from localspec.edit.lines import split

Line = tuple[str, str]
"""What happens to a line (" " stays, "-" goes, "+" comes), and the line with its end."""

_Change = tuple[int, int, int, int]
"""Lines [0]:[1] of the old text become lines [2]:[3] of the new one; one of the two may be empty."""

_Match = tuple[int, int, int]
"""A run of equal lines: where in the old text, where in the new one, how many."""

_MAX_EDITS = 600
"""Differing lines looked for between two anchors; the time grows with its square (0.1 s)."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """Changed lines with those around them; `*_start` lines come before it in the old or new text."""

    old_start: int
    new_start: int
    lines: tuple[Line, ...]

    @property
    def old(self) -> tuple[str, ...]:
        return tuple(line for sign, line in self.lines if sign != "+")

    @property
    def new(self) -> tuple[str, ...]:
        return tuple(line for sign, line in self.lines if sign != "-")

    @property
    def header(self) -> str:
        """As in a patch: of each the first line (from 1; the one before if none) and their number."""
        return f"@@ -{_span(self.old_start, len(self.old))} +{_span(self.new_start, len(self.new))} @@"


def hunks(before: str, after: str, context: int = 3) -> tuple[Hunk, ...]:
    """The changes from `before` to `after`, each with up to `context` lines around it."""
    return _hunks(split(before), split(after), context)


def select(before: str, found: Sequence[Hunk], wanted: Collection[int]) -> str:
    """`before` with those of its hunks applied whose indices are wanted: none is `before`, all is `after`.

    Raises ValueError if a hunk is not one of this text, IndexError if there is no such hunk.
    """
    lines = split(before)
    out: list[str] = []
    at = 0
    for index in sorted(set(wanted)):
        for start, old, new in _edits(found[index]):
            end = start + len(old)
            if start < at or lines[start:end] != old:
                raise ValueError("this hunk belongs to another text")
            out += lines[at:start] + new
            at = end
    return "".join(out + lines[at:])


def split_hunk(hunk: Hunk) -> tuple[Hunk, ...]:
    """One hunk for each run of changed lines, sharing the lines between them; itself if there is but one."""
    runs = [(same, list(lines)) for same, lines in groupby(hunk.lines, key=lambda line: line[0] == " ")]
    parts = []
    old, new = hunk.old_start, hunk.new_start
    for index, (same, lines) in enumerate(runs):
        if not same:
            lead = runs[index - 1][1] if index else []
            trail = runs[index + 1][1] if index + 1 < len(runs) else []
            parts.append(Hunk(old - len(lead), new - len(lead), (*lead, *lines, *trail)))
        old += sum(sign != "+" for sign, _ in lines)
        new += sum(sign != "-" for sign, _ in lines)
    return tuple(parts)


def unified(before: str, after: str, name: str) -> str:
    """A patch of the file `name`, as `git apply` and `patch -p1` take it; "" where nothing changes.

    Here a line ends with a newline only, as those programs see it: a lone CR is a character in it.
    """
    found = _hunks(_git_lines(before), _git_lines(after), 3)
    if not found:
        return ""
    old, new = (_quoted(side + name.lstrip("/")) for side in ("a/", "b/"))
    tab = "\t" if " " in name else ""  # tells where a name with spaces ends
    rows = [f"diff --git {old} {new}\n--- {old}{tab}\n+++ {new}{tab}\n"]
    for hunk in found:
        rows.append(hunk.header + "\n")
        for sign, line in hunk.lines:
            rows.append(
                sign + line if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"
            )
    return "".join(rows)


def changes(old: Sequence[str], new: Sequence[str]) -> Iterator[_Change]:
    """Where two sequences of lines differ, in order; together with what lies between, all of both.

    Lines that occur once in each hold the two together (patience diff), between them the fewest lines change
    (Myers), unless there are too many: then all of them do.
    """
    at_old = at_new = 0
    for i, j, length in [*_matches(old, new), (len(old), len(new), 0)]:
        if at_old < i or at_new < j:
            yield at_old, i, at_new, j
        at_old, at_new = i + length, j + length


def _hunks(old: Sequence[str], new: Sequence[str], context: int) -> tuple[Hunk, ...]:
    groups: list[list[_Change]] = []
    for change in changes(old, new):
        if groups and change[0] - groups[-1][-1][1] <= 2 * context:
            groups[-1].append(change)
        else:
            groups.append([change])
    return tuple(_hunk(old, new, group, context) for group in groups)


def _hunk(old: Sequence[str], new: Sequence[str], group: list[_Change], context: int) -> Hunk:
    start = at = max(0, group[0][0] - context)
    lines: list[Line] = []
    for old_from, old_to, new_from, new_to in group:
        lines += [(" ", line) for line in old[at:old_from]]
        lines += [("-", line) for line in old[old_from:old_to]]
        lines += [("+", line) for line in new[new_from:new_to]]
        at = old_to
    lines += [(" ", line) for line in old[at : at + context]]
    return Hunk(start, group[0][2] - (group[0][0] - start), tuple(lines))


def _edits(hunk: Hunk) -> Iterator[tuple[int, list[str], list[str]]]:
    """Each run of changed lines: where in the old text, what goes, what comes."""
    at = hunk.old_start
    for same, run in groupby(hunk.lines, key=lambda line: line[0] == " "):
        lines = list(run)
        old = [line for sign, line in lines if sign != "+"]
        if not same:
            yield at, old, [line for sign, line in lines if sign == "+"]
        at += len(old)


def _matches(old: Sequence[str], new: Sequence[str]) -> list[_Match]:
    """Runs of equal lines, in order."""
    numbers: dict[str, int] = {}
    a = [numbers.setdefault(line, len(numbers)) for line in old]  # numbers are faster to compare
    b = [numbers.setdefault(line, len(numbers)) for line in new]
    return _around(a, b, _anchored)


def _anchored(a: list[int], b: list[int]) -> list[_Match]:
    """What the lines that occur once in each hold together, and what is found between them."""
    found: list[_Match] = []
    at_a = at_b = 0
    for i, j in [*_anchors(a, b), (len(a), len(b))]:
        gap = _around(a[at_a:i], b[at_b:j], _fewest_edits)
        found += [(at_a + x, at_b + y, length) for x, y, length in gap]
        if i < len(a):
            found.append((i, j, 1))
        at_a, at_b = i + 1, j + 1
    return found


def _around(
    a: list[int], b: list[int], match: Callable[[list[int], list[int]], list[_Match]]
) -> list[_Match]:
    """What is equal at both ends, and what `match` finds between."""
    most = min(len(a), len(b))
    head = next((i for i in range(most) if a[i] != b[i]), most)
    most -= head
    tail = next((i for i in range(most) if a[-1 - i] != b[-1 - i]), most)
    end_a, end_b = len(a) - tail, len(b) - tail
    inner: list[_Match] = []
    if head < end_a and head < end_b:
        inner = [(head + i, head + j, n) for i, j, n in match(a[head:end_a], b[head:end_b])]
    return [(0, 0, head), *inner, (end_a, end_b, tail)]


def _anchors(a: list[int], b: list[int]) -> list[tuple[int, int]]:
    """The longest row of lines that are unique in both and in the same order in both (patience sorting)."""
    in_a, in_b = Counter(a), Counter(b)
    place = {line: j for j, line in enumerate(b) if in_b[line] == 1}
    pairs = [(i, place[line]) for i, line in enumerate(a) if in_a[line] == 1 and line in place]
    ends: list[int] = []  # of rows of each length, the smallest place in b that one can end with
    last: list[int] = []  # and the pair that does
    before: list[int | None] = []
    for index, (_, j) in enumerate(pairs):
        length = bisect_left(ends, j)
        before.append(last[length - 1] if length else None)
        ends[length : length + 1] = [j]
        last[length : length + 1] = [index]
    row: list[tuple[int, int]] = []
    at = last[-1] if last else None
    while at is not None:
        row.append(pairs[at])
        at = before[at]
    return row[::-1]


def _fewest_edits(a: list[int], b: list[int]) -> list[_Match]:
    """Myers' greedy O(ND) algorithm (1986); nothing if more than _MAX_EDITS lines differ.

    `reach[k]` is how far in `a` paths on diagonal k (place in `a` less place in `b`) come; negative k count
    from the end of the list.
    """
    reach = [0] * (2 * _MAX_EDITS + 3)
    trace: list[list[int]] = []
    for edits in range(min(_MAX_EDITS, len(a) + len(b)) + 1):
        trace.append(reach[: edits + 2] + reach[-edits - 1 :])
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or (k != edits and reach[k - 1] < reach[k + 1])
            x = reach[k + 1] if down else reach[k - 1] + 1
            y = x - k
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x, y = x + 1, y + 1
            reach[k] = x
            if x >= len(a) and y >= len(b):
                return _walk_back(trace, x, y)
    return []


def _walk_back(trace: list[list[int]], x: int, y: int) -> list[_Match]:
    """The runs of equal lines on the path found, from what was reached before each edit."""
    found: list[_Match] = []
    for edits in range(len(trace) - 1, -1, -1):
        reach, k = trace[edits], x - y
        down = k == -edits or (k != edits and reach[k - 1] < reach[k + 1])
        from_k = k + 1 if down else k - 1
        from_x = reach[from_k] if edits else 0
        from_y = from_x - from_k if edits else 0
        start = (from_x if down else from_x + 1) if edits else 0
        if x > start:
            found.append((start, start - k, x - start))
        x, y = from_x, from_y
    return found[::-1]


def _git_lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _span(start: int, count: int) -> str:
    first = start + 1 if count else start
    return f"{first}" if count == 1 else f"{first},{count}"


_ESCAPES = {ord(char): f"\\{name}" for char, name in zip('"\\\a\b\f\n\r\t\v', '"\\abfnrtv', strict=True)}


def _quoted(name: str) -> str:
    """A file name as git writes it: in quotes, escaped as in C, where it has other than plain characters."""
    raw = os.fsencode(name)
    out = "".join(
        _ESCAPES.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}") for byte in raw
    )
    return name if out == name else f'"{out}"'
