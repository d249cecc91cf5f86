"""An answer rendered while it streams: on an emulated screen, against the same text written at once."""

from __future__ import annotations

import io
import os
import re
import termios
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_markdown import GOLDEN, SGR, TEXTS, rows

from localspec.ui.stream import CREDIT, INTERVAL, SHARE, MarkdownStream, can_render
from localspec.ui.terminal import Terminal, sanitise

OURS = re.compile(r"\x1b\[(?:[0-9;]*m|[0-9]*A|J|\?7[hl])")
"""What the stream may send to the terminal."""


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class Glass(io.StringIO):
    """A stream that shows on a screen what is written to it, and has its size."""

    def __init__(self, columns: int, lines: int) -> None:
        super().__init__()
        self._master, self._slave = os.openpty()
        self.view = pyte.HistoryScreen(columns, lines, history=10_000)
        self._stream = pyte.Stream(self.view)
        self.resize(columns, lines)

    def resize(self, columns: int, lines: int) -> None:
        self.view.resize(lines, columns)
        termios.tcsetwinsize(self._slave, (lines, columns))

    def write(self, text: str) -> int:
        shown = text.translate(
            {ord("\n"): "\r\n", 0x200C: None, 0x200D: None}
        )  # pyte loses what follows joiners
        self._stream.feed(shown)
        return super().write(text)

    def fileno(self) -> int:
        return self._slave

    def close(self) -> None:
        if not self.closed:
            os.close(self._master)
            os.close(self._slave)
        super().close()

    @property
    def rows(self) -> list[str]:
        """All rows above the cursor's, and from there those down to the last that shows anything."""
        width = self.view.columns
        gone = ["".join(row[x].data for x in range(width)).rstrip() for row in self.view.history.top]
        found = gone + [row.rstrip() for row in self.view.display]
        while len(found) > len(gone) + self.view.cursor.y and not found[-1]:
            found.pop()
        return found


@dataclass
class Rig:
    """A stream on `glass`, with a clock that we set."""

    columns: int = 40
    lines: int = 24
    color: bool = False
    verbosity: int = 0
    unfolded: bool = False
    clock: Clock = field(default_factory=Clock)

    def __enter__(self) -> Rig:
        self.glass = Glass(self.columns, self.lines)
        self.terminal = Terminal(
            self.glass, self.glass, True, True, self.color, verbosity=self.verbosity, err_live=True
        )
        self.stream = MarkdownStream(self.terminal, self.clock, unfolded=self.unfolded)
        return self

    def __exit__(self, *_: object) -> None:
        self.glass.close()

    def write(self, text: str, seconds: float = 1.0) -> None:
        self.clock.now += seconds
        self.stream.write(text)

    def think(self, text: str) -> None:
        self.clock.now += 1
        self.stream.think(text)

    def show(self, status: str) -> None:
        self.clock.now += 1
        self.stream.update(status)

    @property
    def rows(self) -> list[str]:
        return self.glass.rows


def pieces(text: str, cuts: list[int]) -> Iterator[str]:
    bounds = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return (text[a:b] for a, b in pairwise(bounds))


def as_shown(text: str, columns: int) -> list[str]:
    """The rows as pyte shows them: characters of no width are lost, or in the cell of what they follow."""
    with Rig(columns, 24) as rig:
        rig.glass.write("".join(f"{row}\n" for row in rows(sanitise(text), columns)))
        return rig.rows


@settings(max_examples=200, deadline=None)
@given(
    TEXTS,
    st.lists(st.integers(0, 10_000), max_size=30),
    st.sampled_from([20, 33, 80]),
    st.sampled_from([2, 5, 24]),
    st.booleans(),
)
def test_however_it_is_cut_the_screen_ends_as_with_the_whole(text, cuts, columns, lines, status):
    with Rig(columns, lines) as rig:
        for i, piece in enumerate(pieces(text, cuts)):
            rig.write(piece, seconds=i % 3 / 10)
            if status:
                rig.show(f"{i} tokens")
        rig.stream.clear()
        assert rig.rows == as_shown(text, columns)
        assert rig.glass.view.cursor.x == 0


def test_character_by_character_on_a_small_screen():
    with Rig(20, 6) as rig:
        for char in GOLDEN:
            rig.write(char)
            rig.show("a status that is far too long")
        rig.stream.clear()
        assert rig.rows == rows(GOLDEN, 20)


def test_colours_do_not_depend_on_the_cuts():
    text = GOLDEN + "\n```py\n" + 'x = """\n' + "word\n" * 20 + '"""\ny = 1\n```\n'
    finals = []
    for size in (1, 7, len(text)):
        with Rig(40, 60, color=True) as rig:
            for start in range(0, len(text), size):
                rig.write(text[start : start + size])
            rig.stream.clear()
            buffer = rig.glass.view.buffer
            finals.append([[(buffer[y][x].data, buffer[y][x].fg) for x in range(40)] for y in range(60)])
    assert finals[0] == finals[1] == finals[2]


def test_the_status_stands_below_the_text_and_goes():
    with Rig() as rig:
        rig.show("reading the prompt")
        assert rig.rows == ["reading the prompt"]
        rig.write("some *text")
        assert rig.rows == ["some *text", "reading the prompt"]
        rig.show("12 tokens/s")
        rig.write("*\n\nmore")
        assert rig.rows == ["some text", "", "more", "12 tokens/s"]
        rig.stream.clear()
        assert rig.rows == ["some text", "", "more"]


def test_quiet_shows_no_status():
    with Rig(verbosity=-1) as rig:
        rig.write("text")
        rig.show("12 tokens/s")
        assert rig.rows == ["text"]


def test_a_block_taller_than_the_screen_shows_its_tail_and_in_the_end_all_of_it():
    lines = [f"| row {i} |" for i in range(30)]
    text = "before\n\n| head |\n|---|\n" + "\n".join(lines)
    with Rig(30, 10) as rig:
        rig.write(text)
        rig.show("status")
        assert [row.strip() for row in rig.rows[-10:]] == [*(f"row {i}" for i in range(21, 30)), "status"]
        rig.write("\n| last |")
        rig.stream.clear()
        assert rig.rows == [*rows(text + "\n| last |", 30)]


def test_characters_of_disputed_width_displace_nothing():
    """Three people joined to a family are two cells for us and six for this terminal: rows are cut there."""
    text = "first\n\n" + "👩\u200d👩\u200d👧 " * 12
    with Rig(20, 10) as rig:
        for char in text:
            rig.write(char)
            rig.show("status")
        rig.stream.clear()
        assert rig.rows == as_shown(text, 20)


def test_finished_text_is_written_once():
    paragraph = "word " * 20 + "\n\n"
    with Rig(80, 24) as rig:
        for _ in range(30):
            for word in paragraph.split(" "):
                rig.write(word + " ")
        few = len(rig.glass.getvalue())
        for _ in range(30):
            for word in paragraph.split(" "):
                rig.write(word + " ")
        assert len(rig.glass.getvalue()) < 2.2 * few


def test_long_code_leaves_the_part_that_is_drawn_over():
    """Its finished lines are out for good, so that they can be scrolled back to and cost nothing more."""
    with Rig(40, 10) as rig:
        rig.write("```\n")
        for i in range(100):
            rig.write(f"line {i}\n")
        assert rig.rows[:97] == ["```", *(f"line {i}" for i in range(96))]
        before = len(rig.glass.getvalue())
        rig.write("x")
        assert len(rig.glass.getvalue()) - before < 100


def test_drawing_waits_ten_times_as_long_as_it_took(monkeypatch):
    with Rig() as rig:
        slow = SimpleNamespace(drawn=0)
        write = rig.glass.write

        def costly(text):
            slow.drawn += 1
            rig.clock.now += 0.2
            return write(text)

        monkeypatch.setattr(rig.glass, "write", costly)
        rig.write("a", seconds=0)
        assert slow.drawn == 1
        rig.write("b", seconds=SHARE * 0.2 - CREDIT)
        assert slow.drawn == 1
        rig.write("c", seconds=CREDIT)
        assert slow.drawn == 2
        rig.stream.clear()
        assert rig.rows == ["abc"]


def test_pieces_that_come_at_once_after_a_pause_are_all_shown():
    with Rig() as rig:
        rig.write("one ")
        rig.write("two ", seconds=0)
        rig.write("three", seconds=0)
        assert rig.rows == ["one two three"]


def test_a_status_stays_long_enough_to_be_read():
    with Rig() as rig:
        rig.show("1 token")
        rig.clock.now += INTERVAL / 2
        rig.stream.update("2 tokens")
        assert rig.rows == ["1 token"]
        rig.clock.now += INTERVAL
        rig.stream.update("3 tokens")
        assert rig.rows == ["3 tokens"]


@pytest.mark.parametrize(("columns", "lines"), [(20, 24), (70, 24), (40, 6), (20, 5), (70, 40)])
def test_a_resize_in_the_middle_leaves_what_is_finished_and_uses_the_new_width(columns, lines):
    first, then = "finished block\n\n", "an open paragraph of more than one row that goes on and on "
    with Rig(40, 10) as rig:
        rig.write(first + then)
        rig.show("status")
        rig.glass.resize(columns, lines)
        rig.write("to its end.")
        rig.stream.clear()
        assert rig.rows[0].startswith("finished block")
        tail = rows(then + "to its end.", columns)
        assert rig.rows[-len(tail) :] == tail


def test_after_clear_more_can_be_written():
    with Rig() as rig:
        rig.write("one")
        rig.stream.clear()
        rig.stream.clear()
        rig.write("two")
        rig.stream.clear()
        assert rig.rows == ["one", "", "two"]


def test_thinking_is_one_line_that_counts_and_leaves_a_trace():
    with Rig() as rig:
        rig.think("Let me ")
        rig.think("th")
        rig.think("ink.\nAbout it")
        assert rig.rows == ["thinking… 5 words"]
        rig.show("12 tokens/s")
        assert rig.rows == ["thinking… 5 words", "12 tokens/s"]
        rig.write("The answer.")
        rig.stream.clear()
        assert rig.rows == ["thought 5 words", "", "The answer."]


def test_thinking_that_is_cut_short_leaves_its_trace():
    with Rig() as rig:
        rig.think("one two")
        rig.stream.clear()
        assert rig.rows == ["thought 2 words"]


@given(st.text("ab \n", max_size=40), st.lists(st.integers(0, 40), max_size=8))
@settings(max_examples=50, deadline=None)
def test_words_are_counted_over_the_cuts(text, cuts):
    with Rig() as rig:
        for piece in pieces(text, cuts):
            rig.think(piece)
        rig.think("")
        assert rig.rows[0] == f"thinking… {len(text.split())} words"


def test_unfolded_thinking_is_dim_and_stays():
    with Rig(20, 10, color=True, unfolded=True) as rig:
        rig.think("Let me think about\nit \x1b[2Jand ")
        rig.think("then")
        rig.write("Yes.")
        rig.stream.clear()
        assert rig.rows == ["Let me think about", "it [2Jand then", "", "Yes."]
        assert "\x1b[2mLet me think about\x1b[22m" in rig.glass.getvalue()


@settings(max_examples=100, deadline=None)
@given(st.text(), st.lists(st.integers(0, 100), max_size=5))
def test_no_text_can_drive_the_terminal(text, cuts):
    with Rig(color=True) as rig:
        for piece in pieces(text, cuts):
            rig.write(piece)
            rig.show(piece)
        rig.stream.clear()
        for piece in pieces(text, cuts):
            rig.think(piece)
        rig.stream.clear()
        assert not re.search(
            r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e]", OURS.sub("", rig.glass.getvalue())
        )


def test_a_split_escape_sequence_is_harmless():
    with Rig() as rig:
        for char in "a\x1b]52;c;aGk=\x07b\x1b[2Jc\x9b2Jd&#27;[2J":
            rig.write(char)
        rig.stream.clear()
        assert rig.rows == ["a]52;c;aGk=b[2Jc2Jd\ufffd[2J"]


def test_without_colour_there_is_none():
    with Rig() as rig:
        rig.write(GOLDEN)
        rig.show("status")
        rig.stream.clear()
        assert not re.search(r"\x1b\[[0-9;]*[349][0-7]m", rig.glass.getvalue())


def test_where_it_can_be_used():
    def terminal(**changes: object) -> Terminal:
        return Terminal(**{"out": io.StringIO(), "err": io.StringIO(), "out_tty": True, "err_tty": True,
                           "err_color": True, "err_live": True, **changes})  # fmt: skip

    assert can_render(terminal())
    assert can_render(terminal(verbosity=-1))
    assert not can_render(terminal(out_tty=False))
    assert not can_render(terminal(err_live=False))  # TERM=dumb
    assert not can_render(terminal(verbosity=2))  # llama.cpp's log runs into it


def test_styles_end_with_their_rows():
    with Rig(color=True) as rig:
        rig.write("**bold that goes on over more than one row of the screen, far beyond it**")
        rig.stream.clear()
        for row in rig.glass.getvalue().split("\n"):
            codes = SGR.findall(row)
            assert not codes or codes[-1] == "\x1b[0m"
