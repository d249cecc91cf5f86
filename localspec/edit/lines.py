"""Line endings: a model sees and writes \\n, the file keeps its own, each line for itself.

A line ends at \\n, \\r\\n or \\r and nowhere else: form feeds, U+2028 and what else str.splitlines takes for
an end are text. Pure: strings in, strings out; knows neither files nor encodings.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

_LINE = re.compile(r"[^\r\n]*+(?:\r\n?|\n)|[^\r\n]++")
_ENDS = "\r\n"
_MOST_PAIRS = 100_000
"""difflib is not asked about stretches of more pairs of lines: it may take the cube of their length."""


def split(text: str) -> list[str]:
    """The lines of `text`, each with its ending; the last may have none."""
    return _LINE.findall(text)


def lf(text: str) -> str:
    """`text` with every line ending as \\n: what a model sees."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def restore(old: str, new_lf: str, final_newline: bool | None = None) -> str:
    """The text `new_lf`, whose lines end in \\n, with the line endings of `old`.

    A line that stays keeps its ending, a new one takes that of the line in whose place it stands, else of its
    neighbour. `final_newline`: whether the last line is to end; None: as in `old`, unless nothing else
    differs. Example: restore("a\\r\\nb\\n", "A\\nb\\nc\\n") is "A\\r\\nb\\nc\\n".
    """
    old_lf, new_lf = lf(old), lf(new_lf)
    if not new_lf:
        return ""
    if final_newline is None:
        final_newline = _final_newline(old_lf, new_lf)
    new_lf = new_lf.removesuffix("\n") + "\n" * final_newline
    if new_lf == old_lf:
        return old
    endings = _endings(old)
    if len(endings) > 1:
        return _mixed(split(old), split(new_lf))
    return new_lf.replace("\n", endings[0]) if endings else new_lf


def _final_newline(old_lf: str, new_lf: str) -> bool:
    only_difference = old_lf.removesuffix("\n") == new_lf.removesuffix("\n")
    return (new_lf if only_difference or not old_lf else old_lf).endswith("\n")


def _endings(text: str) -> list[str]:
    """The kinds of line endings in `text`."""
    pairs = text.count("\r\n")
    counts = {"\r\n": pairs, "\n": text.count("\n") - pairs, "\r": text.count("\r") - pairs}
    return [ending for ending, count in counts.items() if count]


def _mixed(old: Sequence[str], new: Sequence[str]) -> str:
    """The lines of `new` with endings from `old`, whose lines do not all end alike."""
    before, after = ([line.rstrip(_ENDS) for line in lines] for lines in (old, new))
    endings: list[str] = []
    place = 0
    for i, j in (*_kept(before, after), (len(before), len(after))):
        replaced = [old[k][len(before[k]) :] for k in range(place, i)]
        inserted = j - len(endings)
        endings += (replaced + [""] * inserted)[:inserted]
        endings += [line[len(before[i]) :] for line in old[i : i + 1]]
        place = i + 1
    last = next((ending for ending in endings if ending), "\n")
    for j, text in enumerate(after):
        ending = endings[j] or last
        if j and not text and (last, ending) == ("\r", "\n"):
            ending = "\r"  # an empty line must not become one with the end before it
        endings[j] = last = ending
    whole = "".join(text + ending for text, ending in zip(after, endings, strict=False))
    return whole if new[-1].endswith("\n") else whole[: -len(last)]


def _kept(a: Sequence[str], b: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Pairs (i, j), both rising, of lines a[i] == b[j] that stay.

    What both begin and end with; between that, lines that occur once in each and in the same order
    (B. Cohen's patience diff); between those, what difflib finds.
    """
    head, tail = _same_ends(a, b)
    stop_a, stop_b = len(a) - tail, len(b) - tail
    yield from ((k, k) for k in range(head))
    i = j = head
    for p, q in (*_anchors(a[head:stop_a], b[head:stop_b]), (stop_a - head, stop_b - head)):
        for x, y in _kept_in_gap(a[i : head + p], b[j : head + q]):
            yield i + x, j + y
        i, j = head + p, head + q
        if i < stop_a and j < stop_b:
            yield i, j
            i, j = i + 1, j + 1
    yield from ((stop_a + k, stop_b + k) for k in range(tail))


def _same_ends(a: Sequence[str], b: Sequence[str]) -> tuple[int, int]:
    """How many first and how many last lines are the same, no line counted twice."""
    most = min(len(a), len(b))
    head = next((k for k in range(most) if a[k] != b[k]), most)
    tail = next((k for k in range(most - head) if a[-1 - k] != b[-1 - k]), most - head)
    return head, tail


def _kept_in_gap(a: Sequence[str], b: Sequence[str]) -> Iterator[tuple[int, int]]:
    head, tail = _same_ends(a, b)
    yield from ((k, k) for k in range(head))
    stop_a, stop_b = len(a) - tail, len(b) - tail
    if (stop_a - head) * (stop_b - head) <= _MOST_PAIRS:
        matcher = SequenceMatcher(None, a[head:stop_a], b[head:stop_b], autojunk=False)
        for x, y, size in matcher.get_matching_blocks():
            yield from ((head + x + k, head + y + k) for k in range(size))
    yield from ((stop_a + k, stop_b + k) for k in range(tail))


def _anchors(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]]:
    """The longest rising chain of pairs of lines that occur once in `a` and once in `b`."""
    once_b = {line for line, count in Counter(b).items() if count == 1}
    once = {line for line, count in Counter(a).items() if count == 1} & once_b
    where = {line: j for j, line in enumerate(b) if line in once}
    heads: list[int] = []  # heads[n]: the lowest j that ends a chain of n + 1 pairs
    links: list[tuple[int, int, int]] = []  # i, j, and which link came before
    ends: list[int] = []  # ends[n]: the link of heads[n]
    for i, line in enumerate(a):
        if line in once:
            n = bisect_left(heads, where[line])
            links.append((i, where[line], ends[n - 1] if n else -1))
            heads[n : n + 1], ends[n : n + 1] = [where[line]], [len(links) - 1]
    chain, link = [], ends[-1] if ends else -1
    while link >= 0:
        i, j, link = links[link]
        chain.append((i, j))
    return chain[::-1]
