"""Which lines of two texts stay, and which change.

Works on any sequences of strings; knows nothing of hunks, patches or line endings.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

Change = tuple[int, int, int, int]
"""Lines [0]:[1] of the old text become lines [2]:[3] of the new one; one of the two may be empty."""

Match = tuple[int, int, int]
"""A run of equal lines: where in the old text, where in the new one, how many."""

_MAX_EDITS = 600
"""Differing lines looked for between two anchors; the time grows with its square (0.1 s)."""


def changes(old: Sequence[str], new: Sequence[str]) -> Iterator[Change]:
    """Where two sequences of lines differ, in order; together with what lies between, all of both."""
    at_old = at_new = 0
    for i, j, length in [*matches(old, new), (len(old), len(new), 0)]:
        if at_old < i or at_new < j:
            yield at_old, i, at_new, j
        at_old, at_new = i + length, j + length


def matches(old: Sequence[str], new: Sequence[str]) -> list[Match]:
    """Runs of equal lines that stay, in order.

    Lines that occur once in each hold the two together (patience diff), between them the fewest lines change
    (Myers), unless there are too many: then all of them do.
    """
    numbers: dict[str, int] = {}
    a = [numbers.setdefault(line, len(numbers)) for line in old]  # numbers are faster to compare
    b = [numbers.setdefault(line, len(numbers)) for line in new]
    return _around(a, b, _anchored)


def _anchored(a: list[int], b: list[int]) -> list[Match]:
    """What the lines that occur once in each hold together, and what is found between them."""
    found: list[Match] = []
    at_a = at_b = 0
    for i, j in [*_anchors(a, b), (len(a), len(b))]:
        gap = _around(a[at_a:i], b[at_b:j], _fewest_edits)
        found += [(at_a + x, at_b + y, length) for x, y, length in gap]
        if i < len(a):
            found.append((i, j, 1))
        at_a, at_b = i + 1, j + 1
    return found


def _around(a: list[int], b: list[int], match: Callable[[list[int], list[int]], list[Match]]) -> list[Match]:
    """What is equal at both ends, and what `match` finds between."""
    most = min(len(a), len(b))
    head = next((i for i in range(most) if a[i] != b[i]), most)
    most -= head
    tail = next((i for i in range(most) if a[-1 - i] != b[-1 - i]), most)
    end_a, end_b = len(a) - tail, len(b) - tail
    inner: list[Match] = []
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


def _fewest_edits(a: list[int], b: list[int]) -> list[Match]:
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


def _walk_back(trace: list[list[int]], x: int, y: int) -> list[Match]:
    """The runs of equal lines on the path found, from what was reached before each edit."""
    found: list[Match] = []
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
