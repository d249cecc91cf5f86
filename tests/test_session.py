"""Sessions: what was said comes back, whatever ended the program and whatever is in the files."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec import config
from localspec.chat import session, store, transcript
from localspec.chat.prompt import Message
from localspec.chat.session import Session, export, list_sessions, load, new, read, remove
from localspec.chat.transcript import Header, Transcript
from localspec.chat.window import compacted
from localspec.errors import LocalspecError, UsageError

NASTY = 'a\n{"role":"user"}\n\u2028\x85\x1b]52;c;x\x07 "n":9,"time":1}\\ \0 é😀'
ANSWER = Message("assistant", "It is blue.", (5, 6, 7))


def question(text: str) -> Message:
    return Message("user", text)


def begun(name: str = "one", turns: int = 1, **about: Any) -> Session:
    """An open session of `turns` turns by the model "fp"."""
    opened = new("m.gguf", "fp", name=name, **about)
    for i in range(turns):
        opened.add(question(f"question {i}"))
        opened.add(ANSWER, seed=i)
    return opened


def contents(opened: Session) -> list[str]:
    return [message.content for message in opened.messages(100)]


def file(name: str = "one") -> Path:
    return store.path_of(name)


# What comes back


def test_a_conversation_comes_back() -> None:
    with new("m.gguf", "fp", "Be brief.", "one", now=lambda: 12.5) as opened:
        opened.add(question(NASTY))
        opened.add(thought := replace(ANSWER, thinking="hm"), stopped=True, seed=3)
        before = opened.transcript
    with load("one") as again:
        assert again.transcript == before
        assert again.messages(100) == [Message("system", "Be brief."), question(NASTY), thought]
        said = again.transcript.said[-1]
        assert (said.stopped, said.seed, said.time) == (True, 3, 12.5)
    lines = file().read_bytes().split(b"\n")
    assert len(lines) == 4, "one line a message and the header"
    assert all(isinstance(json.loads(line), dict) for line in lines[:-1])


def test_nothing_is_made_before_the_first_message() -> None:
    with new("m", "fp", "old") as opened:
        opened.set_system("Be brief.")
        opened.undo()
        opened.clear()
        assert not Path(os.environ["LOCALSPEC_HOME"]).exists()
        opened.add(question("hello"))
    assert read(opened.name).system == "Be brief."
    assert read(opened.name).header.title == "hello"


def test_only_the_owner_can_look() -> None:
    config.sessions_folder().mkdir(parents=True, mode=0o755)
    with begun():
        for path in config.sessions_folder().iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(config.sessions_folder().stat().st_mode) == 0o700


def test_events_change_what_is_read_not_what_is_written() -> None:
    with begun(turns=4) as opened:
        opened.undo(2)
        assert contents(opened)[-2:] == ["question 1", ANSWER.content]
        size = file().stat().st_size
        opened.set_system("New.")
        opened.clear()
        opened.add(question("again"))
        opened.add(ANSWER)
        assert contents(opened) == ["New.", "again", ANSWER.content]
        assert file().stat().st_size > size
        assert b"question 3" in file().read_bytes()
    assert read("one") == opened.transcript


def test_a_summary_stands_for_the_older_turns_and_cannot_be_undone() -> None:
    with begun(turns=5) as opened:
        expected = compacted(opened.messages(100), "They spoke.", keep=2)
        opened.summarise("They spoke.", keep=2)
        assert opened.messages(100) == expected
        opened.undo(100)
        assert opened.messages(100) == expected[:2]
    assert read("one") == opened.transcript


def test_a_question_without_an_answer_waits() -> None:
    with begun() as opened:
        opened.add(question("and then?"))
    with load("one") as again:
        assert again.unanswered == "and then?"
        assert contents(again) == ["question 0", ANSWER.content]
        again.add(question("what else?"))
        again.add(ANSWER)
        assert contents(again)[2:] == ["what else?", ANSWER.content]
    assert read("one").unanswered is None


def test_tokens_are_only_for_their_own_model() -> None:
    begun().close()
    with load("one") as opened:
        assert opened.messages(8)[-1].tokens == (5, 6, 7)
        assert opened.messages(7)[-1].tokens is None, "an id the vocabulary does not have"
        opened.use("other.gguf", "other")
        assert opened.messages(8)[-1].tokens is None
        opened.add(question("you?"))
        opened.add(Message("assistant", "Me.", (1,)))
        assert [m.tokens for m in opened.messages(8)] == [None, None, None, (1,)]
    assert (read("one").model, read("one").header.model) == ("other.gguf", "m.gguf")


def test_what_is_no_unicode_is_kept_as_question_marks() -> None:
    with begun() as opened:
        opened.add(question("a\udcffb"))
    assert read("one").unanswered == "a?b"


# Crashes


def test_a_file_cut_anywhere_loses_only_the_last_line() -> None:
    begun(turns=2).close()
    whole = file().read_bytes()
    lines = whole.splitlines(keepends=True)
    for cut in range(len(whole) - len(lines[-1]) - len(lines[-2]), len(whole)):
        file().write_bytes(whole[:cut])
        left = whole[:cut].count(b"\n") - 1
        with load("one") as opened:
            assert len(opened.transcript.said) == left
            opened.add(Message("assistant", "after"))
        assert file().read_bytes().startswith(b"".join(lines[: left + 1])), "whole lines are never touched"
        assert [s.message.content for s in read("one").said][left:] == ["after"]


def test_nothing_is_left_of_a_torn_line_longer_than_the_next() -> None:
    begun().close()
    whole = file().read_bytes()
    file().write_bytes(whole + b'{"role":"assistant","content":"' + b"x" * 9999)
    with load("one") as opened:
        opened.add(question("after"))
    assert file().read_bytes().startswith(whole)
    assert file().stat().st_size < len(whole) + 100
    assert read("one").unanswered == "after"


def test_a_write_that_fails_is_not_there_and_the_next_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with begun() as opened:
        before = opened.transcript
        with monkeypatch.context() as failing:
            failing.setattr(
                os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device"))
            )
            with pytest.raises(LocalspecError, match="No space left"):
                opened.add(question("lost"))
        assert opened.transcript == before
        opened.add(question("kept"))
    assert read("one").unanswered == "kept"
    assert b"lost" not in file().read_bytes()


def test_a_first_write_that_fails_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with new("m", "fp", name="one") as opened:
        with monkeypatch.context() as failing:
            failing.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(5, "I/O error")))
            with pytest.raises(LocalspecError, match="I/O error"):
                opened.add(question("hello"))
        assert store.names() == []
        opened.add(question("hello"))
    assert read("one").unanswered == "hello"


WRITER = """
import sys
from localspec.chat.prompt import Message
from localspec.chat.session import new
with new("m", "fp", name=sys.argv[1]) as opened:
    for i in range(int(sys.argv[2])):
        opened.add(Message("user", f"{i} " + "x" * (i % 700)))
        opened.add(Message("assistant", f"{i}", (i,)))
        print(i, flush=True)
"""


def writer(name: str, turns: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, name, str(turns)], stdout=subprocess.PIPE, text=True
    )


def test_kill_9_keeps_every_message_that_was_told_of() -> None:
    for told in 1, 7, 20:
        child = writer(f"killed-{told}", 10**6)
        assert child.stdout
        for _ in range(told):
            last = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        with load(f"killed-{told}") as opened:
            assert len(opened.messages(10**7)) >= 2 * (last + 1)
            opened.add(question("still here"))
        assert read(f"killed-{told}").unanswered == "still here"


@pytest.mark.slow
def test_ten_processes_write_ten_sessions() -> None:
    children = [writer(f"s{i}", 50) for i in range(10)]
    for child in children:
        child.communicate()
        assert child.returncode == 0
    assert {kept.name: kept.messages for kept in list_sessions()} == {f"s{i}": 100 for i in range(10)}
    for i in range(10):
        assert len(read(f"s{i}").said) == 100


# One writer at a time


def test_only_one_process_writes_a_session() -> None:
    code = """
import sys
from localspec.chat.session import load, new, remove
from localspec.chat.prompt import Message
from localspec.errors import LocalspecError
for attempt in lambda: load("one"), lambda: remove("one"):
    try:
        attempt()
    except LocalspecError as error:
        print(error.message)
"""
    with begun():
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert child.stdout.splitlines() == ["session one is open in another localspec"] * 2
    load("one").close()


def test_two_beginnings_of_one_name() -> None:
    first, second = new("m", "fp", name="one"), new("m", "fp", name="one")
    first.add(question("first"))
    with pytest.raises(LocalspecError, match="open in another"):
        second.add(question("second"))
    first.close()
    with pytest.raises(UsageError, match="by now"):
        second.add(question("second"))
    with pytest.raises(UsageError, match="already"):
        new("m", "fp", name="one")
    assert read("one").unanswered == "first"


@pytest.mark.parametrize("change", [b"", b'{"undo":1}\n'])
def test_a_file_that_another_program_changed_is_left_alone(change: bytes) -> None:
    with begun() as opened:
        changed = file().read_bytes()[:-5] if not change else file().read_bytes() + change
        file().write_bytes(changed)
        with pytest.raises(LocalspecError, match="another program"):
            opened.add(question("hello"))
        file().unlink()
        with pytest.raises(LocalspecError, match="cannot keep session one"):
            opened.add(question("hello"))
        assert not file().exists()


# Names


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "a\\b",
        "/etc/passwd",
        "~",
        "-x",
        ".x",
        "a\n",
        "a\0",
        "a b",
        "é",
        "x" * 65,
        "C:x",
    ],
)
def test_names_are_no_paths(name: str) -> None:
    for attempt in (
        lambda: new("m", "fp", name=name),
        lambda: load(name),
        lambda: remove(name),
        lambda: export(name, "md"),
    ):
        with pytest.raises(UsageError, match="cannot name"):
            attempt()


def test_missing_sessions() -> None:
    with pytest.raises(UsageError, match="no session to go on with"):
        load()
    with pytest.raises(UsageError, match="no session x"):
        load("x")
    with pytest.raises(UsageError, match="no session x"):
        remove("x")
    assert not config.sessions_folder().exists()


def test_names_of_sessions_without_one_are_times() -> None:
    with new("m", "fp") as opened:
        opened.add(question("hello"))
    assert store.names() == [opened.name]
    assert len(opened.name) == len("20260801-143012-a3f9")


# Lists


def test_the_list_has_what_a_user_looks_for() -> None:
    with begun("old", now=lambda: 100.0) as opened:
        opened.add(question("x"))
    with new("m\x1b.gguf", "fp", name="young", now=lambda: 200.0) as opened:
        opened.add(question("  two\nwords \x1b[31m" + "y" * 99))
        opened.add(Message("assistant", NASTY * 5000))
    with begun("middle", turns=3, now=lambda: 150.0) as opened:
        opened.undo()
    kept = list_sessions()
    assert [(k.name, k.when, k.messages) for k in kept] == [
        ("young", 200, 2),
        ("middle", 150, 4),
        ("old", 100, 3),
    ]
    assert kept[0].title == ("two words ?[31m" + "y" * 99)[:80]
    assert kept[0].model == "m?.gguf"
    with load() as latest:
        assert latest.name == "young"


def test_the_list_reads_only_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    begun(turns=1).close()
    head, *lines = file().read_bytes().splitlines(keepends=True)
    file().write_bytes(head + b"garbage\n" * 100_000 + lines[-1])
    taken = 0
    last_line = session._last_line

    def counting(opened: Any) -> bytes:
        nonlocal taken
        found = last_line(opened)
        taken = opened.tell() - opened.seek(0, os.SEEK_END) + session.TAIL
        return found

    monkeypatch.setattr(session, "_last_line", counting)
    assert [(k.title, k.messages) for k in list_sessions()] == [("question 0", 2)]
    assert taken == session.TAIL, "it stopped at the end of the tail, having begun TAIL bytes before it"


def test_what_is_no_session_is_not_listed() -> None:
    begun().close()
    folder = config.sessions_folder()
    for name, raw in {
        "empty": b"",
        "bin": b"\0\xff\n" * 9,
        "list": b"[]\n[]\n",
        "deep": b"[" * 10**5,
    }.items():
        (folder / f"{name}.jsonl").write_bytes(raw)
    (folder / "folder.jsonl").mkdir()
    (folder / "a b.jsonl").write_bytes(file().read_bytes())
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "notes.txt").write_text("x")
    assert [kept.name for kept in list_sessions()] == ["one"]
    with pytest.raises(UsageError, match="no session pipe"):
        load("pipe")


def test_remove() -> None:
    begun().close()
    remove("one")
    assert os.listdir(config.sessions_folder()) == []


# Hostile files

HEAD = transcript.dump(transcript.header_line(Header("m", "fp", "", 1.0, "t")))
SAY = b'{"role":"user","content":"x","time":1}\n'


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "no beginning"),
        (HEAD[:-1], "no beginning"),
        (SAY, "line 1 is not the beginning"),
        (HEAD + b"garbage\n" + SAY, "line 2 is not JSON"),
        (HEAD + SAY + b"\xff\n", "line 3 is not JSON"),
        (HEAD + b"[" * 100_000 + b"\n", "line 2 is not JSON"),
        (HEAD + b'{"undo":' + b"9" * 5000 + b"}\n", "line 2 is not JSON"),
        (HEAD + b"[]\n", "line 2 is no JSON object"),
        (HEAD + b'{"role":"user","content":NaN}\n', "line 2 is not JSON"),
        (HEAD + b"{}\n", "line 2 is no message"),
        (HEAD + b'{"role":"system","content":"x"}\n', "line 2 has the role 'system'"),
        (HEAD + b'{"role":["user"],"content":"x"}\n', "line 2 has no role"),
        (HEAD + b'{"role":"user"}\n', "line 2 has no content"),
        (HEAD + b'{"role":"user","content":"\\ud800"}\n', "line 2 has no content"),
        (HEAD + b'{"role":"assistant","content":"x","tokens":[1,-1]}\n', "line 2 has tokens"),
        (HEAD + b'{"role":"assistant","content":"x","tokens":[true]}\n', "line 2 has tokens"),
        (HEAD + b'{"role":"assistant","content":"x","tokens":[4294967296]}\n', "line 2 has tokens"),
        (HEAD + b'{"role":"user","content":"x","seed":"1"}\n', "line 2 has a seed"),
        (HEAD + b'{"role":"user","content":"x","stopped":1}\n', "line 2 has a seed or mark"),
        (HEAD + b'{"role":"user","content":"x","time":1e999}\n', "line 2 has no time"),
        (HEAD + b'{"role":"user","content":"x","time":true}\n', "line 2 has no time"),
        (HEAD + b'{"undo":0}\n', "line 2 undoes"),
        (HEAD + b'{"summary":"x","keep":0}\n', "line 2 keeps"),
        (HEAD + b'{"model":"x"}\n', "line 2 has no fingerprint"),
        (HEAD.replace(b'"localspec":1', b'"localspec":2') + SAY, "line 1 is of version 2"),
        (HEAD.replace(b'"created":1.0', b'"created":"x"') + SAY, "line 1 has no created"),
    ],
)
def test_files_that_cannot_be_read_are_named_with_the_line(raw: bytes, why: str) -> None:
    config.sessions_folder().mkdir(parents=True)
    file().write_bytes(raw)
    for attempt in (lambda: load("one"), lambda: read("one"), lambda: load("one")):
        with pytest.raises(LocalspecError, match="session one cannot be read") as caught:
            attempt()
        assert why in caught.value.message
        assert ("upgrade" if "version" in why else "sessions rm one") in caught.value.hint
    assert file().read_bytes() == raw
    remove("one")


def test_only_an_answer_brings_tokens() -> None:
    """A forged question must not bring ids of special tokens past the chat template."""
    found = transcript.fold(
        [HEAD, b'{"role":"user","content":"x","tokens":[1]}', b'{"role":"assistant","content":"y"}']
    )
    assert found.messages("fp", 100) == [question("x"), Message("assistant", "y")]


def test_a_file_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    begun().close()
    monkeypatch.setattr(session, "MOST_BYTES", 50)
    with pytest.raises(LocalspecError, match="larger than"):
        load("one")


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_any_bytes_are_a_session_or_an_error_in_words(lines: list[bytes]) -> None:
    try:
        found = transcript.fold([HEAD, *lines])
    except ValueError as error:
        words = str(error)
    else:
        words = f"line {len(found.said)}"
    assert words.startswith("line ")


TEXT = st.text(max_size=30).filter(
    lambda text: text.isascii() or text.encode("utf-8", "ignore").decode() == text
)
LINES = st.one_of(
    st.builds(lambda t, k: {"role": k, "content": t}, TEXT, st.sampled_from(["user", "assistant"])),
    st.builds(lambda n: {"undo": n}, st.integers(1, 5)),
    st.builds(lambda t, n: {"summary": t, "keep": n}, TEXT, st.integers(1, 3)),
    st.builds(lambda t: {"system": t}, TEXT),
    st.just({"clear": True}),
    st.builds(lambda t: {"model": t, "fingerprint": t}, TEXT),
)


@given(st.lists(LINES, max_size=20))
def test_folding_lines_is_applying_them(lines: list[dict[str, Any]]) -> None:
    header = Header("m", "fp", "sys", 1.0)
    grown = Transcript(header)
    for line in lines:
        before = list(grown.said)
        changed = grown.after(line)
        assert grown.said == before, "a copy"
        grown = changed
    raw = transcript.dump(transcript.header_line(header)) + b"".join(map(transcript.dump, lines))
    assert transcript.fold(raw.split(b"\n")[:-1]) == grown
    messages = grown.messages("fp", 100)
    assert messages[-1:] == [] or messages[-1].role != "user"


# Export


def test_export() -> None:
    with new("m", "fp", "Be\nbrief.", "one", now=lambda: 1.0) as opened:
        opened.add(question("Why?\nTell me."))
        opened.add(Message("assistant", "So.\n```\nx\n```", thinking="hm"), stopped=True, seed=1)
    assert export("one", "txt") == "> Why?\n> Tell me.\n\nSo.\n```\nx\n``` (stopped)\n"
    assert export("one", "md") == (
        "# Why? Tell me.\n\n> Be\n> brief.\n\n## You\n\nWhy?\nTell me.\n\n"
        "## Model\n\nSo.\n```\nx\n``` (stopped)\n"
    )
    found = json.loads(export("one", "json"))
    assert (found["system"], found["model"], found["created"]) == ("Be\nbrief.", "m", 1.0)
    assert found["messages"][1] == {
        "role": "assistant", "content": "So.\n```\nx\n```", "thinking": "hm", "stopped": True, "seed": 1
    }  # fmt: skip
