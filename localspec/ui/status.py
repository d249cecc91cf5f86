"""The live line under a streaming answer, and the summary after it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable

from rich.cells import cell_len

from localspec.engine.stats import Stats
from localspec.ui.terminal import Terminal, sanitise

_INTERVAL = 0.05


class LiveLine:
    """A status line on the row below the text, redrawn after each piece of it.

    Uses relative cursor moves only, so that scrolling cannot displace it; for that it follows the column
    the text ends in. With stdout elsewhere it is the terminal's progress line.
    """

    def __init__(self, terminal: Terminal, clock: Callable[[], float] = time.perf_counter) -> None:
        self._terminal = terminal
        self._clock = clock
        self._column = 0
        self._shown = False
        self._last = -_INTERVAL
        self._below_text = terminal.live and terminal.out_tty

    def write(self, text: str) -> None:
        """Write a piece of the answer above the line."""
        if self._below_text:
            self.clear()
            text = self._track(sanitise(text))
        self._terminal.write(text)

    def update(self, status: str) -> None:
        """Show `status`; one that only changes the figures at most every 50 ms."""
        if not self._terminal.live or (self._shown and self._clock() - self._last < _INTERVAL):
            return
        self._last = self._clock()
        line = _fit(status, shutil.get_terminal_size().columns - 1)
        if self._below_text:
            self._terminal.say(f"\n\r{self._terminal.dim(line)}\x1b[K\x1b[1A\x1b[{self._column + 1}G")
        else:
            self._terminal.progress(line)
        self._shown = True

    def clear(self) -> None:
        if self._shown and self._below_text:
            self._terminal.say("\x1b[J")
        elif self._shown:
            self._terminal.progress("")
        self._shown = False

    def _track(self, text: str) -> str:
        """Follow the column; a line that just fills the row is ended at once, as the terminal is about to."""
        width = shutil.get_terminal_size().columns
        shown = []
        for char in text.expandtabs(4):
            cells = 0 if char == "\n" else cell_len(char)
            if char == "\n":
                self._column = 0
            elif self._column + cells > width:
                self._column = cells
            else:
                self._column += cells
            shown.append(char)
            if self._column >= width:
                shown.append("\n")
                self._column = 0
        return "".join(shown)


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


def _fit(text: str, width: int) -> str:
    return text if cell_len(text) <= width else text[: max(0, width - 1)] + "…"
