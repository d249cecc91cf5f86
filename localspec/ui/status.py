"""The live line under a streaming answer, and the summary after it."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.cells import cell_len

from localspec.engine.stats import Stats
from localspec.ui.terminal import Terminal, sanitise

_INTERVAL = 0.05
_ERASE = "\x1b[J"
_BELOW = "\x1bD\x1b[A\x1b7\r\x1b[B{}\x1b[K\x1b8"  # make room (IND, up), save, next row, restore


class LiveLine:
    """A status line on the row below the text, redrawn with each piece of it.

    The terminal itself remembers the column, so neither scrolling nor characters on whose width terminals
    disagree displace the line. With stdout elsewhere it is the terminal's progress line.
    """

    def __init__(self, terminal: Terminal, clock: Callable[[], float] = time.perf_counter) -> None:
        self._terminal = terminal
        self._clock = clock
        self._below_text = terminal.live and terminal.out_tty
        self._begun = False
        self._status = ""
        self._drawn = False
        self._last = 0.0
        self._width = terminal.columns
        self._line = ""  # what the line of text in which the cursor stands has so far
        self._column = 0
        self._held = ""  # a character, with its marks, that fills its row

    def write(self, text: str) -> None:
        """Write a piece of the answer above the line."""
        if not self._begun:  # what was shown while waiting for it is over
            self.clear()
            self._begun = True
        if self._below_text:
            self._draw(self._follow(sanitise(text)))
        else:
            self._terminal.write(text)

    def update(self, status: str) -> None:
        """Show `status`, at most every 50 ms a new one; none beside text that goes into a pipe."""
        if self._begun and self._terminal.out_pipe:
            return
        if self._status and self._clock() - self._last < _INTERVAL:
            return
        self._last, self._status = self._clock(), status
        if self._below_text:
            self._draw(self._follow(""))
        else:
            self._terminal.progress(status)

    def clear(self) -> None:
        """Take the line away; the cursor stands behind the text."""
        self._status = ""
        if self._below_text:
            self._draw(self._follow("", hold=False))
        else:
            self._terminal.progress("")

    def _draw(self, text: str) -> None:
        """Erase the line, write `text`, draw the line below it."""
        erase = _ERASE if self._drawn else ""
        self._drawn = bool(self._status) and self._column < self._width
        line = _BELOW.format(self._terminal.fit(self._status)) if self._drawn else ""
        self._terminal.write(text, erase, line)

    def _follow(self, text: str, *, hold: bool = True) -> str:
        """What to write now: `text`, but a last character that fills its row waits for the next one.

        Behind a full row terminals disagree on where the cursor is, so it cannot be restored to there.
        """
        if self._width != (width := self._terminal.columns):  # the terminal has laid out the line anew
            self._width, self._column = width, _advance(self._line, 0, width)
        text = self._held + text
        full = _advance(text, self._column, width) >= width
        cut = _last_character(text) if full and hold else len(text)
        text, self._held = text[:cut], text[cut:]
        self._column = _advance(text, self._column, width)
        self._line = (self._line + text).rpartition("\n")[2]
        return text


def _advance(text: str, column: int, width: int) -> int:
    """The column behind `text` when it starts in `column`; `width` is the one behind a full row."""
    for char in text:
        if char == "\n":
            column = 0
        elif char == "\t":
            column = max(column, min(column // 8 * 8 + 8, width - 1))
        elif cells := cell_len(char):
            column = column + cells if column + cells <= width else cells
    return column


def _last_character(text: str) -> int:
    """Where the last character that takes room begins; marks may follow it."""
    return next((i for i in reversed(range(len(text))) if cell_len(text[i])), 0)


def live_text(stats: Stats, source: str) -> str:
    """What the line says while an answer streams."""
    return (
        f"{source} · {stats.mean_accepted_length:.2f} tokens/pass · {stats.tokens_per_second:.1f} tokens/s"
        f" · {stats.tokens} tokens"
    )


def summary_text(stats: Stats, seed: int) -> str:
    """The line after an answer: what it cost, what guessing brought, and how to get it again."""
    passes = 100 * stats.passes / stats.tokens if stats.tokens else 0.0
    parts = [
        f"{stats.tokens} tokens",
        f"{stats.tokens_per_second:.1f} tokens/s",
        f"{stats.mean_accepted_length:.2f} tokens/pass",
        f"{passes:.0f} passes per 100 tokens",
    ]
    if stats.drafted:
        parts.append(f"{100 * stats.acceptance_rate:.0f} % of guesses accepted")
        shares = [
            f"{name} {tally.accepted}/{tally.drafted}"
            for name, tally in sorted(stats.sources.items())
            if tally.drafted
        ]
        parts.append(", ".join(shares))
    return " · ".join([*parts, f"seed {seed}"])
