"""What is confirmed is what was shown, every key does what it says, and the screen shows all of a change."""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import stat
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from select import select as ready

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from localspec.edit.confirm import (
    Accepted,
    AtTerminal,
    Change,
    Decision,
    Declined,
    EditorFailed,
    Retry,
    confirm,
    in_editor,
)
from localspec.edit.diff import Hunk, hunks, select
from localspec.ui.diff import render
from localspec.ui.keys import ENTER, Keys
from localspec.ui.terminal import Terminal

BEFORE = "".join(f"{n}\n" for n in range(1, 31))
AFTER = BEFORE.replace("2\n", "two\n", 1).replace("9\n", "nine\n", 1).replace("25\n", "")
FIRST = BEFORE.replace("2\n", "two\n", 1)


class Script:
    """A desk where the keys are known beforehand: at the end of them the keyboard ends."""

    def __init__(
        self, keys: Sequence[str], lines: Sequence[str | None] = (), edits: Sequence[str | None] = ()
    ) -> None:
        self.keys, self.lines, self.edits = list(keys), list(lines), list(edits)
        self.shown: list[tuple[Hunk, ...]] = []
        self.said = ""
        self.edited: list[str] = []

    def show(self, changes: Sequence[Hunk]) -> None:
        self.shown.append(tuple(changes))

    def say(self, text: str) -> None:
        self.said += text

    def key(self) -> str | None:
        return self.keys.pop(0) if self.keys else None

    def line(self) -> str | None:
        return self.lines.pop(0)

    def edit(self, text: str) -> str | None:
        self.edited.append(text)
        return self.edits.pop(0)


ANSWERS = {
    "yes": ("y", Accepted(AFTER)),
    "capital": ("Y", Accepted(AFTER)),
    "Enter": (ENTER, Accepted(AFTER)),
    "no": ("n", Declined()),
    "nobody": ("", Declined()),
    "other keys ask again": (["x", "", "?", " ", "n"], Declined()),
    "hunks: all": ("hyy", Accepted(AFTER)),
    "hunks: first": ("hyn", Accepted(FIRST.replace("9\n", "nine\n", 1))),
    "hunks: last": ("hny", Accepted(BEFORE.replace("25\n", ""))),
    "hunks: none": ("hnn", Declined()),
    "hunks: this and the rest": ("ha", Accepted(AFTER)),
    "hunks: the rest": ("hna", Accepted(BEFORE.replace("25\n", ""))),
    "hunks: not the rest": ("hyd", Accepted(FIRST.replace("9\n", "nine\n", 1))),
    "hunks: quit keeps what was chosen": ("hyq", Accepted(FIRST.replace("9\n", "nine\n", 1))),
    "hunks: quit at once": ("hq", Declined()),
    "hunks: split": ("hsynn", Accepted(FIRST)),
    "hunks: what cannot be split asks again": ("hnsy", Accepted(BEFORE.replace("25\n", ""))),
    "hunks: help asks again": ("h?yy", Accepted(AFTER)),
    "hunks: Enter has no effect": (["h", ENTER, "n", ENTER, "n"], Declined()),
    "hunks: nobody": ("hy", Declined()),
}


@pytest.mark.parametrize(("keys", "decision"), ANSWERS.values(), ids=ANSWERS)
def test_keys_decide(keys: Sequence[str], decision: Decision) -> None:
    desk = Script(keys)
    assert confirm(Change(BEFORE, AFTER), desk) == decision
    assert desk.shown[0] == hunks(BEFORE, AFTER)
    assert not desk.keys


@given(st.lists(st.sampled_from(["y", "n", "h", "s", "a", "d", "q", "?", ENTER, "x", ""]), max_size=12))
def test_only_what_was_shown_is_accepted(keys: list[str]) -> None:
    desk = Script("")
    desk.keys = keys
    decision = confirm(Change(BEFORE, AFTER), desk)
    if isinstance(decision, Accepted):
        shown = {line for changes in desk.shown for hunk in changes for line in hunk.lines if line[0] != " "}
        assert {
            line for hunk in hunks(BEFORE, decision.text) for line in hunk.lines if line[0] != " "
        } <= shown
        assert decision.text != BEFORE


def test_the_prompt_shows_what_enter_does() -> None:
    calm, worried = Script(ENTER), Script(ENTER)
    assert confirm(Change(BEFORE, AFTER), calm) == Accepted(AFTER)
    assert confirm(Change(BEFORE, AFTER, lambda _: ("It no longer parses.",)), worried) == Declined()
    assert calm.said == "Write this? [Y]es [n]o [h]unks [e]ditor [r]etry [?] "
    assert worried.said == "It no longer parses.\nWrite this? [y]es [N]o [h]unks [e]ditor [r]etry [?] "


def test_the_question_names_the_file() -> None:
    desk = Script("y")
    confirm(Change(BEFORE, AFTER, name="a.py"), desk)
    assert desk.said.startswith("Write a.py? [Y]es")


def test_who_wants_it_in_spite_of_concerns_gets_it() -> None:
    for keys in ("y", "ha", "hyy"):
        assert confirm(Change(BEFORE, AFTER, lambda _: ("odd",)), Script(keys)) == Accepted(AFTER)


def test_a_choice_of_hunks_that_causes_concern_is_asked_about_again() -> None:
    def check(text: str) -> tuple[str, ...]:
        return ("half a change",) if "two" in text and "25\n" in text else ()

    desk = Script(["h", "y", "n", ENTER])
    assert confirm(Change(BEFORE, AFTER, check), desk) == Declined()
    assert desk.said.count("half a change\n") == 1
    half = select(BEFORE, hunks(BEFORE, AFTER), {0})
    assert desk.shown[-1] == hunks(BEFORE, half)
    assert confirm(Change(BEFORE, AFTER, check), Script("hyny")) == Accepted(half)


def test_what_the_editor_made_is_shown_checked_and_asked_about() -> None:
    desk = Script(["e", "y"], edits=["mine\r\n"])
    assert confirm(Change(BEFORE, AFTER, lambda text: ("!",) if text == AFTER else ()), desk) == Accepted(
        "mine\r\n"
    )
    assert desk.edited == [AFTER]
    assert desk.shown == [hunks(BEFORE, AFTER), hunks(BEFORE, "mine\r\n")]
    assert "[Y]es" in desk.said.splitlines()[-1]


@pytest.mark.parametrize("left", [None, AFTER])
def test_an_editor_that_fails_or_changes_nothing_leads_back_to_the_question(left: str | None) -> None:
    desk = Script("ey", edits=[left])
    assert confirm(Change(BEFORE, AFTER), desk) == Accepted(AFTER)
    assert len(desk.shown) == 1


def test_a_text_edited_back_to_the_old_one_needs_no_answer() -> None:
    desk = Script("ey", edits=[BEFORE])
    assert confirm(Change(BEFORE, AFTER), desk) == Declined()
    assert desk.keys == ["y"]
    assert confirm(Change(BEFORE, BEFORE), Script("y")) == Declined()


def test_retry_takes_one_more_line() -> None:
    assert confirm(Change(BEFORE, AFTER), Script("r", [" keep 25 "])) == Retry("keep 25")
    assert confirm(Change(BEFORE, AFTER), Script("r", [""])) == Retry("")
    assert confirm(Change(BEFORE, AFTER), Script("rn", [None])) == Declined()


def test_help_names_every_key() -> None:
    for keys, names in (("?", "ynher?"), ("h?", "ynqads?")):
        desk = Script(keys)
        confirm(Change(BEFORE, AFTER), desk)
        assert "".join(re.findall(r"(\S) - ", desk.said)) == names


# The editor


def editor(tmp_path: Path, code: str) -> dict[str, str]:
    script = tmp_path / "an editor.py"
    script.write_text(f"import os, pathlib, sys\nfile = pathlib.Path(sys.argv[-1])\n{code}\n")
    return {"VISUAL": f"{shlex.quote(sys.executable)} {shlex.quote(str(script))} --wait", "EDITOR": "false"}


def edited(text: str, env: dict[str, str], name: str = "f.py") -> str:
    with open(os.devnull, "r+b") as nothing:
        return in_editor(text, name, env, nothing.fileno(), nothing.fileno())


@pytest.mark.parametrize("text", ["a\r\nb\rc\n", "", "é🚀\u2028 no end", "\ufeffx\n"])
def test_the_editor_gets_and_gives_the_text_to_the_byte(text: str, tmp_path: Path) -> None:
    env = editor(tmp_path, "file.write_bytes(b'<' + file.read_bytes() + b'>')")
    assert edited(text, env) == f"<{text}>"


def test_the_file_is_private_named_like_the_original_and_gone_afterwards(tmp_path: Path) -> None:
    record = tmp_path / "record"
    code = f"""
modes = [oct(path.stat().st_mode) for path in (file, file.parent)]
pathlib.Path({str(record)!r}).write_text(' '.join([*modes, sys.argv[1], str(file)]))
os.replace(file, str(file) + '~'); file.write_text('new')  # as editors save
"""
    old = os.umask(0)
    try:
        assert edited("x", editor(tmp_path, code), "../dir/-e.py") == "new"
    finally:
        os.umask(old)
    modes, folder, flag, path = record.read_text().split(" ")
    assert [modes, folder] == [oct(stat.S_IFREG | 0o600), oct(stat.S_IFDIR | 0o700)]
    assert flag == "--wait"
    assert Path(path).name == "-e.py"
    assert not Path(path).parent.exists()


FAILURES = {
    "gives up": "sys.exit(3)",
    "is interrupted": "os.kill(os.getpid(), 2)",
    "removes the file": "file.unlink()",
    "no UTF-8": "file.write_bytes(b'\\xff')",
}


@pytest.mark.parametrize("code", FAILURES.values(), ids=FAILURES)
def test_an_editor_that_fails_is_an_error(code: str, tmp_path: Path) -> None:
    with pytest.raises(EditorFailed):
        edited("x", editor(tmp_path, f"sys.stderr.close()\n{code}"))


@pytest.mark.parametrize("command", ["/no/such/editor", "a 'quote", "/"])
def test_a_command_that_is_none_is_an_error_with_a_hint(command: str) -> None:
    with pytest.raises(EditorFailed, match="editing failed") as failed:
        edited("x", {"EDITOR": command})
    assert "EDITOR" in failed.value.hint


def test_blank_variables_are_none(tmp_path: Path) -> None:
    vi = tmp_path / "vi"
    vi.write_text('#!/bin/sh\nprintf vi > "$1"\n')
    vi.chmod(0o755)
    for env in ({"VISUAL": " "}, {"VISUAL": "", "EDITOR": ""}, {}):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
            assert edited("x", env) == "vi"


def test_ctrl_c_in_the_editor_is_the_editors(tmp_path: Path) -> None:
    code = """
import signal
signal.signal(2, lambda *_: file.write_text("cut"))
os.kill(os.getppid(), 2)
os.kill(os.getpid(), 2)
"""
    assert edited("x", editor(tmp_path, code)) == "cut"


# The screen


def shown(before: str, after: str, columns: int = 80, color: bool = False) -> list[str]:
    return render(hunks(before, after), columns, color).splitlines()


def test_a_diff_without_colour_is_plain() -> None:
    assert shown("a\nb\nc\n", "a\nB\nc\n") == ["@@ -1,3 +1,3 @@", " a", "-b", "+B", " c"]


def test_changed_words_are_marked() -> None:
    rows = shown("x = foo(1, 2)\nsame\n", "x = foo(1, 33)\nsame\n", color=True)
    assert rows[1:3] == [
        "\x1b[31m-x = foo(1, \x1b[m\x1b[31;7m2\x1b[m\x1b[31m)\x1b[m",
        "\x1b[32m+x = foo(1, \x1b[m\x1b[32;7m33\x1b[m\x1b[32m)\x1b[m",
    ]


def test_lines_that_have_little_in_common_are_not_compared() -> None:
    assert "\x1b[31;7m" not in "".join(shown("one two three\n", "four five = six\n", color=True))


def test_words_are_compared_with_the_line_they_replace() -> None:
    rows = shown("keep = one(1)\n", "new line here\nkeep = one(2)\n", color=True)
    assert [re.findall(r";7m(.*?)\x1b", row) for row in rows[1:]] == [["1"], [], ["2"]]


SPELLED = {
    "line end comes": ("a\nb\n", "a\r\nb\n", "+a^M"),
    "CR line end comes": ("a\nb\n", "a\rb\n", "+a<U+000D>"),
    "LF among CRLF": ("a\r\nb\r\n", "a\nb\r\n", "+a^J"),
    "CRLF as before": ("a\r\nb\r\n", "A\r\nb\r\n", "+A"),
    "trailing space": ("a\n", "a \t\n", "+a·→\t"),
    "only space": ("a\n\n", "a\n  \n", "+··"),
    "tab inside": ("a\n", "\ta\tb\n", "+\ta\tb"),
    "bidi": ("a\n", "a\u202eb\n", "+a<U+202E>b"),
    "zero width": ("a\n", "a\u200b\u200d\ufeff\n", "+a<U+200B><U+200D><U+FEFF>"),
    "escape": ("a\n", "\x1b[2J\x9b\n", "+<U+001B>[2J<U+009B>"),
    "NUL and backspace": ("a\n", "\0\b\n", "+<U+0000><U+0008>"),
    "separator": ("a\n", "a\u2028b\x0b\x0c\x85\n", "+a<U+2028>b<U+000B><U+000C><U+0085>"),
    "no-break space": ("a b\n", "a\xa0b\n", "+a<U+00A0>b"),
    "Hangul filler": ("a\n", "a\u3164\n", "+a<U+3164>"),
    "variation selectors": ("a\n", "a\ufe00\U000e0100\n", "+a<U+FE00><U+E0100>"),
    "tag": ("a\n", "a\U000e0041\n", "+a<U+E0041>"),
    "surrogate": ("a\n", "a\udc9b\n", "+a<U+DC9B>"),
    "a mark on our sign": ("a\n", "\u0338e\u0301\n", "+<U+0338>e\u0301"),
    "wide": ("a\n", "中🚀é\n", "+中🚀é"),
}


@pytest.mark.parametrize(("before", "after", "row"), SPELLED.values(), ids=SPELLED)
def test_what_cannot_be_seen_is_spelled_out(before: str, after: str, row: str) -> None:
    assert row in render(hunks(before, after), 80, False).split("\n")


def test_trailing_space_is_coloured_and_odd_characters_marked() -> None:
    (row,) = shown("", "a\u202e \n", color=True)[1:]
    assert row == "\x1b[32m+a\x1b[m\x1b[32;7m<U+202E>\x1b[m\x1b[41m \x1b[m"


def test_a_missing_line_end_is_shown() -> None:
    assert shown("a\n", "a")[1:] == ["-a", "+a", "\\ No newline at end of file"]
    assert shown("a", "a\nb")[1:] == [
        "-a",
        "\\ No newline at end of file",
        "+a",
        "+b",
        "\\ No newline at end of file",
    ]


@pytest.mark.parametrize("columns", [20, 40, 5, 1])
@pytest.mark.parametrize("color", [False, True])
def test_long_lines_are_folded_and_all_is_there(columns: int, color: bool) -> None:
    text = "+forged -row " * 9 + "中文🚀" * 9 + "\tx" * 9 + "e\u0301" * 30
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", row) for row in shown("", text + "\n", columns, color)]
    start = next(n for n, row in enumerate(rows) if row.startswith("+"))
    assert {row[0] for row in rows[start + 1 :]} == {"…"}
    assert "".join(row[1:] for row in rows[start:]) == text
    if columns > 4:
        assert max(width(row, columns) for row in rows) < columns


def width(row: str, columns: int) -> int:
    """Columns that a row takes; a tab never leaves the screen."""
    at = 0
    for char in row:
        at = min(at + 8 - at % 8, columns - 1) if char == "\t" else at + cell_len(char)
    return at


@given(st.text(st.characters(), max_size=40), st.text(st.characters(), max_size=40), st.integers(1, 90))
def test_nothing_in_a_text_drives_the_terminal(before: str, after: str, columns: int) -> None:
    out = render(hunks(before, after), columns, True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert all(char in "\n\t" or char.isprintable() for char in plain)
    assert all(row[0] in "@ +-\\…" for row in plain.split("\n")[:-1])


@pytest.mark.parametrize("line", ["a " * 50_000, ", " * 50_000, "x" * 100_000])
def test_huge_lines_are_shown_without_comparing_words(line: str) -> None:
    rows = shown(line + "1\n", line + "2\n", 10**6, color=True)
    assert [";7m" in row for row in rows] == [False] * 3


# All together


@pytest.fixture
def person() -> Iterator[tuple[int, int, AtTerminal]]:
    """The person's end of a terminal, the program's, and a desk at it."""
    master, slave = pty.openpty()
    with os.fdopen(os.dup(slave), "w", encoding="utf-8") as err:
        terminal = Terminal(io.StringIO(), err, False, True, False, err_live=True)
        yield master, slave, AtTerminal(terminal, Keys(slave), "f.txt", {"VISUAL": "false"})
    os.close(master)
    os.close(slave)


def read_until(master: int, end: str) -> str:
    seen = b""
    while not seen.endswith(end.encode()):
        assert ready([master], [], [], 30)[0], seen
        seen += os.read(master, 4096)
    return seen.decode().replace("\r\n", "\n")


def test_a_person_answers_at_a_terminal(person: tuple[int, int, AtTerminal]) -> None:
    master, slave, desk = person
    settings = termios.tcgetattr(slave)
    seen: list[str] = []

    def answer() -> None:
        for prompt, typed in (("[?] ", b"?"), ("[?] ", b"e"), ("[?] ", b"h"), ("]? ", b"y"), ("]? ", b"n")):
            seen.append(read_until(master, prompt))
            while termios.tcgetattr(slave)[3] & termios.ICANON:
                os.sched_yield()
            os.write(master, typed)

    thread = threading.Thread(target=answer)
    thread.start()
    decision = confirm(Change(BEFORE, AFTER, lambda _: ()), desk)
    thread.join()
    assert decision == Accepted(FIRST.replace("9\n", "nine\n", 1))
    assert termios.tcgetattr(slave) == settings
    assert seen[0].startswith("@@ -1,12 +1,12 @@\n 1\n-2\n+two\n")
    assert "y - yes" in seen[1]
    assert "error: false ended with status 1" in seen[2]
    assert "(1/2) Apply this change [y,n,q,a,d,s,?]? " in seen[3]
    assert "(2/2) Apply this change [y,n,q,a,d,?]? " in seen[4]


def test_what_was_typed_before_the_change_was_shown_is_no_answer(person: tuple[int, int, AtTerminal]) -> None:
    master, slave, desk = person
    os.write(master, b"y\ny\n")
    ready([slave], [], [])  # typed text arrives by way of another thread
    desk.show(hunks(BEFORE, AFTER))
    os.write(master, b"n")
    assert desk.key() == "n"


def test_what_is_said_cannot_drive_the_terminal(person: tuple[int, int, AtTerminal]) -> None:
    master, _, desk = person
    desk.say("it \x1b[2Jfails\u202e.\n")
    assert read_until(master, "\n") == "it [2Jfails.\n"
