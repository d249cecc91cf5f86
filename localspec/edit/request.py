"""What the model is asked: the instruction, the text to change, and the form of the answer.

Knows how much a context holds and what models of some size can write, not how they are run. File names and
contents are hostile: a name stays on its line, a text stays inside its fence. Texts have \\n line ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from localspec.chat.prompt import Message, quote
from localspec.errors import UsageError

Format = Literal["whole", "blocks"]

SMALL_MODEL = 7_000_000_000  # parameters
SMALL_FILE = 2_000  # tokens; copied ones are guessed nearly all, so this costs about what 400 new ones do
LEAST_REPLY = 512  # tokens: a few blocks
NEIGHBOURS = 30  # lines shown on either side of a part

_WHOLE = (
    "Answer with the complete new {what} in one code block, from first line to last, and nothing else. "
    "Copy every line that does not change. Leave nothing out, add no line numbers, explain nothing."
)
_LONG_FENCE = " The text contains code blocks itself: begin and end yours with a line of {count} backticks."
_BLOCKS = """\
Answer with one or more blocks of this form and nothing else:
<<<<<<< SEARCH
the lines to replace
=======
the new lines
>>>>>>> REPLACE
Copy the SEARCH lines exactly from the {what}, with their indentation: few lines, \
but enough to be found only once."""

_END = r"(?:end[- ]of[- ]file|end of (?:the )?file|eof|the end)"
_FINAL = re.compile(
    rf"(?:final|trailing|ending|last) (?:newline|new line|line ?break|eol)|newline (?:character )?at {_END}",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"[,.;:\n]|\b(?:and|then|but)\b", re.IGNORECASE)
_AWAY = re.compile(r"\b(?:remove|delete|drop|strip|without|no|trim|cut)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Source:
    """A text the model may read but not change."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Request:
    """`text`: what is to be changed, a whole file or the part of it between `lead` and `tail`."""

    instruction: str
    name: str
    text: str
    format: Format
    context: tuple[Source, ...] = ()
    lead: str = ""
    tail: str = ""


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """The form of the answer, and why, in words for the user."""

    format: Format
    why: str


def split(text: str, first: int, last: int) -> tuple[str, str, str]:
    """The text before, in and after lines `first` to `last`, counted from 1, both included.

    Raises UsageError where there are no such lines. A `last` past the end means the end.
    """
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    if not 1 <= first <= last or first > max(len(lines), 1):
        raise UsageError(f"there are no lines {first}-{last}: the file has {len(lines)}")
    return "".join(lines[: first - 1]), "".join(lines[first - 1 : last]), "".join(lines[last:])


def choose_format(
    tokens_file: int,
    n_ctx: int,
    n_parameters: int,
    *,
    tokens_other: int = 500,
    marked: bool = False,
    wanted: Format | None = None,
) -> FormatChoice:
    """In which form to ask for the change of a text (file or part) of `tokens_file` tokens.

    `tokens_other`: what else the prompt holds. `marked`: the text has lines like the blocks' own markers.
    Raises UsageError if the context is too small for any form, or for the `wanted` one.

    In aider's code editing leaderboard models of 0.5B to 14B answered in the whole form, nearly always
    correctly formed, while 32B to 70B ones broke 5 to 16 % of their search/replace answers. What the whole
    form costs is time, and most of its tokens are copied: speculation makes those nearly free.
    """
    fits: dict[Format, bool] = {
        "whole": 2 * tokens_file + tokens_file // 8 + tokens_other + 64 <= n_ctx,
        "blocks": tokens_file + tokens_other + LEAST_REPLY <= n_ctx and not marked,
    }
    if not any(fits.values()) or (wanted and not fits[wanted]):
        raise _too_small(tokens_file + tokens_other, n_ctx, marked and wanted == "blocks")
    if wanted:
        return FormatChoice(wanted, "as asked")
    if not fits["whole"]:
        return FormatChoice("blocks", f"the file twice does not fit the context of {n_ctx} tokens")
    if n_parameters < SMALL_MODEL:
        size = f"{max(n_parameters, 0) / 1e9:.1f}B"
        return FormatChoice("whole", f"models as small as this one ({size}) often get search/replace wrong")
    if tokens_file <= SMALL_FILE:
        return FormatChoice("whole", f"the file is short ({tokens_file} tokens)")
    if not fits["blocks"]:
        return FormatChoice("whole", "the file contains search/replace markers itself")
    return FormatChoice("blocks", f"the file is long ({tokens_file} tokens)")


def final_newline(instruction: str) -> bool | None:
    """Whether the instruction wants a newline at the file's end, which no answer can show; None: no word."""
    asked = _FINAL.search(instruction)
    if not asked:
        return None
    return not _AWAY.search(_CLAUSE.split(instruction[: asked.start()])[-1])


def messages(request: Request) -> list[Message]:
    """The conversation that asks for the change: one user message, the format last."""
    name, part = one_line(request.name), bool(request.lead or request.tail)
    shown = [quote(source.text, f"For reference only, {one_line(source.name)}") for source in request.context]
    if request.lead:
        shown.append(quote(_last_lines(request.lead), "The lines before, for reference only"))
    if request.tail:
        shown.append(quote(_first_lines(request.tail), "The lines after, for reference only"))
    shown.append(quote(request.text, f"{_lines_of(request)} of {name}" if part else f"File {name}"))
    task = (
        f"Change {'only these lines' if part else 'this file'} as follows:\n{request.instruction.strip()}\n"
    )
    return [Message("user", "\n".join((*shown, task, _form(request, "lines" if part else "file"))))]


def correction(reason: str) -> Message:
    """What is said to the model about an answer that cannot be used: `reason` is a BadReply's."""
    return Message("user", f"{reason}\n\nAnswer again, completely and in the form asked for.")


def unchanged_reply(text: str) -> str:
    """What a whole answer that changes nothing of `text` would be."""
    return quote(text, "").partition("\n")[2].removesuffix("\n")


def one_line(name: str) -> str:
    """A file's name as the model sees it: one printable line of at most 200 characters."""
    return "".join(char if char.isprintable() else "?" for char in name[-200:])


def _form(request: Request, what: str) -> str:
    if request.format == "blocks":
        return _BLOCKS.format(what=what)
    longest = max((len(run) for run in re.findall("`+", request.text)), default=0)
    return _WHOLE.format(what=what) + (_LONG_FENCE.format(count=longest + 1) if longest >= 3 else "")


def _lines_of(request: Request) -> str:
    first = request.lead.count("\n") + 1
    last = first + max(len(request.text.removesuffix("\n").split("\n")), 1) - 1
    return f"Lines {first}-{last}"


def _last_lines(text: str) -> str:
    return "\n".join(text.removesuffix("\n").split("\n")[-NEIGHBOURS:])


def _first_lines(text: str) -> str:
    return "\n".join(text.split("\n", NEIGHBOURS)[:NEIGHBOURS])


def _too_small(tokens: int, n_ctx: int, marked: bool) -> UsageError:
    if marked:
        return UsageError("the file contains search/replace markers itself", "use `--format whole`")
    return UsageError(
        f"the file and its change do not fit: {tokens} tokens to read, and the context holds {n_ctx}",
        "try a larger `--ctx`, or a part of the file with `--lines`",
    )
