"""What Tab can complete before the cursor: commands, paths and model names.

Pure: what a folder contains and which models there are comes from functions that are passed in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from localspec.chat.commands import COMMANDS

MOST = 200
"""No list of completions is longer."""
MOST_NAMES = 10_000
"""Names of a folder that are looked at."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """`text` to put in place of the last `replaces` characters before the cursor; a list shows `shown`."""

    text: str
    replaces: int
    shown: str


Listing = Callable[[str], Iterable[tuple[str, bool]]]
"""Folder -> (name, whether it is a folder); "" is the working folder, and OSError means nothing to offer."""

_PATH_COMMANDS = "|".join(entry.name for entry in COMMANDS if "FILE" in entry.argument)
_COMMAND = re.compile(r"\s*/(\w*)$")
_MODEL = re.compile(r"\s*/(?:model|draft)\s+(\S*)$")
_FILE = re.compile(rf'\s*/(?:{_PATH_COMMANDS})\s+("[^"\n]*|[^\s"]*)$')
_MENTION = re.compile(r'(?:^|\s)@("[^"\n]*|[^\s"]*)$')


def complete(before: str, models: Callable[[], Iterable[str]], listing: Listing) -> list[Candidate]:
    """The candidates for what stands `before` the cursor, in order, at most MOST."""
    if found := _COMMAND.match(before):
        return _commands(found[1])
    if found := _MODEL.match(before):
        return _models(found[1], models())
    if found := _FILE.match(before) or _MENTION.search(before):
        return list(islice(_paths(found[1], listing), MOST))
    return []


def _commands(typed: str) -> list[Candidate]:
    return [
        Candidate(f"{entry.name} " if entry.argument else entry.name, len(typed), f"/{entry.name}")
        for entry in COMMANDS
        if entry.name.startswith(typed.lower())
    ]


def _models(typed: str, models: Iterable[str]) -> list[Candidate]:
    fits = (name for name in models if name.lower().startswith(typed.lower()) and name.isprintable())
    return [Candidate(name, len(typed), name) for name in islice(fits, MOST)]


def _paths(typed: str, listing: Listing) -> Iterator[Candidate]:
    """Files and folders that begin as `typed` does; quoted when it is, or when blanks make it necessary.

    Names that could not be typed or shown as they are (controls, quotes) are not offered, and hidden ones
    only when asked for by their dot.
    """
    folder, _, start = typed.removeprefix('"').rpartition("/")
    folder = folder + "/" if "/" in typed else ""
    try:
        names = sorted(islice(listing(folder), MOST_NAMES))
    except OSError:
        return
    for name, is_folder in names:
        if not name.startswith(start) or (name.startswith(".") and not start.startswith(".")):
            continue
        if not name.isprintable() or '"' in name:
            continue
        path, end = folder + name, "/" if is_folder else ""
        if typed.startswith('"') or " " in path:
            path, end = f'"{path}', end or '"'
        yield Candidate(path + end, len(typed), name + ("/" if is_folder else ""))


def list_folder(folder: str) -> Iterator[tuple[str, bool]]:
    """The `Listing` of this machine's files; `~` is the user's home. Raises OSError."""
    with os.scandir(os.path.expanduser(folder) or ".") as entries:
        for entry in entries:
            yield entry.name, entry.is_dir()
