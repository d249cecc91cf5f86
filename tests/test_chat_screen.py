"""The whole of `localspec chat` as a user sees it: golden screens of a terminal."""

from __future__ import annotations

import json
import re
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import tiny
from chats import COMMAND, ENV, ask, begun, chat, leave, prompted, saying, shown
from inline_snapshot import snapshot
from screen import Screen

from localspec.chat.repl import LEAVING

STORY = "Write a long song about the sea. Repeat the chorus after every verse."
PARTS = 16
LONG = "\n\n".join(f"Paragraph {i} has\nmore than one row" for i in range(PARTS))
TOO_MUCH = "the last question, which is too much for what is left " + "x" * 20
THINKS = "assistant\n' + ('' if enable_thinking is defined and not enable_thinking else '<think>\n') }}"

MARKDOWN = """# Title

Some **bold**, *slanted* and `code`.

- one
- two

| a | b |
|---|---|
| 1 | 2 |

```python
def f(x):
    return x
```

The end."""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers at once."""
    return tiny.write_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


def test_typing_editing_and_an_answer_in_markdown(model: Path, tmp_path: Path) -> None:
    with chat("-m", model, *saying(tmp_path, MARKDOWN), "--seed", "1") as screen:
        screen.send("hello wrld\x1b[D\x1b[D\x1b[Do\x1b[F!")
        ask(screen, "")
        leave(screen)
        assert shown(screen) == snapshot("""\
/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves
> hello world!
Title

Some bold, slanted and code.

 • one
 • two

 a  b
 ────
 1  2

```python
def f(x):
    return x
```
FIGURES
>\
""")


def test_twenty_columns(model: Path, tmp_path: Path) -> None:
    text = f"日本語 words and a very-long-word-that-breaks é.\n\n{MARKDOWN}"
    with chat("-m", model, *saying(tmp_path, text), "--seed", "1", columns=20, lines=30) as screen:
        ask(screen, "a question longer than a row 日本語")
        leave(screen)
        assert shown(screen) == snapshot("""\
/help lists
commands, Ctrl-C
stops an answer,
Ctrl-D leaves
> a question longer
  than a row 日本語
日本語 words and a
very-long-word-that-
breaks é.

Title

Some bold, slanted
and code.

 • one
 • two

 a  b
 ────
 1  2

```python
def f(x):
    return x
```
FIGURES
>\
""")


def test_several_lines_and_a_paste_are_one_message(model: Path, tmp_path: Path) -> None:
    with chat("-m", model, *saying(tmp_path, "Seen."), "--session", "kept") as screen:
        screen.send("first\x1b\rsecond\\\rthird ")
        screen.paste("pasted\n\tline\n")
        screen.wait(".     line")
        assert screen.raw.count("Seen.") == 0
        ask(screen, "end")
        leave(screen)
        assert shown(screen) == snapshot("""\
/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves
> first
. second
. third pasted
.     line
. end
Seen.
FIGURES
>\
""")
    assert said(tmp_path) == ["first\nsecond\nthird pasted\n\tline\nend", "Seen."]


def test_what_is_typed_while_an_answer_comes_waits_for_the_prompt(model: Path, tmp_path: Path) -> None:
    with chat("-m", model, *saying(tmp_path, LONG), lines=60) as screen:
        screen.send("go on\r")
        screen.wait("Paragraph 3")
        screen.send("and then?\rhalf")
        screen.wait(lambda: screen.rows[-2:-1] == ["> half"])
        rows = [*screen.scrolled, *screen.rows]
        screen.send("\x03")
        leave(screen)
    assert [row for row in rows if row.startswith("Paragraph")] == 2 * LONG.replace("\nmore", " more").split(
        "\n\n"
    )
    assert "> and then?" in rows


@pytest.mark.slow
def test_a_paste_while_an_answer_comes_does_not_send_either(model: Path, tmp_path: Path) -> None:
    with chat("-m", model, *saying(tmp_path, LONG)) as screen:
        screen.send("go on\r")
        screen.wait("Paragraph 3")
        screen.send("\x1b[200~two\rlines\r\x1b[201~")
        screen.wait(lambda: screen.rows[-4:-1] == ["> two", ". lines", "."])
        screen.send("\x03")
        leave(screen)


def test_the_status_stands_below_the_text_while_it_comes() -> None:
    with chat("-n", "40", "--temp", "0") as screen:
        screen.send(f"{STORY}\r")
        screen.wait(lambda: "tokens/pass lately" in screen.text and screen.rows[-2][:1].isalpha())
        assert "tokens/s" in screen.rows[-1]
        assert screen.cursor == (0, len(screen.rows) - 1)
        prompted(screen)
        assert "lately" not in shown(screen)
        leave(screen)


@pytest.mark.parametrize("columns", [30, pytest.param(120, marks=pytest.mark.slow)])
def test_a_resize_in_the_middle_of_an_answer(model: Path, tmp_path: Path, columns: int) -> None:
    with chat("-m", model, *saying(tmp_path, LONG), columns=60) as screen:
        screen.send("go on\r")
        screen.wait("Paragraph 5 has")
        screen.resize(columns, 24)
        prompted(screen)
        seen = shown(screen)
        leave(screen)
    places = [seen.find(f"Paragraph {i} has") for i in range(PARTS)]
    assert -1 not in places
    assert places == sorted(places)
    assert sum(seen.count(f"Paragraph {i} has") > 1 for i in range(PARTS)) <= (columns < 60)


def test_no_color(model: Path, tmp_path: Path) -> None:
    with chat("-m", model, *saying(tmp_path, MARKDOWN), env={"NO_COLOR": "1"}) as screen:
        ask(screen, "hello")
        leave(screen)
        codes = {code for sgr in re.findall(r"\x1b\[([\d;]*)m", screen.raw) for code in sgr.split(";")}
    assert codes <= {"", "0", "1", "2", "3", "4", "22"}  # bold and the like


def test_a_dumb_terminal(model: Path, tmp_path: Path) -> None:
    with begun("-m", model, *saying(tmp_path, MARKDOWN), env={"TERM": "dumb"}) as screen:
        screen.wait(lambda: screen.rows[-1:] == [">"])
        screen.send("first\\\r")
        screen.wait(lambda: screen.rows[-1] == ".")
        screen.send("second\r")
        screen.wait(lambda: "FIGURES" in shown(screen) and screen.rows[-1] == ">")
        screen.send("\x04")
        assert screen.exit_status() == 0
        assert "\x1b" not in screen.raw
        assert shown(screen) == snapshot("""\
/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves
> first\\
. second
# Title

Some **bold**, *slanted* and `code`.

- one
- two

| a | b |
|---|---|
| 1 | 2 |

```python
def f(x):
    return x
```

The end.
FIGURES
>\
""")


def test_stdout_in_a_file_has_the_answers_only(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shell = ["sh", "-c", 'out=$1; shift; exec "$@" >"$out"', "sh", str(out)]
    command = [*shell, *COMMAND, "chat", "-t", "1", "-m", str(model), *saying(tmp_path, MARKDOWN)]
    with Screen(command, env=ENV) as screen:
        prompted(screen)
        ask(screen, "hello")
        ask(screen, "/help")
        ask(screen, "again")
        leave(screen)
        assert "Title" not in screen.raw
    assert out.read_text() == f"{MARKDOWN}\n" * 2


# Ctrl-C


def test_ctrl_c_at_the_prompt(model: Path) -> None:
    with chat("-m", model) as screen:
        screen.send("half a thou")
        screen.wait("> half a thou")
        screen.send("\x03")
        prompted(screen)
        screen.send("\x03")
        screen.wait(LEAVING)
        screen.send("\x03")
        assert screen.exit_status() == 0


def test_ctrl_c_stops_an_answer_which_is_kept(tmp_path: Path) -> None:
    with chat("--session", "kept", "--seed", "1", "-q") as screen:
        screen.send(f"{STORY}\r")
        screen.wait(lambda: len(screen.rows) > 2 and len("".join(screen.rows[1:-1])) > 40)
        screen.send("\x03")
        prompted(screen)
        leave(screen)
        rows = "".join(shown(screen).split())
    question, answer = said(tmp_path)
    assert (question, stopped(tmp_path)) == (STORY, [False, True])
    assert len(answer) > 40
    assert "".join(answer.split()).replace("*", "") in rows.replace("*", "")


@pytest.mark.slow
def test_ctrl_c_while_a_long_prompt_is_read(tmp_path: Path) -> None:
    with chat("--session", "kept", columns=200) as screen:
        screen.paste("the sea was calm. " * 1000)
        screen.send("\r")
        screen.wait("reading the prompt")
        screen.send("\x03")
        prompted(screen)
        assert "no answer" in screen.text
        assert "· stopped" in screen.text
        leave(screen)
    assert stopped(tmp_path) == [False]  # the question; there is no answer to keep


def test_ctrl_c_while_the_model_loads(model: Path) -> None:
    pressing = """
import os, signal, time
from localspec.ui.terminal import Terminal
progress = Terminal.progress
def pressed(self, text):
    if text.startswith("loading tiny"):
        Terminal.progress = progress
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
Terminal.progress = pressed
from localspec.cli import main
main()
"""
    with Screen([sys.executable, "-c", pressing, "chat", "-t", "1", "-m", str(model)], env=ENV) as screen:
        assert screen.exit_status() == 130
        assert screen.text == ""


# The context is full


def full(model: Path, tmp_path: Path, *options: str) -> AbstractContextManager[Screen]:
    return chat(
        *("-m", str(model), "--ctx", "256", "--session", "kept", "--seed", "1", *options),
        *saying(tmp_path, "word " * 10 + "end."),
    )


def fill(screen: Screen) -> None:
    for i in range(2):
        ask(screen, f"{i} " + "x" * 20)
    screen.send(f"{TOO_MUCH}\r")
    screen.wait("[n]ot now? ")


def test_a_full_context_not_now(model: Path, tmp_path: Path) -> None:
    with full(model, tmp_path) as screen:
        fill(screen)
        screen.send("xq\x1b[A")  # mean nothing here
        screen.send("n")
        prompted(screen)
        assert shown(screen) == snapshot("""\
/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves
> 0 xxxxxxxxxxxxxxxxxxxx
word word word word word word word word word word end.
FIGURES
> 1 xxxxxxxxxxxxxxxxxxxx
word word word word word word word word word word end.
FIGURES
> the last question, which is too much for what is left xxxxxxxxxxxxxxxxxxxx
error: the prompt has 255 tokens, the context 256
[c]ompact into a summary, [d]rop the oldest turns, [l]arger context, [n]ot now?
n
not asked; the Up key brings it back
>
tiny · ctx 180/256 · …\
""")
        screen.send("\x1b[A")
        screen.wait("> the last question, which")
        screen.send("\x03")
        leave(screen)
    assert len(said(tmp_path)) == 4


@pytest.mark.slow
def test_a_full_context_left_alone(model: Path, tmp_path: Path) -> None:
    with full(model, tmp_path) as screen:
        fill(screen)
        for key in ("\x03", "\x04", "\r"):
            screen.send(key)
            prompted(screen)
            screen.send(f"{TOO_MUCH}\r")
            screen.wait(lambda: "[n]ot now?" in screen.rows[-1])
        screen.send("n")
        prompted(screen)
        leave(screen)
    assert len(said(tmp_path)) == 4


@pytest.mark.slow
def test_a_full_context_without_its_oldest_turns(model: Path, tmp_path: Path) -> None:
    with full(model, tmp_path) as screen:
        fill(screen)
        screen.send("d")
        prompted(screen)
        leave(screen)
        assert shown(screen) == snapshot("""\
/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves
> 0 xxxxxxxxxxxxxxxxxxxx
word word word word word word word word word word end.
FIGURES
> 1 xxxxxxxxxxxxxxxxxxxx
word word word word word word word word word word end.
FIGURES
> the last question, which is too much for what is left xxxxxxxxxxxxxxxxxxxx
error: the prompt has 255 tokens, the context 256
[c]ompact into a summary, [d]rop the oldest turns, [l]arger context, [n]ot now?
d
4 messages left out
word word word word word word word word word word end.
FIGURES
>\
""")
    assert len(said(tmp_path)) == 6


def test_a_full_context_as_a_summary(model: Path, tmp_path: Path) -> None:
    with full(model, tmp_path, "--ctx", "512") as screen:
        for question in ("x" * 200, "1", "2"):
            ask(screen, question)
        screen.send(f"{TOO_MUCH}\r")
        screen.wait("[n]ot now? ")
        screen.send("c")
        prompted(screen)
        rows = shown(screen)
        leave(screen)
    summary = next(line["summary"] for line in lines(tmp_path, "kept") if "summary" in line)
    assert summary
    assert re.search(r"ot now\?\nc\nfrom 396 to [23]\d\d tokens\nword word [^>]*\nFIGURES\n>\n", rows)
    assert said(tmp_path)[::2] == ["x" * 200, "1", "2", TOO_MUCH]


@pytest.mark.slow
def test_a_full_context_made_larger(model: Path, tmp_path: Path) -> None:
    with full(model, tmp_path) as screen:
        fill(screen)
        screen.send("l")
        prompted(screen)
        assert "/1.0k" in screen.rows[-1] or "/512" in screen.rows[-1]
        leave(screen)
    assert len(said(tmp_path)) == 6


@pytest.mark.slow
def test_a_question_that_never_fits_is_refused_at_once(model: Path, tmp_path: Path) -> None:
    with full(model, tmp_path) as screen:
        ask(screen, "hello")
        ask(screen, "long " * 100)
        assert "[n]ot now" not in screen.text
        assert "error: the prompt has" in screen.text
        leave(screen)
    assert len(said(tmp_path)) == 2


# Commands


def test_commands(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("remember the milk")
    with chat("-m", model, *saying(tmp_path, "Yes."), "--seed", "1", lines=100) as screen:
        for typed in (
            "one",
            "/undo",
            "/undo",
            "/retry",
            "two",
            "/retry",
            "/system",
            "/system Be  brief.",
            "/system",
            "/file nothing.txt",
            "/file notes.txt",
            "what of @notes.txt is new?",
            "/file notes.txt what is it?",
            "/think",
            "/think off",
            "/think maybe",
            "/save talk.md",
            "/save talk.md",
            "/save talk.json",
            "/save no/such/folder.md",
            "/sessions",
            "/sessions nope",
            "/model",
            "/draft",
            "/draft none",
            "/draft nope",
            "/compact",
            "/clear",
            "/nope",
            "//nope",
            "/etc/hosts is a file",
        ):
            ask(screen, typed)
        leave(screen)
        assert shown(screen) == snapshot("""\
/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves
> one
Yes.
FIGURES
> /undo
taken back: one
> /undo
error: there is nothing to take back; ask something first
> /retry
error: there is nothing to take back; ask something first
> two
Yes.
FIGURES
> /retry
Yes.
FIGURES
> /system
there is no system message; /system TEXT sets one
> /system Be  brief.
the system message is another from now on
> /system
Be brief.
> /file nothing.txt
error: there is no file nothing.txt; check its path
> /file notes.txt
notes.txt goes with the next message
> what of @notes.txt is new?
Yes.
FIGURES
> /file notes.txt what is it?
Yes.
FIGURES
> /think
thoughts are shown
> /think off
thoughts are folded
> /think maybe
error: /think maybe means nothing; give on, off, or neither
> /save talk.md
written to talk.md
> /save talk.md
error: talk.md is there already; give another name
> /save talk.json
written to talk.json
> /save no/such/folder.md
error: cannot write no/such/folder.md: No such file or directory
> /sessions
SESSION  WHEN     6  one
> /sessions nope
error: there is no session nope; localspec sessions lists them
> /model
tiny, context 4096
> /draft
guesses come from ngram
> /draft none
guesses come from nobody
> /draft nope
error: no model 'nope' in the catalogue; `localspec models list` shows the names
; a file needs its path: ./FILE.gguf
> /compact
error: the summary is as long as what it sums up; /clear forgets the conversatio
n
> /clear
forgotten; the system message stays
> /nope
error: unknown command /nope; /help lists them; // sends a leading slash
> //nope
Yes.
FIGURES
> /etc/hosts is a file
Yes.
FIGURES
>\
""")
    assert (tmp_path / "talk.md").read_text() == snapshot("""\
# one

> Be  brief.

## You

two

## Model

Yes.

## You

notes.txt:
```
remember the milk
```

what of @notes.txt is new?

## Model

Yes.

## You

notes.txt:
```
remember the milk
```

what is it?

## Model

Yes.
""")


@pytest.mark.slow
def test_stats(model: Path, tmp_path: Path) -> None:
    with chat("-m", model, *saying(tmp_path, "Yes."), lines=60) as screen:
        ask(screen, "/stats")
        ask(screen, "one")
        ask(screen, "/stats")
        leave(screen)
        seen = shown(screen)
    for words in ("Passes by tokens emitted", "Share of time", "Tokens by source: none 100.0 %", "Ledger"):
        assert words in seen


def test_another_model_and_one_there_is_not(model: Path, tmp_path: Path) -> None:
    other = tiny.write_llama(tmp_path / "other.gguf", seed=2)
    with chat("-m", model, *saying(tmp_path, "Yes."), "--session", "kept") as screen:
        ask(screen, "one")
        for name, stays in ((str(other), "other"), (f"{tmp_path}/none.gguf", "other"), (str(model), "tiny")):
            ask(screen, f"/model {name}")
            assert screen.rows[-1].startswith(f"{stays} · ctx ")
            ask(screen, "two")
        for draft in (f"{tmp_path}/none.gguf", str(tmp_path / "says.gbnf")):
            ask(screen, f"/draft {draft}")
            ask(screen, "three")
        leave(screen)
    assert said(tmp_path)[1::2] == ["Yes."] * 6


# Going on


def test_going_on_with_the_last_conversation(model: Path, tmp_path: Path) -> None:
    options = ("-m", str(model), *saying(tmp_path, "Yes."))
    with chat(*options) as screen:
        ask(screen, "the first question")
        leave(screen)
    [path] = (tmp_path / "home").rglob("*.jsonl")
    with path.open("a") as file:
        file.write('{"role":"user","content":"what was cut off?","time":1,"n":3}\n{"role":"assis')
    with chat(*options, "-c") as screen:
        assert screen.rows[-3] == "not answered yet: what was cut off? - /retry asks it"
        assert not screen.rows[-1].startswith("tiny · ctx 0/")
        ask(screen, "/retry")
        ask(screen, "/sessions")
        leave(screen)
        assert shown(screen) == snapshot("""\
/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves
not answered yet: what was cut off? - /retry asks it
> /retry
Yes.
FIGURES
> /sessions
SESSION  WHEN     4  the first question
>\
""")
    assert [json.loads(line).get("content") for line in path.read_text().splitlines()][1:] == [
        "the first question",
        "Yes.",
        "what was cut off?",
        "what was cut off?",
        "Yes.",
    ]


@pytest.mark.slow
def test_taking_up_another_conversation(model: Path, tmp_path: Path) -> None:
    options = ("-m", str(model), *saying(tmp_path, "Yes."), "--session")
    for name in ("one", "two"):
        with chat(*options, name) as screen:
            ask(screen, f"hello {name}")
            ask(screen, "/sessions one")
            ask(screen, "and now?")
            leave(screen)
            seen = shown(screen)
    assert said(tmp_path, "one") == snapshot(["hello one", "Yes.", "and now?", "Yes.", "and now?", "Yes."])
    assert said(tmp_path, "two") == snapshot(["hello two", "Yes."])
    assert "going on with one" in seen


# Thinking


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its template opens the thinking."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "CHATML", tiny.CHATML.replace("assistant\n' }}", THINKS))
        return tiny.write_llama(tmp_path_factory.mktemp("models") / "thinker.gguf")


@pytest.mark.parametrize(
    ("options", "text", "rows"),
    [
        ([], "<think>I wonder.\n\nI know.</think>\n\nIt is **so**.", ["thought 4 words", "", "It is so."]),
        (["--think"], "I wonder.</think>It is **so**.", ["I wonder.", "", "It is so."]),
        pytest.param(["--no-think"], "It is **so**.", ["It is so."], marks=pytest.mark.slow),
    ],
)
def test_thinking(thinker: Path, tmp_path: Path, options: list[str], text: str, rows: list[str]) -> None:
    with chat("-m", thinker, *saying(tmp_path, text), "--session", "kept", *options) as screen:
        ask(screen, "why?")
        leave(screen)
        seen = shown(screen)
    assert said(tmp_path)[1] == "It is **so**."
    assert seen.splitlines()[2:-2] == rows


def said(folder: Path, name: str = "kept") -> list[str]:
    """The messages in the session's file, in which nothing may be torn."""
    return [line["content"] for line in lines(folder, name) if "role" in line]


def stopped(folder: Path, name: str = "kept") -> list[bool]:
    return [line.get("stopped", False) for line in lines(folder, name) if "role" in line]


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"home/sessions/{name}.jsonl").read_text().splitlines()]
