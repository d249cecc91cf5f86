"""Who shows an answer, by what shows it: Markdown, plain text, JSON events, or nobody."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from localspec.chat.views import Events, Muted, Show
from localspec.ui.status import LiveLine
from localspec.ui.stream import MarkdownStream
from localspec.ui.terminal import Terminal


def terminal(**known: Any) -> Terminal:
    about = {"out_tty": True, "err_tty": True, "err_color": False, "err_live": True} | known
    return Terminal(io.StringIO(), io.StringIO(), **about)


@pytest.mark.parametrize(
    ("show", "known", "rendered", "underlined"),
    [
        (Show(), {}, True, False),
        (Show(plain=True), {}, False, False),
        (Show(drafts=True), {}, False, True),
        (Show(plain=True, drafts=True), {}, False, True),
        (Show(), {"out_tty": False}, False, False),
        (Show(drafts=True), {"out_tty": False}, False, False),
        (Show(), {"err_live": False}, False, False),  # a dumb terminal
        (Show(drafts=True), {"err_live": False}, False, False),
        (Show(drafts=True), {"err_live": False, "err_tty": False}, False, True),
        (Show(), {"verbosity": -1}, True, False),
        (Show(), {"verbosity": 2}, False, False),  # llama.cpp's log runs into it
    ],
)
def test_what_shows_an_answer(show: Show, known: dict[str, Any], rendered: bool, underlined: bool) -> None:
    one = terminal(**known)
    assert show.renders(one) is rendered
    assert show.underlines(one) is underlined
    assert type(show.view(one)) is (MarkdownStream if rendered else LiveLine)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("thoughts", [False, True])
def test_thoughts_are_told_from_the_answer(plain: bool, thoughts: bool) -> None:
    one = terminal()
    view = Show(plain=plain, thoughts=thoughts).view(one)
    view.think("so it ")
    view.think("is.")
    view.write("It is.")
    view.clear()
    shown = one.out.getvalue() + one.err.getvalue()  # type: ignore[attr-defined]
    assert ("so it" in shown) is thoughts
    assert "It is." in shown
    assert ("words" in shown) is not thoughts


def test_events_are_lines_of_json() -> None:
    one = terminal(out_tty=False)
    view = Events(one)
    view.think("hm\n")
    view.update("figures")
    view.write("é\x1b[31m", underlined=True)
    view.clear()
    view.event({"type": "end", "seed": 1})
    lines = one.out.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [json.loads(line) for line in lines] == [
        {"type": "thinking", "text": "hm\n"},
        {"type": "text", "text": "é\x1b[31m"},
        {"type": "end", "seed": 1},
    ]
    assert "\x1b" not in "".join(lines)
    assert one.err.getvalue() == ""  # type: ignore[attr-defined]


def test_muted_shows_figures_only_and_takes_them_away() -> None:
    one = terminal(out_tty=False)
    view = Muted(one)
    view.write("text")
    view.think("thought")
    view.update("figures")
    assert one.err.getvalue().endswith("figures\r")  # type: ignore[attr-defined]
    view.clear()
    assert one.err.getvalue().endswith("\r\x1b[J\r")  # type: ignore[attr-defined]
    assert one.out.getvalue() == ""  # type: ignore[attr-defined]
