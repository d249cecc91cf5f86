"""The prompt on a terminal of its own, key by key, and its history file."""

from __future__ import annotations

import io
import json
import re
import signal
import stat
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from screen import Screen

from localspec.chat import history, repl
from localspec.chat.repl import Prompt, fit_parts
from localspec.ui.terminal import Terminal

BAR = "qwen3-4b · ctx 1.2k/8k · 3.4 tok/pass · 61 tok/s · 1.6x plain · ngram+draft"
CHILD = """
import sys
from pathlib import Path
from localspec.chat.repl import Prompt
from localspec.ui.terminal import Terminal

past, bar, vi, keys = sys.argv[1:]
prompt = Prompt(
    Terminal.standard("auto"),
    open("/dev/tty") if keys else sys.stdin,
    history_path=Path(past) if past else None,
    toolbar=lambda: bar,
    models=lambda: ["qwen3-4b", "qwen3-8b"],
    vi=bool(vi),
)
while (text := prompt.read()) is not None:
    print(repr(text), flush=True)
print("left", flush=True)
"""


def child(past: Path | str = "", bar: str = BAR, vi: str = "", keys: str = "") -> list[str]:
    return [sys.executable, "-c", CHILD, str(past), bar, vi, keys]


def begin(screen: Screen, bar: str = BAR) -> Screen:
    screen.wait("> ")
    screen.wait(lambda: bar in screen.rows)
    return screen


def answered(screen: Screen, text: str) -> None:
    """Wait for what the child says to a message, and for the next prompt."""
    screen.wait(lambda: text in screen.rows and screen.rows[-2:] == [">", BAR])


def test_a_line_its_toolbar_and_leaving():
    with Screen(child()) as screen:
        begin(screen)
        assert screen.rows == [">", BAR]
        screen.send("hello wrld\x1b[D\x1b[D\x1b[Do\x1b[F!")
        screen.wait("> hello world!")
        screen.send("\r")
        answered(screen, "'hello world!'")
        assert screen.rows == ["> hello world!", "'hello world!'", ">", BAR]
        screen.send("\x04")
        assert screen.exit_status() == 0
        assert screen.rows == ["> hello world!", "'hello world!'", ">", "left"]


def test_enter_on_nothing_sends_nothing():
    with Screen(child()) as screen:
        begin(screen).send("\r  \rx\r")
        screen.wait("'  x'")
        assert "''" not in screen.text


def test_several_lines_by_alt_enter_and_backslash():
    with Screen(child()) as screen:
        begin(screen).send("one\x1b\rtwo\\\rthree")
        screen.wait(". three")
        assert screen.rows == ["> one", ". two", ". three", BAR]
        screen.send("\r")
        screen.wait(r"'one\ntwo\nthree'")


def test_a_block_is_sent_when_its_quotes_end_it():
    with Screen(child()) as screen:
        begin(screen).send('"""\rone\r\rtwo')
        screen.wait(". two")
        assert screen.rows == ['> """', ". one", ".", ". two", BAR]
        screen.send('"""\r')
        screen.wait('\'"""\\none\\n\\ntwo"""\'')


def test_a_paste_never_sends():
    with Screen(child()) as screen:
        begin(screen).paste("def f():\n\treturn 1\n\nf()\n")
        screen.wait(". f()")
        assert screen.rows == ["> def f():", ".     return 1", ".", ". f()", ".", BAR]
        screen.send("\r")
        screen.wait(r"'def f():\n\treturn 1\n\nf()\n'")


def test_ctrl_c_clears_then_tells_then_leaves():
    with Screen(child()) as screen:
        begin(screen).send("half a thou")
        screen.wait("half a thou")
        screen.send("\x03")
        screen.wait(lambda: screen.rows == [">", BAR])
        screen.send("\x03")
        screen.wait(repl.LEAVING)
        screen.send("x")
        screen.wait(lambda: screen.rows == ["> x", BAR])
        screen.send("\x7f\x03")
        screen.wait(repl.LEAVING)
        screen.send("\x03")
        assert screen.exit_status() == 0
        assert screen.rows[-1] == "left"


def test_a_signal_is_as_good_as_the_key():
    with Screen(child()) as screen:
        begin(screen).send("typed")
        screen.wait("typed")
        screen.interrupt(signal.SIGINT)
        screen.wait(lambda: screen.rows == [">", BAR])
        screen.send("on\r")
        screen.wait("'on'")


def test_history_is_searched_walked_and_kept(tmp_path):
    path = tmp_path / "state" / "history"
    with Screen(child(path)) as screen:
        begin(screen).send("first words\r")
        answered(screen, "'first words'")
        screen.send("second\x1b\rlines\r")
        answered(screen, r"'second\nlines'")
        screen.send("first words\r\x04")
        assert screen.exit_status() == 0
    assert [json.loads(line) for line in path.read_text().splitlines()][-1] == "first words"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with Screen(child(path)) as screen:
        begin(screen).send("\x12sec")
        screen.wait("> second")
        screen.send("\r\r")
        answered(screen, r"'second\nlines'")
        screen.send("\x1b[A\x1b[A\x1b[A")
        screen.wait("> first words")


def test_without_a_history_path_lives_as_long_as_the_prompt():
    with Screen(child()) as screen:
        begin(screen).send("once\r")
        answered(screen, "'once'")
        screen.send("\x1b[A\r")
        screen.wait(lambda: screen.rows.count("'once'") == 2)


def test_tab_completes_and_choosing_does_not_send(tmp_path):
    (tmp_path / "notes.txt").touch()
    with Screen(child()) as screen:
        begin(screen).send("/mo\t")
        screen.wait("> /model ")
        screen.wait(lambda: screen.cursor == (9, 0))
        screen.send("q\t")
        screen.wait("qwen3-8b")
        screen.wait("> /model qwen3-")
        screen.send("\t\t")
        screen.wait("> /model qwen3-8b")
        screen.send("\r")
        screen.wait(lambda: screen.text.count("qwen3-8b") == 1)
        screen.send("\r")
        answered(screen, "'/model qwen3-8b'")
        screen.send(f"read @{tmp_path}/no\t")
        screen.wait(lambda: f"read @{tmp_path}/notes.txt" in "".join(row[2:] for row in screen.rows))


def test_typing_alone_completes_nothing():
    with Screen(child()) as screen:
        begin(screen).send("/model")
        screen.wait("> /model")
        screen.send(" q")
        screen.wait("> /model q")
        assert screen.rows == ["> /model q", BAR]


def test_ctrl_l_clears_the_screen():
    with Screen(child()) as screen:
        begin(screen).send("one\r")
        answered(screen, "'one'")
        screen.send("two\x0c")
        screen.wait(lambda: screen.rows == ["> two", BAR])


def test_an_editor_is_opened(tmp_path):
    script = tmp_path / "editor"
    script.write_text('#!/bin/sh\nprintf "edited\\nlines" >> "$1"\n')
    script.chmod(0o700)
    with Screen(child(), env={"VISUAL": str(script)}) as screen:
        begin(screen).send("typed and \x18\x05")
        screen.wait(lambda: screen.rows[-2:] == [". lines", BAR])
        assert screen.rows[-3:] == ["> typed and edited", ". lines", BAR]
        screen.send("\r")
        screen.wait(r"'typed and edited\nlines'")


def test_vi_keys():
    with Screen(child(vi="vi")) as screen:
        begin(screen).send("hello\x1b\r")
        screen.wait(lambda: screen.rows[:2] == ["> hello", "."])
        screen.send("world")
        screen.wait(". world")
        screen.send("\x1b")
        screen.send("0")
        screen.wait(lambda: screen.cursor == (2, 1))
        screen.send("xGA!\r")
        screen.wait(r"'hello\norld!'")


def test_twenty_columns():
    with Screen(child(), columns=20, lines=10) as screen:
        begin(screen, "qwen3-4b")
        screen.send("a question that is far longer")
        screen.wait("longer")
        assert screen.rows == ["> a question that is", "   far longer", "qwen3-4b"]
        screen.resize(40, 10)
        screen.wait("qwen3-4b · ctx 1.2k/8k · 3.4 tok/pass")
        screen.send("\r")
        screen.wait("'a question that is far longer'")


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {}])
def test_no_color(env):
    with Screen(child(), env=env) as screen:
        begin(screen).send("/model q\t")
        screen.wait("qwen3-8b")
        colored = re.search(r"\x1b\[[0-9;]*(?<![0-9])(?:3[0-8]|4[0-8]|9[0-7])[;m]", screen.raw)
        assert bool(colored) is not bool(env)


def test_a_dumb_terminal_gets_plain_lines():
    with Screen(child(), env={"TERM": "dumb"}) as screen:
        screen.wait("> ")
        screen.send("one\\\r")
        screen.wait(". ")
        screen.send("two\r")
        screen.wait(r"'one\ntwo'")
        screen.send('"""\rblock\r"""\r')
        screen.wait('\'"""\\nblock\\n"""\'')
        screen.send("half\x03")
        screen.wait(repl.LEAVING)
        screen.send("\rx\r")
        screen.wait("'x'")
        screen.send("\x04")
        assert screen.exit_status() == 0
        assert "\x1b" not in screen.raw
        assert BAR not in screen.text


def test_on_a_dumb_terminal_ctrl_c_twice_leaves():
    with Screen(child(), env={"TERM": "dumb"}) as screen:
        screen.wait("> ")
        screen.send("\x03")
        screen.wait(repl.LEAVING)
        screen.wait(lambda: screen.rows[-1] == ">")
        screen.send("\x03")
        assert screen.exit_status() == 0
        assert screen.rows[-1] == "left"


def test_keys_come_from_the_terminal_and_stdout_has_only_answers(tmp_path):
    """With stdin and stdout elsewhere the prompt still works, on stderr."""
    answers = tmp_path / "answers"
    shell = f'echo data | "$@" > {answers}; echo status $?'
    with Screen(["sh", "-c", shell, "sh", *child(keys="tty")]) as screen:
        begin(screen).send("hello\r")
        screen.wait(lambda: screen.rows[:2] == ["> hello", ">"])
        screen.send("\x04")
        screen.wait("status 0")
    assert answers.read_text() == "'hello'\nleft\n"


HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202egnp\x9b2J\r<b>&lt;</b>{0}%s"


def test_a_hostile_history_is_data(tmp_path):
    path = tmp_path / "history"
    path.write_text("not json\n[1]\n" + json.dumps(HOSTILE) + "\n{\n" + "[" * 10_000 + "\n")
    with Screen(child(path)) as screen:
        begin(screen).send("\x1b[A")
        screen.wait("^[]0;owned^G^[[2J\ufffdgnp<9b>2J^M<b>&lt;</b>{0}%s")
        assert "\x1b]0" not in screen.raw
        assert "\u202e" not in screen.raw
        screen.send("\r")
        screen.wait(lambda: "gnp" in screen.text and "left" not in screen.text)


def test_a_hostile_toolbar_is_text():
    with Screen(child(bar="name\x1b]0;owned\x07\n<b>x</b>\u202e · more")) as screen:
        screen.wait("name]0;owned <b>x</b> · more")
        assert "\x1b]0" not in screen.raw


def test_the_history_file_keeps_each_message_once_and_only_so_many(tmp_path):
    path = tmp_path / "history"
    path.write_text("".join(json.dumps(str(i % 1500)) + "\n" for i in range(3000)))
    path.chmod(0o644)
    assert history.load(path) == [str(i) for i in range(1499, 499, -1)]
    assert len(path.read_text().splitlines()) == history.KEPT  # it was put in order
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    history.store(path, "700")
    assert history.load(path)[:2] == ["700", "1499"]
    assert history.load(path).count("700") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["history"]


def test_a_message_sent_again_is_the_newest(tmp_path):
    past = repl._History(tmp_path / "history")
    for text in ("a", "b", "a"):
        past.append_string(text)
    assert past.get_strings() == ["b", "a"]
    assert history.load(tmp_path / "history") == ["a", "b"]


def test_only_the_end_of_a_huge_history_is_read(tmp_path):
    path = tmp_path / "history"
    path.write_bytes(b"x" * (history.MOST_BYTES + 5) + b'\n"last"\n')
    assert history.load(path) == ["last"]


def test_a_history_that_others_may_read_is_closed_to_them(tmp_path):
    path = tmp_path / "history"
    path.touch(mode=0o644)
    history.store(path, "secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_history_that_cannot_be_kept_costs_nothing_else(tmp_path):
    (tmp_path / "file").touch()
    past = repl._History(tmp_path / "file" / "history")
    past.append_string("text")
    assert past.get_strings() == ["text"]
    assert history.load(tmp_path / "file" / "history") == []


@given(st.text(min_size=1))
def test_any_message_survives_the_file(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("history") / "history"
    history.store(path, text)
    assert history.load(path) == [text]


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (200, BAR),
        (75, BAR),
        (74, BAR.rpartition(" · ")[0]),
        (30, "qwen3-4b · ctx 1.2k/8k"),
        (20, "qwen3-4b"),
        (3, "qwe"),
    ],
)
def test_parts_that_do_not_fit_are_left_out_from_the_right(columns, shown):
    assert fit_parts(BAR, columns) == shown


@given(st.text(alphabet="a中 ·e\u0301"), st.integers(0, 30))
def test_what_is_fitted_fits(text, columns):
    assert cell_len(fit_parts(text, columns)) <= columns


def test_without_a_terminal_lines_are_read_plainly():
    out = io.StringIO()
    terminal = Terminal(out, out, False, False, False)
    prompt = Prompt(terminal, io.StringIO("\none\n"), env={"TERM": "xterm"})
    assert prompt.read() == "one"
    assert prompt.read() is None
    assert out.getvalue() == "> > > \n"
