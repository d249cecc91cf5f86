"""Markdown as rows of terminal text, block by block, for text that is still growing.

What a block is depends on the text alone, never on the pieces in which it came: a block is finished when the
next begins, an item of a list is a block, and long code is cut every few lines. Nothing of the text is
hidden (HTML, link targets and definitions are shown), and nothing in it reaches the terminal but characters.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.cells import chop_cells
from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from localspec.ui.terminal import sanitise

CHUNK, CONTEXT = 8, 56
"""Lines of code that make a block, and lines before them that are read again for their colours."""
LONGEST = 16 * 1024
"""A longer block, or line of code, is shown as it is: parsing hostile ones takes long."""

_SHOWN = ["reference", "html_block", "html_inline", "image", "autolink"]  # would hide text if they were rules
_PARSER = MarkdownIt().enable(["table", "strikethrough"]).disable(_SHOWN)
_OUTLINE = MarkdownIt().enable("table").disable([*_SHOWN[:2], "inline", "text_join"])
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`\n]*(?:\n|$))|~{3,})[ \t]*([^\s`]*)")
_BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+")
_LISTS = ("bullet_list_open", "ordered_list_open")
_THEME = Theme(
    {
        "markdown.code": "bold cyan",
        "markdown.h1": "bold underline",
        **{f"markdown.h{level}": "bold" for level in range(2, 7)},
        "markdown.block_quote": "italic",
        "markdown.link_url": "underline",
    }
)


@dataclass(frozen=True, slots=True)
class Block:
    """Source text that is rendered at once. `gap`: a blank row parts it from what is before it.

    `shown`: lines of code, the first behind the opening fence, that are there only for the colours of the
    others: they were part of blocks before.
    """

    text: str
    gap: bool = True
    shown: int = 0


def split_blocks(text: str) -> tuple[list[str], str]:
    """The finished blocks of `text`, and the open one that may still grow: together they are `text`."""
    *finished, rest = (part for part, _ in _parts(text))
    return finished, rest


def cut(block: Block) -> list[Block]:
    """`block`, grown meanwhile, as blocks: all but the last are finished and will not change any more."""
    first, *others = _parts(block.text)
    blocks = [replace(block, text=first[0]), *(Block(text, gap) for text, gap in others)]
    return [chunk for whole in blocks for chunk in _chunks(whole)]


def render(block: Block, width: int, *, color: bool) -> list[str]:
    """The rows of `block` without its gap, each at most `width` cells and whole in itself, with SGR codes."""
    width = max(2, width)
    if not block.text.strip():
        return []
    fence = _FENCE.match(block.text)
    if len(block.text) > LONGEST and not fence:
        return _rows(Text(block.text.rstrip("\n")), width, color)
    try:
        if fence:
            return _rows(_Fenced.of(block, fence), width, color)
        return _stripped(_rows(_Prose(block.text), width, color))
    except Exception:  # whatever a renderer stumbles over, the text itself is what must not be lost
        return _rows(Text(block.text.rstrip("\n")), width, color)


def _parts(text: str) -> list[tuple[str, bool]]:
    """`text` in blocks, and whether a gap parts each from the one before it.

    Only whole lines are judged; the last one, if it does not end, belongs to the last block.
    """
    lines = text.split("\n")
    starts = list(_starts("\n".join(lines[:-1]) + "\n", lines)) or [(0, True)]
    starts[0] = (0, starts[0][1])
    ends = [line for line, _ in starts[1:]]
    parts = [("".join(f"{x}\n" for x in lines[a:b]), gap) for (a, gap), b in zip(starts, ends, strict=False)]
    return [*parts, ("\n".join(lines[starts[-1][0] :]), starts[-1][1])]


def _starts(whole: str, lines: list[str]) -> Iterator[tuple[int, bool]]:
    """The lines in which blocks begin; items of a list are parted as they are in the source."""
    first = False
    for token in _OUTLINE.parse(whole):
        if token.level == 0 and token.type in _LISTS:
            first = True
        elif token.level == 1 and token.type == "list_item_open" and token.map:
            yield token.map[0], first or not lines[token.map[0] - 1].strip()
            first = False
        elif token.level == 0 and token.nesting >= 0 and token.map:
            yield token.map[0], True


def _chunks(block: Block) -> Iterator[Block]:
    """Code in pieces of CHUNK lines, each with what its colours depend on; anything else as it is."""
    block = replace(block, text=_BLANK_LINES.sub("", block.text))
    fence = _FENCE.match(block.text)
    if not fence:
        yield block
        return
    opening, *lines = block.text.splitlines(keepends=True)
    whole = _body(fence[1], lines)
    shown, gap = block.shown, block.gap
    while whole >= shown + CHUNK:
        yield Block("".join([opening, *lines[: shown + CHUNK]]), gap, shown)
        drop = max(0, shown + CHUNK - CONTEXT)
        lines, whole = lines[drop:], whole - drop
        shown, gap = shown + CHUNK - drop, False
    yield Block("".join([opening, *lines]), gap, shown)


def _body(fence: str, lines: list[str]) -> int:
    """How many of the `lines` behind an opening fence are whole lines of code."""
    closing = _closing(fence)
    for i, line in enumerate(lines):
        if not line.endswith("\n") or closing.fullmatch(line.rstrip("\n")):
            return i
    return len(lines)


def _closing(fence: str) -> re.Pattern[str]:
    return re.compile(rf" {{0,3}}{re.escape(fence[0])}{{{len(fence)},}}[ \t]*")


@dataclass(frozen=True, slots=True)
class _Fenced:
    """Code between fences, which are shown, dim: without colours nothing else would tell it from prose."""

    opening: str
    language: str
    code: list[str]
    shown: int
    closing: str

    @staticmethod
    def of(block: Block, fence: re.Match[str]) -> _Fenced:
        opening, *lines = block.text.removesuffix("\n").split("\n")
        closing = _closing(fence[1])
        end = next((i for i, line in enumerate(lines) if closing.fullmatch(line)), len(lines))
        return _Fenced(
            "" if block.shown else opening.strip(),
            fence[2],
            lines[:end],
            block.shown,
            lines[end].strip() if end < len(lines) else "",
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.opening:
            yield Text(self.opening, style="dim")
        for line in _highlighted(self.code, self.language)[self.shown :]:
            yield from _folded(line, options.max_width)
        if self.closing:
            yield Text(self.closing, style="dim")


def _highlighted(lines: list[str], language: str) -> list[Text]:
    lines = [line.expandtabs(4) for line in lines]
    code = "\n".join(lines)
    if language and len(code) <= LONGEST:
        colored = Syntax("", language, theme="ansi_dark").highlight(code).split("\n", allow_blank=True)
        if [line.plain for line in colored[: len(lines)]] == lines:
            return list(colored[: len(lines)])
    return [Text(line) for line in lines]


def _folded(line: Text, width: int) -> Iterator[Text]:
    """`line` in rows of at most `width` cells; unlike prose, code keeps every blank where it is broken."""
    offsets, end = [], 0
    for part in chop_cells(line.plain, width)[:-1]:
        end += len(part)
        offsets.append(end)
    for row in line.divide(offsets):
        row.no_wrap, row.overflow = True, "ignore"
        yield row


class _Heading(Heading):
    """On the left and without a frame."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Code(MarkdownElement):
    """Code inside a list or a quote, or code that is only indented."""

    new_line = True

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> _Code:  # noqa: ARG003 -- rich calls it
        return cls(token)

    def __init__(self, token: Token) -> None:
        self._token = token

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        token = self._token
        lines, fence = token.content.removesuffix("\n").split("\n"), token.markup
        if not fence:
            lines = [f"    {line}" for line in lines]
        words = token.info.split()
        yield _Fenced(f"{fence}{token.info}", words[0] if words else "", lines, 0, fence)


class _Prose(Markdown):
    """rich's Markdown with our parser and elements."""

    elements = {**Markdown.elements, "heading_open": _Heading, "fence": _Code, "code_block": _Code}  # noqa: RUF012

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False)
        self.parsed = _PARSER.parse(text)


@lru_cache(maxsize=4)
def _console(width: int) -> Console:
    return Console(
        file=io.StringIO(), width=width, force_terminal=True, color_system="standard", theme=_THEME,
        markup=False, emoji=False, highlight=False, legacy_windows=False, _environ={},
    )  # fmt: skip


def _rows(found: RenderableType, width: int, color: bool) -> list[str]:
    console = _console(width)
    lines = console.render_lines(found, console.options, pad=False)
    return [_row(line, color) for line in lines]


def _stripped(rows: list[str]) -> list[str]:
    """Without the empty rows that rich puts around some elements."""
    full = [i for i, row in enumerate(rows) if row]
    return rows[full[0] : full[-1] + 1] if full else []


def _row(segments: list[Segment], color: bool) -> str:
    """The segments with their styles, without blanks at the end; sanitised, since entities were decoded."""
    pieces = [(sanitise(segment.text).replace("\n", ""), segment.style) for segment in segments]
    while pieces and not pieces[-1][0].strip(" "):
        pieces.pop()
    if pieces:
        pieces[-1] = (pieces[-1][0].rstrip(" "), pieces[-1][1])
    return "".join(
        (style if color else style.without_color).render(text, color_system=ColorSystem.STANDARD)
        if style
        else text
        for text, style in pieces
    )
