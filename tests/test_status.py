"""The live line on an emulated screen, against the same text without it; and what it says."""

from __future__ import annotations

import io
import os
import pty
import re
import termios
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from wcwidth import wcwidth

from localspec.engine.ledger import Ledger
from localspec.engine.stats import WINDOW, Stats
from localspec.engine.types import Step
from localspec.ui.status import LiveLine, live_text, report_text, summary_text, why_no_gain
from localspec.ui.terminal import Terminal


class Screen(pyte.Screen):
    """What a terminal shows, and the rows that scrolled away.

    Corrects pyte where xterm and tmux agree on something else, all of it about the end of a row; where they
    disagree among themselves, the cursor behind a full row, nobody may save, move or erase.
    """

    def __init__(self, columns: int, lines: int) -> None:
        self.gone: list[str] = []
        super().__init__(columns, lines)

    def draw(self, data: str) -> None:
        for char in data:
            row = self.buffer[self.cursor.y]
            if self.cursor.x == self.columns and unicodedata.combining(char):  # stays with its character
                place = next(x for x in reversed(range(self.columns)) if row[x].data)
                row[place] = row[place]._replace(data=unicodedata.normalize("NFC", row[place].data + char))
                continue
            if wcwidth(char) == 2 and self.cursor.x == self.columns - 1:  # is not cut in half
                self.cursor.x = self.columns
            super().draw(char)

    def tab(self) -> None:
        if self.cursor.x < self.columns:
            super().tab()

    def index(self) -> None:
        if self.cursor.y == self.lines - 1:
            self.gone.append(self._row(0))
        super().index()

    def save_cursor(self) -> None:
        assert self.cursor.x < self.columns
        super().save_cursor()

    def erase_in_display(self, how: int = 0, *args: object, **kwargs: object) -> None:
        assert self.cursor.x < self.columns
        super().erase_in_display(how)

    def _row(self, y: int) -> str:
        return "".join(self.buffer[y][x].data for x in range(self.columns)).rstrip()

    @property
    def rows(self) -> list[str]:
        """All rows, scrolled away or shown, down to the last that is not empty or has the cursor."""
        rows = self.gone + [self._row(y) for y in range(self.lines)]
        while len(rows) > self.row + 1 and not rows[-1]:
            rows.pop()
        return rows

    @property
    def row(self) -> int:
        """The row of the cursor, counted from the first that ever was."""
        return len(self.gone) + self.cursor.y


class Glass(io.StringIO):
    """A stream that shows on a screen what is written to it; `window` is a terminal of the same width."""

    def __init__(self, columns: int, lines: int = 24, window: int = -1) -> None:
        super().__init__()
        self._window = window
        self.resize(columns, lines)

    def resize(self, columns: int, lines: int, shown: str = "") -> None:
        """A new size; the terminal lays out `shown` anew."""
        self.screen = Screen(columns, lines)
        self._stream = pyte.Stream(self.screen)
        self._feed(shown)
        if self._window >= 0:
            termios.tcsetwinsize(self._window, (lines, columns))

    def write(self, text: str) -> int:
        self._feed(text)
        return super().write(text)

    def _feed(self, text: str) -> None:
        self._stream.feed(text.replace("\n", "\r\n"))

    def fileno(self) -> int:
        return self._window if self._window >= 0 else super().fileno()


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Rig:
    """A live line under an answer on `glass`, with a clock that we set."""

    glass: Glass
    clock: Clock = field(default_factory=Clock)
    color: bool = False

    def __post_init__(self) -> None:
        self.terminal = Terminal(self.glass, self.glass, True, True, self.color, err_live=True)
        self.line = LiveLine(self.terminal, self.clock)

    def show(self, status: str) -> None:
        self.clock.pass_by(1)
        self.line.update(status)

    @property
    def below(self) -> str:
        """The row below the text."""
        screen = self.glass.screen
        return screen.rows[screen.row + 1] if len(screen.rows) > screen.row + 1 else ""


@pytest.fixture(scope="module")
def window() -> Iterator[int]:
    """A terminal that has a size and nothing else."""
    master, slave = pty.openpty()
    yield slave
    os.close(slave)
    os.close(master)


UNITS = [
    "word ",
    "a",
    "x" * 19,
    "y" * 20,
    "z" * 80,
    " ",
    "\n",
    "\n\n",
    "\t",
    "中",
    "中文字符",
    "😀",
    "e\u0301",
    "한",
    "\n" + "e\u0301" * 20,
    "\n" + "z" * 80 + "\t",
]
SIZES = st.tuples(st.sampled_from([20, 80]), st.integers(5, 24))
PIECES = st.lists(st.lists(st.sampled_from(UNITS), min_size=1, max_size=8).map("".join), max_size=25)


@st.composite
def cut_anywhere(draw: st.DrawFn) -> list[str]:
    """A text in pieces whose borders fall anywhere, also between a character and its accent."""
    text = "".join(draw(PIECES))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=40)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def where(glass: Glass) -> tuple[list[str], int, int]:
    """All text, and row and column of the cursor."""
    return glass.screen.rows, glass.screen.row, glass.screen.cursor.x


def is_part(rows: list[str], whole: Screen) -> bool:
    """Whether `rows` are those of `whole` but for the character that fills its last row."""
    last, missing = whole.rows[-1], whole.rows[-1][len(rows[-1]) :]
    return (
        rows[:-1] == whole.rows[:-1]
        and last.startswith(rows[-1])
        and len(unicodedata.normalize("NFC", missing.strip())) <= (whole.cursor.x == whole.columns)
    )


@settings(max_examples=120, deadline=None)
@given(size=SIZES, pieces=cut_anywhere(), clears=st.sets(st.integers(0, 40), max_size=4))
def test_text_is_the_same_with_and_without_the_line(
    size: tuple[int, int], pieces: list[str], clears: set[int], window: int
) -> None:
    plain, rig = Glass(*size), Rig(Glass(*size, window))
    screen = rig.glass.screen
    for i, piece in enumerate(pieces):
        start = plain.screen.row, screen.cursor.x  # behind a full row: only after clear()
        rig.line.write(piece)
        plain.write(piece)
        rig.show(f"status {i}")
        if start != (plain.screen.row, screen.columns):  # as long as it stays there no line can be drawn
            assert rig.below == f"status {i}"
            assert is_part(screen.rows[:-1], plain.screen)
        if i in clears:
            rig.line.clear()
            assert where(rig.glass) == where(plain)
            rig.show("again")
            assert rig.below == ("again" if screen.cursor.x < screen.columns else "")
    rig.line.clear()
    assert where(rig.glass) == where(plain)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), parts=st.lists(cut_anywhere(), min_size=2, max_size=3))
def test_text_is_the_same_in_a_resized_window(
    data: st.DataObject, parts: list[list[str]], window: int
) -> None:
    shown, rig = "", Rig(Glass(80, 24, window))
    for pieces in parts:
        size = data.draw(SIZES)
        plain = Glass(*size)
        rig.glass.resize(*size, shown)
        plain.write(shown)
        for piece in pieces:
            rig.line.write(piece)
            plain.write(piece)
            rig.show("status")
        rig.line.clear()
        shown += "".join(pieces)
        assert where(rig.glass) == where(plain)


@pytest.mark.parametrize(("before", "after"), [(80, 20), (20, 80), (30, 40)])
def test_rows_of_a_resized_window_fill_where_they_should(before: int, after: int, window: int) -> None:
    rig, plain = Rig(Glass(before, 9, window)), Glass(after, 9)
    rig.line.write("x" * 50)
    rig.line.clear()
    rig.glass.resize(after, 9, "x" * 50)
    plain.write("x" * 50)
    for _ in range(90):
        rig.line.write("y")
        plain.write("y")
        rig.show("status")
        assert rig.below == "status"
    rig.line.clear()
    assert where(rig.glass) == where(plain)


def test_line_stays_while_text_flows_and_each_step_is_one_write(window: int) -> None:
    class Counting(Glass):
        written: tuple[str, ...] = ()

        def write(self, text: str) -> int:
            self.written += (text,)
            return super().write(text)

    rig = Rig(glass := Counting(20, 5, window))
    rig.line.write("a ")
    rig.show("status")
    for i in range(30):
        glass.written = ()
        rig.line.write("word \n" if i % 7 == 6 else "word ")
        assert rig.below == "status"
        assert len(glass.written) == 1


def test_screens(window: int) -> None:
    """As a user sees them, 20 columns wide."""
    rig = Rig(Glass(20, 6, window))
    rig.show("reading the prompt: 8 of 9 tokens")
    assert rig.glass.screen.rows == ["", "reading the prompt…"]
    rig.line.write("A text that goes on and ")
    assert rig.below == ""
    rig.show("ngram · 1.25 tokens/pass")
    assert rig.glass.screen.rows == ["A text that goes on", "and", "ngram · 1.25 token…"]
    for piece in ("on:\n", "\tone\n", "\t二\n", "three\n"):
        rig.line.write(piece)
    assert rig.glass.screen.rows == [
        "A text that goes on",
        "and on:",
        "        one",
        "        二",
        "three",
        "",
        "ngram · 1.25 token…",
    ]
    rig.line.clear()
    rig.terminal.note("4 tokens")
    assert rig.glass.screen.rows[-3:] == ["three", "4 tokens", ""]


def test_row_just_filled_at_the_end_gets_no_empty_row(window: int) -> None:
    rig = Rig(Glass(20, 6, window))
    for piece in ("x" * 15, "y" * 5):
        rig.line.write(piece)
        rig.show("status")
    rig.line.clear()
    rig.terminal.write("\n")
    rig.terminal.note("1 token")
    assert rig.glass.screen.rows == ["x" * 15 + "y" * 5, "1 token", ""]


def test_characters_of_disputed_width_do_not_displace_the_line(window: int) -> None:
    class Joining(Glass):
        """A terminal that shows a joined emoji in two cells, where we count four."""

        def _feed(self, text: str) -> None:
            super()._feed(text.replace("\N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET}", "\N{WOMAN}"))

    plain, rig = Joining(80), Rig(Joining(80, 24, window))
    for _ in range(9):
        rig.line.write("\N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET} ab ")
        plain.write("\N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET} ab ")
        rig.show("status")
        assert rig.below == "status"
    rig.line.clear()
    assert where(rig.glass) == where(plain)


def test_figures_change_at_most_every_50_ms(window: int) -> None:
    rig = Rig(Glass(40, 6, window))
    rig.line.update("first")
    assert rig.below == "first"
    rig.clock.pass_by(0.049)
    rig.line.update("second")
    assert rig.below == "first"
    rig.clock.pass_by(0.002)
    rig.line.update("third")
    assert rig.below == "third"
    rig.line.write("text")  # the figures of the wait are old
    rig.line.update("fourth")
    assert rig.below == "fourth"


def test_no_color_means_no_colour_but_a_line(window: int) -> None:
    for color in (False, True):
        rig = Rig(Glass(40, 6, window), color=color)
        rig.line.write("text")
        rig.show("status")
        assert rig.below == "status"
        assert bool(re.search(r"\x1b\[[0-9;]*m", rig.glass.getvalue())) is color


def test_status_cannot_drive_the_terminal(window: int) -> None:
    rig = Rig(Glass(40, 6, window))
    rig.line.write("te\x1b")
    rig.line.write("[2Jxt\r")
    rig.show("\x1b[2J中{}\n" * 9)
    assert rig.glass.screen.rows == ["te[2Jxt", "[2J中{} [2J中{} [2J中{} [2J中{} [2J中{…"]


def test_what_is_not_shown_takes_no_room(window: int) -> None:
    rig = Rig(Glass(20, 6, window))
    for piece in ("x" * 19 + "\u00ad", "y", "z"):  # a soft hyphen has a width of one
        rig.line.write(piece)
        rig.show("status")
    assert rig.glass.screen.rows == ["x" * 19 + "y", "z", "status"]


@pytest.mark.parametrize("out_tty", [True, False])
def test_nothing_but_the_text_where_no_line_can_be(out_tty: bool) -> None:
    """TERM=dumb, or stderr in a file."""
    out, err = io.StringIO(), io.StringIO()
    line = LiveLine(Terminal(out, err, out_tty, err_tty=out_tty, err_color=False, err_live=False), Clock())
    line.update("reading")
    line.write("x" * 80)
    line.update("status")
    line.write("\n")
    line.clear()
    assert (out.getvalue(), err.getvalue()) == ("x" * 80 + "\n", "")


def test_answer_in_a_file_leaves_a_progress_line_on_the_screen(window: int) -> None:
    out, err = io.StringIO(), Glass(20, 6, window)
    line = LiveLine(Terminal(out, err, False, True, err_color=False, err_live=True), Clock())
    line.update("reading")
    assert err.screen.rows == ["reading"]
    line.write("\x1b[31mtext")
    line.update("status " * 9)
    assert err.screen.rows == ["status status stat…"]
    line.write("more")
    assert err.screen.rows == ["status status stat…"]
    line.clear()
    assert err.screen.rows == [""]
    assert out.getvalue() == "\x1b[31mtextmore"


def test_nothing_is_drawn_beside_text_in_a_pipe(window: int) -> None:
    """Its reader may be `tee`."""
    out, err = io.StringIO(), Glass(20, 6, window)
    line = LiveLine(Terminal(out, err, False, True, False, out_pipe=True, err_live=True), Clock())
    line.update("reading")
    assert err.screen.rows == ["reading"]
    line.write("text")
    line.update("status")
    assert err.screen.rows == [""]
    assert out.getvalue() == "text"


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(st.integers(4, 20), st.just(24)),
    pieces=st.lists(
        st.tuples(st.text(st.sampled_from("aaaabb 中中\n"), max_size=9), st.booleans()), max_size=25
    ),
)
def test_guesses_are_underlined_cell_by_cell(
    size: tuple[int, int], pieces: list[tuple[str, bool]], window: int
) -> None:
    """Also a character held back at the end of a row, and never the status line."""
    plain, rig = Glass(*size), Rig(Glass(*size, window))
    marks = []
    for text, guessed in pieces:
        rig.line.write(text, underlined=guessed)
        plain.write(text)
        rig.show("status")
        marks += [guessed for char in text if char != "\n"]
    rig.line.clear()
    assert where(rig.glass) == where(plain)
    assert "\x1b[4m\x1b[24m" not in rig.glass.getvalue()
    screen = rig.glass.screen
    cells = [screen.buffer[y][x] for y in range(screen.lines) for x in range(screen.columns)]
    shown = [cell.underscore for cell in cells if cell.data.strip() and cell.data != " "]
    visible = [m for char, m in zip(_no_newlines(pieces), marks, strict=True) if char != " "]
    assert shown == visible[len(visible) - len(shown) :]


@pytest.mark.parametrize("guessed", [True, False])
def test_a_character_held_back_keeps_its_underline(guessed: bool, window: int) -> None:
    rig = Rig(Glass(20, 6, window))
    rig.line.write("x" * 20, underlined=guessed)
    rig.show("status")
    rig.line.write("y", underlined=not guessed)
    cells = rig.glass.screen.buffer
    assert (cells[0][19].data, cells[0][19].underscore) == ("x", guessed)
    assert (cells[1][0].data, cells[1][0].underscore) == ("y", not guessed)


def _no_newlines(pieces: list[tuple[str, bool]]) -> str:
    return "".join(text for text, _ in pieces).replace("\n", "")


def test_hostile_guesses_cannot_drive_the_terminal(window: int) -> None:
    rig = Rig(Glass(40, 6, window))
    rig.line.write("a\x1b[2Jb\x1b[24m", underlined=True)
    rig.line.write("c")
    rig.line.clear()
    assert rig.glass.getvalue() == "\x1b[4ma[2Jb[24m\x1b[24mc"


@pytest.mark.parametrize("out_tty", [True, False])
def test_underlines_are_for_terminals_only(out_tty: bool) -> None:
    """Here with stderr in a file, so that there is no line."""
    out = io.StringIO()
    line = LiveLine(Terminal(out, io.StringIO(), out_tty, False, err_color=False), Clock())
    line.write("a", underlined=True)
    line.write("b")
    assert out.getvalue() == ("\x1b[4ma\x1b[24mb" if out_tty else "ab")


PLAIN = Step((4,), "none", drafted=0, accepted=0, seconds_draft=0.0, seconds_verify=0.1, seconds_host=0.0)
STEPS = [
    Step(
        (1, 2, 3), "ngram", drafted=4, accepted=2, seconds_draft=0.01, seconds_verify=0.08, seconds_host=0.01
    ),
    PLAIN,
    Step((5, 6), "model", drafted=2, accepted=1, seconds_draft=0.1, seconds_verify=0.1, seconds_host=0.0),
]


def count(steps: list[Step]) -> Stats:
    stats = Stats()
    for step in steps:
        stats.add(step)
    return stats


def priced(steps: list[Step], why: str = "") -> list[Step]:
    """Where a plain pass takes 100 ms."""
    return [replace(step, seconds_plain=0.1 * len(step.tokens), why=why) for step in steps]


def test_the_live_line_says_who_guesses_of_late() -> None:
    assert live_text(count(STEPS)) == "ngram · 2.00 tokens/pass lately · 15.0 tokens/s"
    assert live_text(count(priced(STEPS))) == "ngram · 2.00 tokens/pass lately · 1.50x plain · 15.0 tokens/s"
    assert live_text(Stats()) == "plain · 0.00 tokens/pass lately · 0.0 tokens/s"
    later = [*priced(STEPS), *priced([STEPS[2]] * WINDOW)]  # what ngram guessed is long ago
    assert live_text(count(later)).startswith("model · 2.00 tokens/pass lately · ")


def test_the_live_line_says_why_nothing_is_guessed() -> None:
    dear = "guesses cost more than they save here"
    pause = priced([PLAIN] * (WINDOW - 1), dear)
    assert live_text(count(pause)).startswith("plain · 1.00 tokens/pass lately · 1.00x plain · ")
    assert live_text(count([STEPS[0], *pause])).startswith("ngram · ")
    measured = [*priced([PLAIN], "measuring the plain speed"), *pause]
    assert live_text(count(measured)) == f"paused: {dear} · 1.00x plain · 10.0 tokens/s"
    assert live_text(count([PLAIN] * WINDOW)) == "no guesses · 10.0 tokens/s"


def test_what_the_summary_says() -> None:
    assert summary_text(count(STEPS), seed=7) == (
        "6 tokens · 15.0 tokens/s · 2.00 tokens/pass · 50 passes per 100 tokens"
        " · 50 % of guesses accepted · model 1/2, ngram 2/4 · seed 7"
    )
    assert summary_text(count(STEPS[1:2]), seed=0) == (
        "1 tokens · 10.0 tokens/s · 1.00 tokens/pass · 100 passes per 100 tokens · seed 0"
    )
    assert summary_text(Stats(), seed=1) == "no answer"
    assert summary_text(count(priced([PLAIN])), 0, "so it is") == (
        "1 tokens · 10.0 tokens/s · 1.00 tokens/pass · 100 passes per 100 tokens · 1.00x plain"
        " · so it is · seed 0"
    )


QUIET: dict[str, Any] = {
    "seconds_prefill": 0.0,
    "temperature": 0.8,
    "tokens_context": 500,
    "slowdown": 1.0,
    "spread": 0.05,
    "draft_waits": False,
    "left_out": "",
}
WRONG = replace(STEPS[0], tokens=(1,), accepted=0)  # 4 guesses, none right, in 100 ms
NOTHING = "nothing to guess from"
LEFT_OUT = "The draft model d is left out: it does not fit"


@pytest.mark.parametrize(
    ("steps", "changes", "reason"),
    [
        (priced([STEPS[0]] * 99), {}, None),  # it paid
        ([PLAIN] * 99, {}, None),  # nobody knows
        (priced([PLAIN] * 99, NOTHING), {}, NOTHING),
        (priced([PLAIN] * 40, NOTHING) + priced([WRONG] * 60), {}, "guesses cost about what they saved"),
        (priced([PLAIN] * 99), {"seconds_prefill": 9.8}, "guesses cost about what they saved"),
        (priced([PLAIN] * 99), {"seconds_prefill": 10}, "reading the prompt took longer than answering"),
        (priced([STEPS[0]] * 9), {"seconds_prefill": 99}, "reading the prompt took longer than answering"),
        (priced([STEPS[0]] * 99), {"seconds_prefill": 11}, None),  # it paid all the same
        (priced([PLAIN] * 99, NOTHING), {"slowdown": 1.5}, NOTHING),
        (
            priced([PLAIN] * 99, NOTHING),
            {"slowdown": 1.8},
            "the machine is busy: a plain pass takes 1.8 times what was measured",
        ),
        (priced([PLAIN] * 99, NOTHING), {"slowdown": 1.8, "tokens_context": 4000}, NOTHING),
        (priced([PLAIN] * 99, NOTHING), {"spread": 0.25}, NOTHING),
        (priced([PLAIN] * 99), {"spread": 0.3}, "the machine is busy: plain passes vary by 30 %"),
        (priced([WRONG] * 99), {"temperature": 1.2}, "few guesses are right at temperature 1.2"),
        (priced([WRONG] * 99), {"temperature": 1.1}, "guesses cost about what they saved"),
        (priced([PLAIN] * 99, NOTHING), {"temperature": 1.2}, NOTHING),  # none were made
        (priced([PLAIN] * 15, NOTHING), {}, None),
        (priced([PLAIN] * 16, NOTHING), {}, NOTHING),
        (
            priced([PLAIN] * 99, NOTHING),
            {"draft_waits": True},
            "too short an answer to repay starting the draft",
        ),
        (priced([PLAIN] * 256, NOTHING), {"draft_waits": True}, NOTHING),
        (priced([PLAIN] * 99, NOTHING), {"left_out": LEFT_OUT}, LEFT_OUT),
        (priced([STEPS[0]] * 99), {"left_out": LEFT_OUT, "spread": 9.0, "draft_waits": True}, None),
    ],
)
def test_why_guessing_did_not_pay(steps: list[Step], changes: dict[str, Any], reason: str | None) -> None:
    assert why_no_gain(count(steps), **{**QUIET, **changes}) == reason


@pytest.mark.parametrize(
    ("gain", "reason"),
    [
        (0.94, "guesses cost more than they saved"),
        (0.96, "guesses cost about what they saved"),
        (1.04, "guesses cost about what they saved"),
        (1.06, None),
        (None, None),
    ],
)
def test_five_percent_are_a_gain_or_a_loss(gain: float | None, reason: str | None) -> None:
    steps = [replace(WRONG, seconds_plain=0.1 * gain if gain else 0.0)] * 99
    assert why_no_gain(count(steps), **QUIET) == reason


def test_a_draft_opened_for_nothing_is_a_loss() -> None:
    steps = [*priced([STEPS[0]] * 99), *priced([replace(PLAIN, seconds_open=99.0)])]
    assert why_no_gain(count(steps), **QUIET) == "guesses cost more than they saved"


def test_the_report_of_a_session() -> None:
    text = report_text(count(priced([*STEPS, replace(PLAIN, seconds_open=1.6)])), Ledger(-4.0, 7), 60)
    lines = text.splitlines()
    for said in (
        "Passes by tokens emitted",
        "Acceptance by position",
        "Share of time",
        "Tokens by source: ngram 42.9 %, model 28.6 %, none 28.6 %",
        "Against plain decoding as measured here: 0.33 times as fast",
        "Ledger in plain passes: 4.0 in hand of at most 20",
    ):
        assert said in lines
    figures = {line.split()[0]: line.split()[-2:] for line in lines if line.endswith(("%", "%)"))}
    assert figures["target"] == ["18.1", "%"]
    assert figures["opening"] == ["76.2", "%"]
    assert max(map(cell_len, lines)) <= 60


def test_the_report_says_what_is_not_known() -> None:
    assert report_text(Stats(), None, 60).endswith(
        "Tokens by source: none\nAgainst plain decoding as measured here: not known\n"
    )
    said = report_text(count([PLAIN]), Ledger(2.0, 100), 60)
    assert said.endswith("Ledger in plain passes: 2.0 lost of 5.0 allowed\n")
    assert "opening" not in said
