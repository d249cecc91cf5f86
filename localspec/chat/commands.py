"""What a message typed at the prompt is: text for the model, or one of the commands in the table.

Knows how lines are spelt: commands, `//`, blocks in triple quotes, paths. Knows nothing of a terminal, of
files or of what a command does.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from localspec.errors import UsageError

BLOCK = '"""'
"""Begins and ends a message of several lines."""
PATH = r'"[^"\n]*"|[^\s"]\S*'
"""A path as it is typed: one word, or anything in double quotes."""


@dataclass(frozen=True, slots=True)
class Command:
    """`name` as in the table, without its slash; `argument` what follows it, stripped."""

    name: str
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One command. `argument` is what its help shows: "" takes none, in brackets it may be left out."""

    name: str
    argument: str
    help: str
    aliases: tuple[str, ...] = ()


COMMANDS = (
    Entry("help", "", "show this list", ("?",)),
    Entry("clear", "", "forget the conversation, keep the system message"),
    Entry("undo", "", "take back the last question and its answer"),
    Entry("retry", "", "answer the last question again"),
    Entry("system", "[TEXT]", "show or replace the system message"),
    Entry("file", "FILE [QUESTION]", "give the model a file to read"),
    Entry("edit", "FILE", "put the last answer's code into a file; asks first"),
    Entry("model", "[NAME]", "show or change the model"),
    Entry("draft", "[NAME]", "show or change who guesses: auto, none or a model"),
    Entry("stats", "", "show what guessing brought in this session"),
    Entry("compact", "", "shorten the conversation to its summary"),
    Entry("save", "[FILE]", "write the conversation to a file"),
    Entry("sessions", "[NAME]", "list earlier conversations or take one up"),
    Entry("think", "[on|off]", "show or fold what the model thinks before it answers"),
    Entry("exit", "", "leave; Ctrl-D does too", ("quit", "bye")),
)

_NAMES = {name: entry for entry in COMMANDS for name in (entry.name, *entry.aliases)}
_COMMAND = re.compile(r"/(\w+|\?)(?:\s+|$)")


def parse(text: str) -> str | Command:
    """A command, or the message to send, stripped: "" when there is nothing to send.

    A path such as /etc/hosts is a message, `//x` sends "/x", and nothing in triple quotes is a command.
    Raises UsageError for a command there is not, or with an argument too many or too few.
    """
    text = text.strip()
    if text.startswith(BLOCK):
        inner = text.removeprefix(BLOCK)
        return inner.removesuffix(BLOCK).strip("\n")
    if text.startswith("//"):
        return text[1:]
    found = _COMMAND.match(text)
    if not found:
        return text
    entry = _NAMES.get(found[1].lower())
    if entry is None:
        raise _unknown(found[1])
    argument = text[found.end() :]
    if argument and not entry.argument:
        raise UsageError(f"/{entry.name} takes no argument", "// sends a leading slash")
    if not argument and entry.argument and not entry.argument.startswith("["):
        raise UsageError(f"/{entry.name} needs more", f"type /{entry.name} {entry.argument}")
    return Command(entry.name, argument)


def is_open(text: str) -> bool:
    """Whether `text` begins a block in triple quotes that is not ended yet."""
    text = text.strip()
    return text.startswith(BLOCK) and (len(text) < 2 * len(BLOCK) or not text.endswith(BLOCK))


def split_path(argument: str) -> tuple[str, str]:
    """The path with which `argument` begins, without its quotes, and the rest; ("", ...) if there is none."""
    found = re.match(PATH, argument)
    return (found[0].strip('"'), argument[found.end() :].strip()) if found else ("", argument)


def help_text() -> str:
    """The table, one command a line, and how several lines are typed."""
    heads = [" ".join(filter(None, (f"/{entry.name}", entry.argument))) for entry in COMMANDS]
    width = max(map(len, heads))
    lines = [f"{head:{width}}  {_help(entry)}" for head, entry in zip(heads, COMMANDS, strict=True)]
    ways = (
        "Alt-Enter or a backslash at the end begins a new line,",
        f"{BLOCK} a block up to the next {BLOCK}; // sends a leading slash, @FILE names a file to read.",
    )
    return "\n".join([*lines, "", *ways]) + "\n"


def _help(entry: Entry) -> str:
    also = ", ".join(f"/{alias}" for alias in entry.aliases)
    return f"{entry.help} (also {also})" if also else entry.help


def _unknown(name: str) -> UsageError:
    near = difflib.get_close_matches(name.lower(), _NAMES, n=1)
    guess = f"did you mean /{near[0]}? " if near else "/help lists them; "
    return UsageError(f"unknown command /{name}", f"{guess}// sends a leading slash")
