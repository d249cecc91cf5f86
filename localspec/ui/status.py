"""The live line under a streaming answer, the summary after it, and the report that /stats asks for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from rich.cells import cell_len

from localspec.engine.ledger import HOARD, Ledger
from localspec.engine.stats import WINDOW, Stats
from localspec.ui import plots
from localspec.ui.terminal import Terminal, sanitise, words_begun

LOSES, PAYS = 0.95, 1.05
"""Gain over plain decoding up to which guessing lost, and, reading the prompt included, from which on it
paid."""
HOT, FEW = 1.2, 0.4
"""Temperature from which on it is to blame when a smaller share of the guesses than FEW is right."""
BUSY, RESTLESS = 1.5, 0.25
"""A plain pass this many times dearer than when it was measured, or varying by this share, is disturbed."""
LONG = 1024
"""Tokens in the cache from which on reading them slows a pass as well."""
SHORT, SHORT_FOR_DRAFT = 16, 256
"""Tokens of an answer below which nothing is to be explained, or a draft model need not have been started."""

_INTERVAL = 0.05
_ERASE = "\x1b[J"
_Style = tuple[str, str]
_NORMAL, _UNDERLINED, _DIM = ("", ""), ("\x1b[4m", "\x1b[24m"), ("\x1b[2m", "\x1b[22m")
_BELOW = "\x1bD\x1b[A\x1b7\r\x1b[B{}\x1b[K\x1b8"  # make room (IND, up), save, next row, restore


class LiveLine:
    """A status line on the row below the text, redrawn with each piece of it.

    The terminal itself remembers the column, so neither scrolling nor characters on whose width terminals
    disagree displace the line. With stdout elsewhere it is the terminal's progress line. `unfolded`: what
    the model thinks is shown, dim, instead of how much; on stderr where stdout is no terminal.
    """

    def __init__(
        self, terminal: Terminal, clock: Callable[[], float] = time.perf_counter, *, unfolded: bool = False
    ) -> None:
        self._terminal = terminal
        self._clock = clock
        self._unfolded = unfolded
        self._words: int | None = None  # of what is being thought, None when nothing is
        self._thought = ""  # its last character
        self._below_text = terminal.live and terminal.out_tty
        self._begun = False
        self._status = ""
        self._drawn = False
        self._last = 0.0
        self._width = terminal.columns
        self._line = ""  # what the line of text in which the cursor stands has so far
        self._column = 0
        self._held = ""  # a character, with its marks, that fills its row
        self._held_style = _NORMAL

    def write(self, text: str, *, underlined: bool = False) -> None:
        """Write a piece of the answer above the line; it is `underlined` on a terminal only."""
        if self._words is not None:
            self._end_thinking()
        if not self._begun:  # what was shown while waiting for it is over
            self.clear()
            self._begun = True
        if self._below_text:
            self._draw(sanitise(text), _UNDERLINED if underlined else _NORMAL)
        elif underlined and self._terminal.out_tty:
            self._terminal.write(text, *_UNDERLINED)
        else:
            self._terminal.write(text)

    def think(self, text: str) -> None:
        """A piece of what the model thinks before it answers: never into a file or pipe with the answer."""
        self._words = (self._words or 0) + words_begun(self._thought, text)
        self._thought = text[-1:] or self._thought
        if not self._unfolded:
            self.update(f"thinking… {self._words} words")
        else:
            self._tell(text)

    def _end_thinking(self) -> None:
        if self._unfolded:
            self._tell("\n\n")
        self._words, self._thought = None, ""

    def _tell(self, thought: str) -> None:
        terminal = self._terminal
        if terminal.verbosity < 0:
            return
        if self._below_text:
            self._draw(sanitise(thought), _DIM if terminal.err_color else _NORMAL)
        else:
            terminal.progress("")
            terminal.say(terminal.dim(sanitise(thought) if terminal.err_tty else thought))

    def update(self, status: str) -> None:
        """Show `status`, at most every 50 ms a new one; none beside text that goes into a pipe."""
        if self._begun and self._terminal.out_pipe:
            return
        if self._status and self._clock() - self._last < _INTERVAL:
            return
        self._last, self._status = self._clock(), status
        if self._below_text:
            self._draw("")
        else:
            self._terminal.progress(status)

    def clear(self) -> None:
        """Take the line away; the cursor stands behind the text."""
        if self._words is not None:
            self._end_thinking()
        self._status = ""
        if self._below_text:
            self._draw("", hold=False)
        else:
            self._terminal.progress("")

    def _draw(self, text: str, style: _Style = _NORMAL, *, hold: bool = True) -> None:
        """Erase the line, write `text` behind what was held back, draw the line below it."""
        held, held_style = len(self._held), self._held_style
        text = self._follow(text, hold=hold)
        if len(text) >= held:  # what is held back now is new
            self._held_style = style
        before = _ERASE if self._drawn else ""
        self._drawn = bool(self._status) and self._column < self._width
        after = _BELOW.format(self._terminal.fit(self._status)) if self._drawn else ""
        if text and held and held_style != style:
            before += text[:held].join(held_style)
            text = text[held:]
        if text:
            before, after = before + style[0], style[1] + after
        self._terminal.write(text, before, after)

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


def live_text(stats: Stats) -> str:
    """What the line says while an answer streams: who guesses and tokens a pass of late, in the last WINDOW
    passes; gain and speed of the whole answer."""
    recent = stats.recent
    tokens = Counter[str]()
    for step in recent:
        if step.drafted:
            tokens[step.source] += len(step.tokens)
    lately = sum(len(step.tokens) for step in recent) / len(recent) if recent else 0.0
    if not tokens and len(recent) == WINDOW:
        why = Counter(step.why for step in recent if step.why).most_common(1)
        who = f"paused: {why[0][0]}" if why else "no guesses"
    else:
        who = f"{tokens.most_common(1)[0][0] if tokens else 'plain'} · {lately:.2f} tokens/pass lately"
    return " · ".join([who, *_gain(stats), f"{stats.tokens_per_second:.1f} tokens/s"])


def summary_text(stats: Stats, seed: int, reason: str | None = None) -> str:
    """The line after an answer: what it cost, what guessing brought or the `reason` why it did not, and how
    to get it again."""
    if not stats.tokens:
        return "no answer"
    passes = 100 * stats.passes / stats.tokens
    parts = [
        f"{stats.tokens} tokens",
        f"{stats.tokens_per_second:.1f} tokens/s",
        f"{stats.mean_accepted_length:.2f} tokens/pass",
        f"{passes:.0f} passes per 100 tokens",
        *_gain(stats),
    ]
    if stats.drafted:
        parts.append(f"{100 * stats.acceptance_rate:.0f} % of guesses accepted")
        shares = [
            f"{name} {tally.accepted}/{tally.drafted}"
            for name, tally in sorted(stats.sources.items())
            if tally.drafted
        ]
        parts.append(", ".join(shares))
    return " · ".join([*parts, *([reason] if reason else []), f"seed {seed}"])


def _gain(stats: Stats) -> list[str]:
    return [] if stats.gain is None else [f"{stats.gain:.2f}x plain"]


def why_no_gain(
    stats: Stats,
    *,
    seconds_prefill: float,
    temperature: float,
    tokens_context: int,
    slowdown: float,
    spread: float,
    draft_waits: bool,
    left_out: str,
) -> str | None:
    """The first thing that explains why guessing did not pay in an answer; None: it did, the
    answer has few tokens, or nobody knows.

    `slowdown`: a plain pass now over what it took when it was measured; `spread`: mean deviation of plain
    passes as a share of one. `draft_waits`: there is a draft model that was not started. `left_out`: why a
    draft does not fit, or "".
    """
    seconds = seconds_prefill + stats.seconds_decode + stats.seconds_open
    if stats.gain is None or seconds_prefill + stats.seconds_plain >= PAYS * seconds:
        return None
    if stats.tokens < SHORT:
        return None
    if seconds_prefill > stats.seconds_decode + stats.seconds_open:
        return "reading the prompt took longer than answering"
    if slowdown > BUSY and tokens_context < LONG:
        return f"the machine is busy: a plain pass takes {slowdown:.1f} times what was measured"
    if spread > RESTLESS:
        return f"the machine is busy: plain passes vary by {100 * spread:.0f} %"
    if temperature >= HOT and stats.drafted and stats.acceptance_rate < FEW:
        return f"few guesses are right at temperature {temperature:g}"
    if draft_waits and stats.tokens < SHORT_FOR_DRAFT:
        return "too short an answer to repay starting the draft"
    if left_out:
        return left_out
    why, passes = next(iter(stats.why.most_common(1)), ("", 0))
    if 2 * passes > stats.passes:
        return why
    return f"guesses cost {'about what' if stats.gain > LOSES else 'more than'} they saved"


def report_text(stats: Stats, ledger: Ledger | None, columns: int) -> str:
    """What became of guesses and time in a session: lines of at most `columns` cells."""
    seconds = {
        "target": stats.seconds_verify,
        "draft": stats.seconds_draft,
        "host": stats.seconds_host,
        "opening a draft": stats.seconds_open,
    }
    gain = "not known" if stats.gain is None else f"{stats.gain:.2f} times as fast"
    lines = [
        "Tokens by source: " + (", ".join(f"{n} {100 * s:.1f} %" for n, s in stats.shares.items()) or "none"),
        f"Against plain decoding as measured here: {gain}",
    ]
    if ledger:
        lines.append(
            f"Ledger in plain passes: {max(0.0, -ledger.balance):.1f} in hand of at most {HOARD:.0f}"
            if ledger.balance <= 0
            else f"Ledger in plain passes: {ledger.balance:.1f} lost of {ledger.allowance:.1f} allowed"
        )
    panels = (
        plots.histogram(stats.histogram, columns),
        plots.acceptance(stats.acceptance_by_position, columns),
        plots.share({name: s for name, s in seconds.items() if s or name != "opening a draft"}, columns),
    )
    return "\n".join([*panels, "".join(f"{line}\n" for line in lines)])
