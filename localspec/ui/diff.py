"""A diff on a screen: all that changes is shown, and nothing in it can pretend to be something else.

Knows rows and cells, not where the changes come from. A row's first column is ours: the sign of a line, or a
mark that the row goes on with the line above. Characters that one cannot see are spelled out, line ends too
where they differ; long lines are folded, never cut off, because what is shown is what will be confirmed.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import groupby
from typing import Protocol

_CYAN, _DIM, _MARKED, _TRAILING = "36", "2", "7", "41"
_COLORS = {"-": "31", "+": "32", " ": ""}
_FOLDED = "…"
_NO_END = " No newline at end of file"

_ENDS = {"\n": "^J", "\r\n": "^M", "\r": "<U+000D>", "": ""}
_BLANKS = {" ": "·", "\t": "→\t"}  # at the end of a line, where colour may not show them
_UNSEEN = re.compile(  # beside whole categories: letters, marks and a symbol that leave no ink
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"}
_TOKEN = re.compile(r"\w+|\r\n|[\r\n]|[^\S\r\n]+|[^\w\s]")

_MOST_LINES = 2_500  # lines that went times lines that came: beyond, no changed words are looked for
_MOST_TOKENS = 20_000  # likewise in all these lines
_MOST_PAIRS = 100_000  # words times words that difflib is asked about in them; it may take the power of 1.5

_Cell = tuple[str, str]
"""What is shown of one character, and its SGR parameters."""


class Shown(Protocol):
    """A hunk: its header, and its lines with their ends, each after its sign (" ", "-" or "+")."""

    @property
    def header(self) -> str: ...
    @property
    def lines(self) -> Sequence[tuple[str, str]]: ...


def render(hunks: Iterable[Shown], columns: int, color: bool) -> str:
    """`hunks` as rows for a terminal of `columns`; with `color`, changed words and odd spaces stand out.

    A line end is spelled out where it is not the usual one of the old lines shown.
    """
    hunks = list(hunks)
    usual = _usual_end(line for hunk in hunks for sign, line in hunk.lines if sign != "+")
    rows: list[str] = []
    for hunk in hunks:
        rows += _rows(hunk.header[0], _cells(hunk.header[1:], _CYAN, set()), _CYAN, columns, color)
        for (sign, line), marked in zip(hunk.lines, _changed_words(hunk.lines), strict=True):
            rows += _line(sign, line, marked, usual, columns, color)
    return "".join(row + "\n" for row in rows)


def _line(sign: str, line: str, marked: set[int], usual: str, columns: int, color: bool) -> Iterator[str]:
    base = _COLORS[sign]
    text = line.rstrip("\r\n")
    end = line[len(text) :]
    blank = "" if sign == " " else text[len(text.rstrip(" \t")) :]
    cells = [
        *_cells(text[: len(text) - len(blank)], base, marked),
        *((part, _TRAILING) for char in blank for part in (char if color else _BLANKS[char])),
        *((char, f"{base};{_MARKED}") for char in (_ENDS[end] if end != usual else "")),
    ]
    yield from _rows(sign, cells, base, columns, color)
    if not end:
        yield from _rows("\\", [(char, _DIM) for char in _NO_END], _DIM, columns, color)


def _cells(text: str, base: str, marked: set[int]) -> Iterator[_Cell]:
    for index, char in enumerate(text):
        seen = _is_seen(char) and not (index == 0 and unicodedata.combining(char))  # would land on our sign
        style = f"{base};{_MARKED}" if index in marked or not seen else base
        yield from ((part, style) for part in (char if seen else f"<U+{ord(char):04X}>"))


def _is_seen(char: str) -> bool:
    """Whether it leaves ink or is one of the two blanks that everybody expects."""
    return char in " \t" or (unicodedata.category(char) not in _HIDDEN and not _UNSEEN.match(char))


def _rows(sign: str, cells: Iterable[_Cell], base: str, columns: int, color: bool) -> Iterator[str]:
    """A line as rows that leave the last column free; each after the first begins with `_FOLDED`."""
    last = max(columns - 1, 3)
    row, at = [(sign, base)], len(sign)
    for char, style in cells:
        width = _width(char, at, last)
        if at + width > last:
            yield _painted(row, color)
            row, at = [(_FOLDED, _DIM)], 1
            width = _width(char, at, last)
        row.append((char, style))
        at += width
    yield _painted(row, color)


def _width(char: str, at: int, last: int) -> int:
    """Columns of `char` at column `at`: a tab goes to the next multiple of 8, or to the `last` one."""
    if char == "\t":
        return max(1, min(8 - at % 8, last - at))
    if char.isascii():
        return 1
    from rich.cells import cell_len

    return cell_len(char)


def _painted(row: list[_Cell], color: bool) -> str:
    out = ""
    for style, cells in groupby(row, key=lambda cell: cell[1] if color else ""):
        text = "".join(char for char, _ in cells)
        out += f"\x1b[{style.lstrip(';')}m{text}\x1b[m" if style else text
    return out


def _usual_end(lines: Iterable[str]) -> str:
    ends = Counter(line[len(line.rstrip("\r\n")) :] for line in lines)
    ends.pop("", None)
    return max(ends, key=lambda end: ends[end], default="\n")


def _changed_words(lines: Sequence[tuple[str, str]]) -> list[set[int]]:
    """For each line the places of characters that differ from the line it replaces or is replaced by."""
    marked: list[set[int]] = [set() for _ in lines]
    for same, run in groupby(range(len(lines)), key=lambda index: lines[index][0] == " "):
        places = [] if same else list(run)
        words = {index: _TOKEN.findall(lines[index][1]) for index in places}
        left = _MOST_PAIRS
        for i, j in _replaced(lines, words):
            left -= len(words[i]) * len(words[j])
            if left >= 0:
                marked[i], marked[j] = _differences(words[i], words[j])
    return marked


def _replaced(lines: Sequence[tuple[str, str]], words: dict[int, list[str]]) -> Iterator[tuple[int, int]]:
    """Pairs of lines that went and came in its place: in order, at least half of their words in common."""
    old, new = ([index for index in words if lines[index][0] == sign] for sign in "-+")
    if len(old) * len(new) > _MOST_LINES or sum(map(len, words.values())) > _MOST_TOKENS:
        return
    bags = {index: Counter(word for word in found if not word.isspace()) for index, found in words.items()}
    for i in old:
        for at, j in enumerate(new):
            if 4 * (bags[i] & bags[j]).total() >= bags[i].total() + bags[j].total():
                yield i, j
                new = new[at + 1 :]
                break


def _differences(old: list[str], new: list[str]) -> tuple[set[int], set[int]]:
    """The places of the characters of the words that are not in both."""
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    went, came = set(range(len("".join(old)))), set(range(len("".join(new))))
    for i, j, length in matcher.get_matching_blocks():
        for side, words, at in ((went, old, i), (came, new, j)):
            start = len("".join(words[:at]))
            side.difference_update(range(start, start + len("".join(words[at : at + length]))))
    return went, came
