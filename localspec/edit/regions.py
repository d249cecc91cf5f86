"""Parts of a file that is too long for the context: each is edited on its own, together they are the file.

A part ends where a definition ends (Python), else where a reader would pause: before a line that is indented
least, best after a blank one. Pure: texts in, texts out; tokens are counted by whoever knows the vocabulary.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from localspec.edit.lines import split
from localspec.errors import UsageError

CONTEXT_LINES = 10
"""Lines around a part that are shown with it and stay as they are, at most."""

_CONTEXT_SHARE = 8
"""The lines before a part, and those after it, get an eighth of the tokens each."""

_CLOSING = re.compile(r"[)\]}]|end\b|esac\b|fi\b|done\b")
_NEVER = 1 << 30

_Count = Callable[[str], int]
"""Tokens of a text."""


@dataclass(frozen=True, slots=True)
class Region:
    """Lines `first` to `last` of a file (from 1) as `text`; `head` and `tail` are around it, to be read only.

    Without lines (`last` < `first`) it is the place before the line `first`.
    """

    first: int
    last: int
    text: str
    head: str = ""
    tail: str = ""


def regions(text: str, suffix: str, limit: int, count: _Count) -> tuple[Region, ...]:
    """All of `text` in as few parts as fit: head, part and tail together have at most `limit` tokens.

    `suffix`: the file's, for its language. Raises UsageError if a definition or a line alone has more.
    """
    lines = split(text)
    starts = (_statements(text, lines) if suffix in (".py", ".pyi") else None) or list(range(len(lines)))
    cuts = list(_cuts(lines, starts, limit, count)) if count(text) > limit else [0, len(lines)]
    return tuple(_with_context(lines, first, end, limit, count) for first, end in pairwise(cuts))


def splice(text: str, changed: Mapping[Region, str]) -> str:
    """`text` with the new texts of its regions in place; the line after one stays a line of its own.

    Raises ValueError if a region is not one of this text, or two overlap.
    """
    lines = split(text)
    out: list[str] = []
    at = 0
    for region in sorted(changed, key=lambda region: region.first):
        start, end = region.first - 1, region.last
        if start < at or "".join(lines[start:end]) != region.text:
            raise ValueError("this region belongs to another text")
        new = changed[region]
        if new and end < len(lines) and not new.endswith(("\n", "\r")):
            new += _end_of(lines[max(0, end - 1)])
        out += [*lines[at:start], new]
        at = end
    return "".join(out + lines[at:])


def lines_region(text: str, which: str) -> Region:
    """The lines `which` ("40-90", both included; "40-", "-90", "40") with those around them.

    Raises UsageError.
    """
    lines = split(text)
    found = re.fullmatch(r"(?=.*[0-9])([0-9]{0,9})(-?)([0-9]{0,9})", which.strip())
    if not found:
        raise UsageError(f"'{which}' is not a range of lines", "write --lines 40-90, 40-, -90 or 40")
    first, last = int(found[1] or 1), int(found[3] or (len(lines) if found[2] else found[1]))
    if not 1 <= first <= last <= len(lines):
        what = f"the file has {len(lines)} line{'s' * (len(lines) != 1)}" if lines else "the file is empty"
        raise UsageError(f"lines {which} do not exist: {what}", "the first line is 1, and both are included")
    return _region(lines, first - 1, last, CONTEXT_LINES, CONTEXT_LINES)


def _cuts(lines: Sequence[str], starts: Sequence[int], limit: int, count: _Count) -> Iterator[int]:
    """Where parts begin, and the end; `starts` are the places where one may."""
    room = limit - 2 * (limit // _CONTEXT_SHARE)
    places = [*starts, len(lines)]
    yield 0
    while len(places) > 1:
        most = _most(len(places) - 1, partial(_fits, lines, places, room, count))
        if not most:
            _refuse_too_long(lines, places[0], places[1], limit, count)
        rest = len(places) - 1
        places = places[_best(lines, places, most) if 0 < most < rest else max(most, 1) :]
        yield places[0]


def _fits(lines: Sequence[str], places: Sequence[int], room: int, count: _Count, n: int) -> bool:
    return count("".join(lines[places[0] : places[n]])) <= room


def _most(n: int, fits: Callable[[int], bool]) -> int:
    """The most of 1 to `n` that fit, 0 if not even 1 does, supposing that what is less fits too."""
    low, high = 0, 1
    while high <= n and fits(high):
        low, high = high, 2 * high
    high = min(high, n + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _best(lines: Sequence[str], places: Sequence[int], most: int) -> int:
    """Which of the places 1 to `most` to end at: the best of the later half, the last of equals."""
    return min(range(max(1, most // 2), most + 1), key=lambda n: (*_tear(lines, places[n]), -n))


def _tear(lines: Sequence[str], at: int) -> tuple[int, bool]:
    """How much a cut before this line would tear apart: its indentation, then: no blank line is above."""
    line = lines[at].expandtabs()
    text = line.lstrip()
    indent = len(line) - len(text) if text and not _CLOSING.match(text) else _NEVER
    return indent, bool(lines[at - 1].strip())


def _refuse_too_long(lines: Sequence[str], start: int, end: int, limit: int, count: _Count) -> None:
    tokens = count("".join(lines[start:end]))
    if tokens > limit:
        what = (
            f"line {end} alone is" if end - start == 1 else f"lines {start + 1}-{end} belong together and are"
        )
        hint = "a larger --ctx may help, or --lines for a part of the file"
        raise UsageError(f"{what} {tokens} tokens, more than the {limit} that fit", hint)


def _with_context(lines: Sequence[str], start: int, end: int, limit: int, count: _Count) -> Region:
    spare = limit - count("".join(lines[start:end]))
    share = min(limit // _CONTEXT_SHARE, spare // 2)
    head = _most(min(CONTEXT_LINES, start), lambda n: count("".join(lines[start - n : start])) <= share)
    after = min(CONTEXT_LINES, len(lines) - end)
    return _region(
        lines, start, end, head, _most(after, lambda n: count("".join(lines[end : end + n])) <= share)
    )


def _region(lines: Sequence[str], start: int, end: int, before: int, after: int) -> Region:
    """Lines `start` (from 0) to before `end`, with as many before and after it."""
    around = ((start, end), (max(0, start - before), start), (end, end + after))
    return Region(start + 1, end, *("".join(lines[first:stop]) for first, stop in around))


def _statements(text: str, lines: Sequence[str]) -> list[int] | None:
    """Where top-level statements begin, with decorators and comments right above; None: it is no Python."""
    try:
        with warnings.catch_warnings(action="ignore"):
            body = ast.parse(text.removeprefix("\ufeff")).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    starts, over = [0], 0
    for statement in body:
        first = statement.lineno - 1
        decorated = bool(getattr(statement, "decorator_list", ()))
        first = next((n for n in range(over, first) if decorated and lines[n].startswith("@")), first)
        while first > over and lines[first - 1].startswith("#"):
            first -= 1
        if first > starts[-1] and first >= over:
            starts.append(first)
        over = statement.end_lineno or over
    return starts


def _end_of(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :]
