"""An answer in Markdown, rendered while it streams, with a status line below it.

Takes LiveLine's place where a terminal shows the answer and its cursor can be moved. Finished blocks are
written once and never touched again; the rows of the open one are drawn over, so that redrawing costs what
that block costs, and happens no more often than that is worth. Knows nothing of models.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

from rich.cells import chop_cells

from localspec.ui.markdown import Block, cut, render
from localspec.ui.terminal import Terminal, sanitise, words_begun

INTERVAL = 0.05
"""Seconds that a status stays at least."""
SHARE = 10
"""Drawing is paused for this many times the time it took ..."""
CREDIT = 0.25
"""... but for this many seconds of pauses, which may be owed: a pass that gives several pieces shows all."""

_NO_WRAP = "\x1b[?7l", "\x1b[?7h"  # a row stays a row where terminals disagree about the width of characters


def can_render(terminal: Terminal) -> bool:
    """Whether a MarkdownStream may be used: a screen shows the answer, and neither dumb nor with a log."""
    return terminal.out_tty and terminal.err_live and terminal.verbosity < 2


class MarkdownStream:
    """Where `can_render`. The cursor waits at the beginning of the row below the text, on the status line.

    `unfolded`: show what the model thinks, dim, instead of how much. With a window made narrower while a
    block is open, rows of it that the terminal folded may stay; finished ones never suffer.
    """

    def __init__(
        self,
        terminal: Terminal,
        clock: Callable[[], float] = time.perf_counter,
        *,
        unfolded: bool = False,
    ) -> None:
        self._terminal = terminal
        self._clock = clock
        self._unfolded = unfolded
        self._open = Block("", gap=False)
        self._thought = ""  # an unfinished line of it
        self._words: int | None = None  # of what is being thought, None when nothing is
        self._done: list[str] = []  # rows to write for good
        self._drawn: list[str] = []  # rows on the screen that may be drawn over
        self._status = self._status_drawn = ""
        self._due = self._stays = clock()

    def write(self, text: str, *, underlined: bool = False) -> None:
        """A piece of the answer. Guesses cannot be `underlined` in rendered text: that is LiveLine's."""
        self._end_thinking()
        self._open = replace(self._open, text=self._open.text + sanitise(text))
        self._draw_when_due()

    def think(self, text: str) -> None:
        """A piece of what the model thinks before it answers: folded to one line, or dim."""
        if self._words is None:
            self._finish_blocks()
            self._words, self._thought = 0, ""
        before, text = self._thought, sanitise(text)
        self._words += words_begun(before, text)
        self._thought = before + text if self._unfolded else text[-1:] or before
        self._draw_when_due()

    def update(self, status: str) -> None:
        """Show `status` on the line below the text, unless quiet."""
        now = self._clock()
        if self._terminal.verbosity >= 0 and (not self._status or now >= self._stays):
            self._status, self._stays = status, now + INTERVAL
        self._draw_when_due()

    def clear(self) -> None:
        """Show all that was written, for good, and take the status away: the cursor stands below the text.

        What is written after this begins anew.
        """
        self._status = ""
        self._end_thinking()
        self._finish_blocks()
        self._draw()

    def _draw_when_due(self) -> None:
        if (began := self._clock()) >= self._due:
            self._draw()
            now = self._clock()
            self._due = max(self._due, now - CREDIT) + SHARE * (now - began)

    def _draw(self) -> None:
        columns, lines = self._size()
        *finished, self._open = cut(self._open)
        for block in finished:
            self._settle(block, columns)
        rows = self._thinking_rows(columns) if self._words is not None else self._rows(self._open, columns)
        self._paint(rows[-max(1, lines - 1) :])

    def _settle(self, block: Block, columns: int) -> None:
        self._done += self._rows(block, columns)

    def _rows(self, block: Block, columns: int) -> list[str]:
        rows = render(block, columns, color=self._terminal.err_color)
        return ["", *rows] if rows and block.gap else rows

    def _finish_blocks(self) -> None:
        columns, _ = self._size()
        blocks = cut(self._open)
        for block in blocks:
            self._settle(block, columns)
        self._open = Block("", gap=bool(self._open.gap or self._open.text.strip()))

    def _thinking_rows(self, columns: int) -> list[str]:
        if not self._unfolded:
            return [self._terminal.fit(f"thinking… {self._words} words")]
        *lines, self._thought = self._thought.split("\n")
        self._done += [row for line in lines for row in self._dim(line, columns)]
        return self._dim(self._thought, columns) if self._thought else []

    def _dim(self, line: str, columns: int) -> list[str]:
        return [self._terminal.dim(row) for row in chop_cells(line.expandtabs(4), columns)] or [""]

    def _end_thinking(self) -> None:
        if self._words is None:
            return
        if not self._unfolded:
            self._done.append(self._terminal.fit(f"thought {self._words} words"))
        elif self._thought:
            self._done += self._dim(self._thought, self._size()[0])
        self._words = None
        self._open = replace(self._open, gap=True)

    def _paint(self, rows: list[str]) -> None:
        """Write what is done for good, then `rows` and the status, in place of what is drawn."""
        if not self._done and rows == self._drawn and self._status == self._status_drawn:
            return
        same = 0 if self._done else _common(rows, self._drawn)
        up = len(self._drawn) - same
        text = (f"\x1b[{up}A" if up else "") + "\r\x1b[J"
        text += "".join(f"{row}\n" for row in self._done)
        text += "".join(f"{row}\n" for row in rows[same:]).join(_NO_WRAP if rows[same:] else ("", ""))
        text += self._terminal.fit(self._status) + "\r" if self._status else ""
        self._terminal.write("", before=text)
        self._done, self._drawn, self._status_drawn = [], rows, self._status

    def _size(self) -> tuple[int, int]:
        try:
            columns, lines = os.get_terminal_size(self._terminal.out.fileno())
        except (OSError, ValueError):
            return 80, 24
        return columns or 80, lines or 24


def _common(a: list[str], b: list[str]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
