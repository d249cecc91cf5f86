"""Many prompts at once: all checked first, answered in order, and after a crash none is answered twice."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from localspec.chat.batch import MOST_SHOWN, Batch, read_batch, run_batch
from localspec.chat.prompt import Message
from localspec.engine.types import Cancelled
from localspec.errors import ExitStatus, LocalspecError, UsageError


def lines(*given: object) -> list[bytes]:
    return [json.dumps(line).encode() + b"\n" for line in given]


PROMPTS = lines(*({"prompt": f"question {i}"} for i in range(5)))


class Answers:
    """Answers every question with itself, in capitals. `asked`: all it was asked; `at`: what some do."""

    def __init__(self, **at: Any) -> None:
        self.asked: list[str] = []
        self.at = at

    def __call__(
        self, messages: Sequence[Message], seed: int | None, max_tokens: int | None
    ) -> dict[str, Any]:
        text = messages[-1].content
        self.asked.append(text)
        happens = self.at.get(f"q{text[-1]}")
        if isinstance(happens, BaseException):
            raise happens
        if callable(happens):
            happens()
        return (
            happens if isinstance(happens, dict) else {"text": text.upper(), "seed": seed, "most": max_tokens}
        )


def run(batch: Batch, answers: Answers) -> tuple[ExitStatus, list[dict[str, Any]]]:
    """The status, and what stands in the output file or came out of stdout."""
    out = io.StringIO()
    status = run_batch(batch, answers, out)
    if batch.out:
        assert out.getvalue() == ""
    text = batch.out.read_text() if batch.out else out.getvalue()
    assert text == "" or text.endswith("\n")
    return status, [json.loads(line) for line in text.splitlines()]


def test_answers_come_in_order_with_their_ids() -> None:
    given = lines(
        {"id": "a", "prompt": "first", "seed": 7, "max_tokens": 3},
        {"id": 9, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"},
                               {"role": "user", "content": "second"}]},
        {"prompt": "third", "system": "Be brief."},
    )  # fmt: skip
    batch = read_batch([*given, b"\n", b"  \n"], "f.jsonl")
    status, found = run(batch, Answers())
    assert status is ExitStatus.OK
    assert [(line["index"], line["id"], line["text"]) for line in found] == [
        (0, "a", "FIRST"), (1, 9, "SECOND"), (2, 2, "THIRD")
    ]  # fmt: skip
    assert (found[0]["seed"], found[0]["most"], found[1]["seed"]) == (7, 3, None)
    assert [message.role for message in batch.jobs[1].messages] == ["user", "assistant", "user"]
    assert batch.jobs[2].messages[0] == Message("system", "Be brief.")


def test_each_line_is_out_before_the_next_is_begun(tmp_path: Path) -> None:
    path, seen = tmp_path / "out", []
    batch = read_batch(PROMPTS, "f", out=path)
    look = {f"q{i}": lambda: seen.append(path.read_bytes().count(b"\n")) for i in range(5)}
    run(batch, Answers(**look))
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("to_file", [False, True])
def test_one_failure_is_a_line_and_a_status(to_file: bool, tmp_path: Path) -> None:
    batch = read_batch(PROMPTS, "f", out=tmp_path / "out" if to_file else None)
    status, found = run(batch, Answers(q1=UsageError("too long", "give --ctx")))
    assert status is ExitStatus.ERROR
    assert (found[1]["error"], found[1]["hint"], found[1]["index"]) == ("too long", "give --ctx", 1)
    assert [line.get("text") for line in found] == [
        "QUESTION 0",
        None,
        "QUESTION 2",
        "QUESTION 3",
        "QUESTION 4",
    ]
    if to_file:
        again = read_batch(PROMPTS, "f", out=tmp_path / "out")
        assert (again.done, again.failed) == (5, 1)
        assert run(again, Answers())[0] is ExitStatus.ERROR, "an earlier failure is not forgotten"


# Going on


def test_a_file_cut_anywhere_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    path = tmp_path / "out"
    run(read_batch(PROMPTS[:2], "f", out=path), Answers())
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        answers = Answers()
        batch = read_batch(PROMPTS[:2], "f", out=path)
        assert path.read_bytes() == whole[:cut], "nothing is changed before the run"
        assert run(batch, answers)[0] is ExitStatus.OK
        assert path.read_bytes() == whole
        assert len(answers.asked) == 2 - whole[:cut].count(b"\n")


def test_nothing_is_left_of_a_torn_line_longer_than_the_next(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b'{"index": 0, "text": "' + b"x" * 9999)
    _, found = run(read_batch(PROMPTS, "f", out=path), Answers())
    assert [line["text"] for line in found] == [f"QUESTION {i}" for i in range(5)]


def test_prompts_may_be_added_at_the_end(tmp_path: Path) -> None:
    answers = Answers()
    run(read_batch(PROMPTS[:3], "f", out=tmp_path / "out"), answers)
    _, found = run(read_batch(PROMPTS, "f", out=tmp_path / "out"), answers)
    assert answers.asked == [f"question {i}" for i in range(5)]
    assert [line["index"] for line in found] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("change", "about"),
    [
        (lambda given: [given[1], given[0], *given[2:]], ""),
        (lambda given: given[:2], ""),
        (lambda given: lines({"prompt": "question 0", "seed": 1}) + given[1:], ""),
        (lambda given: lines({"prompt": "question 0", "max_tokens": 1}) + given[1:], ""),
        (lambda given: lines({"prompt": "question 0", "system": "x"}) + given[1:], ""),
        (lambda given: lines({"prompt": "question 0", "id": "x"}) + given[1:], ""),
        (lambda given: given, "another model"),
    ],
)
def test_answers_to_other_prompts_are_not_gone_on_from(change: Any, about: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    run(read_batch(PROMPTS[:3], "f", out=path), Answers())
    before = path.read_bytes()
    with pytest.raises(UsageError, match="is no answer to prompt"):
        read_batch(change(PROMPTS), "f", about=about, out=path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "raw", [b"notes", b"notes\n", b"\0\0\0", b"[]\n", b"[" * 10**5 + b"\n", b'{"index": 7, ']
)
def test_a_file_of_something_else_is_left_alone(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(raw)
    with pytest.raises(UsageError, match=r"line 1 of .* is no answer"):
        read_batch(PROMPTS, "f", out=path)
    assert path.read_bytes() == raw


def test_what_follows_the_last_answer_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out"
    run(read_batch(PROMPTS, "f", out=path), Answers())
    with path.open("ab") as file:
        file.write(b'{"index": 5, ')
    with pytest.raises(UsageError, match="line 6"):
        read_batch(PROMPTS, "f", out=path)


def test_one_run_at_a_time_writes_a_file(tmp_path: Path) -> None:
    path, refused = tmp_path / "out", []

    def try_too() -> None:
        with pytest.raises(LocalspecError, match="another localspec is writing"):
            run_batch(read_batch(PROMPTS, "f", out=path), Answers(), io.StringIO())
        refused.append(True)

    early = read_batch(PROMPTS, "f", out=path)
    assert run(read_batch(PROMPTS, "f", out=path), Answers(q2=try_too))[0] is ExitStatus.OK
    assert refused
    with pytest.raises(LocalspecError, match="changed just now"):
        run(early, Answers())


def test_an_output_that_is_no_file(tmp_path: Path) -> None:
    for path, why in (
        (tmp_path, "is no file"),
        (tmp_path / "no" / "out", "cannot write"),
        (Path("/dev/full"), "no file"),
    ):
        with pytest.raises(LocalspecError, match=why):
            run(read_batch(PROMPTS, "f", out=path), Answers())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LocalspecError, match="is no file"):
        read_batch(PROMPTS, "f", out=tmp_path / "pipe")


def test_a_full_disk_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as failing:
        failing.setattr(os, "fsync", fail)
        with pytest.raises(LocalspecError, match="No space left") as caught:
            run(read_batch(PROMPTS, "f", out=tmp_path / "out"), Answers())
    assert "same command" in caught.value.hint
    assert run(read_batch(PROMPTS, "f", out=tmp_path / "out"), Answers())[0] is ExitStatus.OK


# Ctrl-C


def test_ctrl_c_lets_the_current_answer_finish(tmp_path: Path) -> None:
    stop = threading.Event()

    def press() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(10)

    path = tmp_path / "out"
    status = run_batch(read_batch(PROMPTS, "f", out=path), Answers(q1=press), io.StringIO(), stop)
    assert status is ExitStatus.INTERRUPTED
    assert path.read_bytes().count(b"\n") == 2
    assert run(read_batch(PROMPTS, "f", out=path), Answers())[0] is ExitStatus.OK


@pytest.mark.parametrize(
    "happens", [Cancelled(), KeyboardInterrupt(), {"text": "QUES", "finish_reason": "cancelled"}]
)
def test_half_an_answer_is_none(happens: object, tmp_path: Path) -> None:
    path = tmp_path / "out"
    status, found = run(read_batch(PROMPTS, "f", out=path), Answers(q2=happens))
    assert (status, len(found)) == (ExitStatus.INTERRUPTED, 2)
    answers = Answers()
    run(read_batch(PROMPTS, "f", out=path), answers)
    assert answers.asked == ["question 2", "question 3", "question 4"]


# What is no prompt

SAID = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"x", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 10**5, "is not JSON"),
        (b"[]", "is no JSON object"),
        ({}, "needs either"),
        ({"prompt": "x", "messages": [SAID]}, "needs either"),
        ({"prompt": "x", "promt": 1}, "unknown key 'promt'"),
        ({"prompt": ""}, "no question at its end"),
        ({"prompt": " \n"}, "no question at its end"),
        ({"prompt": None}, "is no text"),
        ({"prompt": 3}, "is no text"),
        ({"prompt": "a\0"}, "is no text"),
        (b'{"prompt": "\\ud800"}', "is no text"),
        ({"prompt": "x", "system": 3}, "system message that is no text"),
        ({"prompt": "x", "id": None}, "an id"),
        ({"prompt": "x", "id": 1.5}, "an id"),
        ({"prompt": "x", "id": True}, "an id"),
        ({"prompt": "x", "seed": -1}, "a seed"),
        ({"prompt": "x", "seed": "1"}, "a seed"),
        ({"prompt": "x", "seed": True}, "a seed"),
        ({"prompt": "x", "max_tokens": 0}, "a max_tokens"),
        ({"prompt": "x", "max_tokens": 2**25}, "a max_tokens"),
        ({"messages": []}, "no question at its end"),
        ({"messages": {}}, "no list"),
        ({"messages": ["x"]}, "not a role and a content"),
        ({"messages": [SAID | {"name": "x"}]}, "not a role and a content"),
        ({"messages": [SAID | {"role": "tool"}]}, "whose role"),
        ({"messages": [SAID | {"role": ["user"]}]}, "whose role"),
        ({"messages": [SAID, SAID | {"role": "assistant"}]}, "no question at its end"),
        ({"messages": [SAID, SAID | {"role": "system"}, SAID]}, "system message"),
        ({"messages": [SAID | {"role": "system"}, SAID], "system": "y"}, "system message"),
    ],
)
def test_bad_lines_are_named(line: object, why: str) -> None:
    bad = line if isinstance(line, bytes) else lines(line)[0]
    with pytest.raises(UsageError) as caught:
        read_batch([PROMPTS[0], bad], "f.jsonl")
    assert caught.value.message.startswith("f.jsonl: line 2 ")
    assert why in caught.value.message
    assert "\0" not in caught.value.message


def test_all_bad_lines_are_named_at_once() -> None:
    with pytest.raises(UsageError, match=r"line 1 .*; line 3 .*; id 'a' is given twice"):
        read_batch(
            [b"x\n", *lines({"prompt": "x", "id": "a"}), b"y\n", *lines({"prompt": "y", "id": "a"})], "f"
        )
    with pytest.raises(UsageError, match="and 5 more"):
        read_batch([b"x\n"] * (MOST_SHOWN + 5), "f")
    with pytest.raises(UsageError, match="no prompts"):
        read_batch([b"\n"], "f")
    assert len(read_batch([b"\xef\xbb\xbf" + PROMPTS[0]], "f").jobs) == 1, "Windows writes a mark first"
