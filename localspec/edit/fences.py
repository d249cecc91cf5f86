"""Fenced code blocks: where they begin and end among the lines of a text.

The rules are CommonMark's (section 4.5), and what models make of them: a fence with an info string inside
one of the same length opens a block of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

FENCE = re.compile(r" {0,3}(`{3,}|~{3,})([^`]*)$")


@dataclass(frozen=True, slots=True)
class Fenced:
    """Lines `first` to `end` (excluded) of an answer, between fences like `mark`."""

    first: int
    end: int
    mark: str
    closed: bool


def fences_of(lines: Sequence[str]) -> list[Fenced]:
    """The fenced pieces of an answer; where fences that open inside others leave one open, they do not."""
    nested = _scan(lines, nests=True)
    if nested and not nested[-1].closed:
        flat = _scan(lines, nests=False)
        return flat if flat[-1].closed else nested
    return nested


def _scan(lines: Sequence[str], nests: bool) -> list[Fenced]:
    """A fence ends at one of the same kind that is at least as long; with an info string it opens another."""
    found: list[Fenced] = []
    mark, first, depth = "", 0, 0
    for at, line in enumerate(lines):
        match = FENCE.match(line)
        if not match:
            continue
        run, info = match[1], match[2].strip()
        if not mark:
            mark, first, depth = run, at + 1, 1
        elif run[0] == mark[0] and len(run) >= len(mark) and (nests or not info):
            depth += 1 if info else -1
            if not depth:
                found.append(Fenced(first, at, mark, True))
                mark = ""
    if mark:
        end = len(lines) - (len(lines) > first and not lines[-1])
        found.append(Fenced(first, end, mark, False))
    return found


def longest_fence(lines: Sequence[str], kind: str) -> int:
    """The length of the longest fence made of `kind` (` or ~), 0 if there is none."""
    found = (FENCE.match(line) for line in lines)
    return max((len(match[1]) for match in found if match and match[1][0] == kind), default=0)
