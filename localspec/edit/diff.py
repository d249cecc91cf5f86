"""What an edit changes: hunks to show and choose from, and the same as a patch.

Works on lines with their original ends, so that a change of a line end is a change like any other and
applying all hunks gives the new text to the byte. Knows nothing of files, terminals or models.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from localspec.edit.lines import split
from localspec.edit.matching import Change, changes

Line = tuple[str, str]
"""What happens to a line (" " stays, "-" goes, "+" comes), and the line with its end."""


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


def _hunks(old: Sequence[str], new: Sequence[str], context: int) -> tuple[Hunk, ...]:
    groups: list[list[Change]] = []
    for change in changes(old, new):
        if groups and change[0] - groups[-1][-1][1] <= 2 * context:
            groups[-1].append(change)
        else:
            groups.append([change])
    return tuple(_hunk(old, new, group, context) for group in groups)


def _hunk(old: Sequence[str], new: Sequence[str], group: list[Change], context: int) -> Hunk:
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
