"""Which lines of a file are asked for, in how many answers, and in which form.

Pure: what a context holds and a model can write comes in as a `Room`. Texts have \\n line ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

from localspec.edit.files import TextFile
from localspec.edit.lines import lf, split
from localspec.edit.regions import Region, lines_region, regions
from localspec.edit.reply import has_markers
from localspec.edit.request import SMALL_MODEL, Format, Request, Source, choose_format
from localspec.errors import UsageError

_SPARE = 64
"""Tokens for fences and what else is around a text."""
_LEAST = 64
"""Tokens of a part below which a file is not cut up."""


@dataclass(frozen=True, slots=True)
class Task:
    """A file and what is asked of it. `lines`: only those may change ("40-90"); `format`: None, any.

    `context`: what the model may read as well.
    """

    file: TextFile
    instruction: str
    lines: str | None = None
    context: tuple[Source, ...] = ()
    format: Format | None = None

    @property
    def text(self) -> str:
        """The file's text as the model sees it."""
        return lf(self.file.text)

    @property
    def region(self) -> Region:
        """The lines that may change. Raises UsageError if there are no such lines."""
        if self.lines is not None:
            return lines_region(self.text, self.lines)
        return Region(1, len(split(self.text)), self.text)


@dataclass(frozen=True, slots=True)
class Part:
    """Lines for which one answer is asked, in this form."""

    region: Region
    format: Format


@dataclass(frozen=True, slots=True)
class Room:
    """A model's context in tokens, its parameters, and the tokens of a text and of a request's prompt."""

    n_ctx: int
    n_parameters: int
    count: Callable[[str], int]
    prompt: Callable[[Request], int]


def request_for(task: Task, part: Part) -> Request:
    """What is asked for one part, with the lines around it: all there are, or those a cut left room for."""
    region, lines = part.region, split(task.text)
    lead, tail = "".join(lines[: region.first - 1]), "".join(lines[region.last :])
    if task.lines is None:  # empty lines in the place of others: the numbers must be right
        lead = "\n" * (region.first - 1 - len(split(region.head))) + region.head
        tail = region.tail
    return Request(task.instruction, task.file.name, region.text, part.format, task.context, lead, tail)


def parts_of(task: Task, room: Room) -> tuple[tuple[Part, ...], str]:
    """The parts of a task, in order, and why they are these, for the user.

    A file that does not fit the context is cut up, unless a large model can write search/replace blocks for
    all of it. Raises UsageError, with the number of tokens, where neither can be.
    """
    region = task.region
    tokens = room.count(region.text)
    other = room.prompt(request_for(task, Part(region, "whole"))) - tokens
    try:
        choice = choose_format(
            tokens,
            room.n_ctx,
            room.n_parameters,
            tokens_other=max(0, other),
            marked=has_markers(region.text),
            wanted=task.format,
        )
    except UsageError:
        if task.lines is not None or task.format == "blocks":
            raise
        return _cut_up(task, room, tokens)
    part = Part(region, choice.format)
    why = f"asking for {'the complete text' if choice.format == 'whole' else 'blocks'}: {choice.why}"
    by_need = choice.format == "blocks" and task.format is None and room.n_parameters < SMALL_MODEL
    if by_need and task.lines is None:
        try:
            return _cut_up(task, room, tokens)
        except UsageError:
            pass  # blocks are better than nothing
    return (part,), why


def _cut_up(task: Task, room: Room, tokens: int) -> tuple[tuple[Part, ...], str]:
    """The file in parts that fit the context with their answers."""
    empty = room.prompt(request_for(task, Part(Region(1, 0, ""), "whole")))
    limit = (room.n_ctx - min(empty, room.n_ctx) - _SPARE) * 4 // 9
    suffix = PurePath(task.file.name).suffix.lower()
    while limit >= _LEAST:
        parts = tuple(Part(region, "whole") for region in regions(task.text, suffix, limit, room.count))
        if all(_fits(task, part, room) for part in parts):
            why = (
                f"asking for {len(parts)} parts: {tokens} tokens do not fit the context of {room.n_ctx} twice"
            )
            return parts, why
        limit = limit * 3 // 4
    raise UsageError(
        f"{task.file.name} has {tokens} tokens, and the context of {room.n_ctx} has no room for parts of it",
        "give a larger --ctx, or --lines for a part of the file",
    )


def _fits(task: Task, part: Part, room: Room) -> bool:
    tokens = room.count(part.region.text)
    return room.prompt(request_for(task, part)) + tokens + tokens // 8 + _SPARE <= room.n_ctx
