"""Workloads: what comes with the program, and what files of prompts are refused, and where."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from localspec.bench import workloads
from localspec.bench.workloads import FAMILIES, Prompt, built_in, read_forced, read_prompts
from localspec.errors import UsageError


def file_of(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_bytes(
        b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    )
    return path


def refused(path: Path, forced: bool = False) -> str:
    with pytest.raises(UsageError) as caught:
        (read_forced if forced else read_prompts)(path)
    assert caught.value.hint
    assert str(path) in caught.value.message
    return caught.value.message


def test_built_in_prompts() -> None:
    prompts = built_in()
    assert Counter(p.family for p in prompts) == {**dict.fromkeys(FAMILIES, 4), "mixed": 1}
    assert len({p.id for p in prompts}) == len({p.turns for p in prompts}) == len(prompts)
    assert all(len(p.turns) == 1 for p in prompts if p.family != "mixed")
    assert all(p.output is None for p in prompts)
    assert built_in("code") == [p for p in prompts if p.family == "code"]


def test_mixed_is_one_session_of_several_turns() -> None:
    (session,) = built_in("mixed")
    assert 6 <= len(session.turns) <= 8


@pytest.mark.parametrize("prompt", built_in("summary"), ids=lambda p: p.id)
def test_summaries_contain_a_passage(prompt: Prompt) -> None:
    _, passage = prompt.turns[0].split("\n\n", 1)
    assert 250 <= len(passage.split()) <= 400


@pytest.mark.parametrize("prompt", built_in("rewrite"), ids=lambda p: p.id)
def test_rewrites_contain_what_is_to_be_returned(prompt: Prompt) -> None:
    _, piece = prompt.turns[0].split("\n\n", 1)
    assert 40 <= len(piece.splitlines()) <= 60


def test_unknown_family() -> None:
    with pytest.raises(UsageError, match="poems") as caught:
        built_in("poems")
    assert "rewrite" in caught.value.hint


def test_prompts(tmp_path: Path) -> None:
    path = file_of(
        tmp_path,
        b"\xef\xbb\xbf" + json.dumps({"prompt": "ü?", "source": "somewhere"}).encode(),
        b"",
        {"turns": ["a", "b\n\tc"], "id": "two", "family": "mine"},
        b'{"prompt": "last"}\r',
    )
    assert read_prompts(path) == [
        Prompt("prompts-1", "prompts", ("ü?",)),
        Prompt("two", "mine", ("a", "b\n\tc")),
        Prompt("prompts-4", "prompts", ("last",)),
    ]
    assert read_prompts(str(path)) == read_prompts(path)


def test_a_last_line_without_its_end(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}')
    assert [p.turns for p in read_prompts(path)] == [("a",)]


def test_forced(tmp_path: Path) -> None:
    path = file_of(tmp_path, {"prompt": "a", "output": "b"}, {"prompt": "c", "output": "d", "id": "x"})
    assert read_forced(path) == [
        Prompt("forced-1", "forced", ("a",), "b"),
        Prompt("x", "forced", ("c",), "d"),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{nonsense", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b'{"prompt": ' + b"7" * 5000 + b"}", "not JSON"),
        (b'{"prompt": "\xff"}', "not UTF-8 at byte 13"),
        (["a"], "not an object"),
        ({}, "needs either"),
        ({"prompt": "a", "turns": ["b"]}, "needs either"),
        ({"prompt": 3}, '"prompt" must be a text'),
        ({"prompt": " \n"}, '"prompt" is empty'),
        ({"prompt": "a\0b"}, "NUL"),
        ({"prompt": "\ud800"}, "surrogate"),
        ({"turns": []}, "at least one"),
        ({"turns": "a"}, "must be a list"),
        ({"turns": ["a", None]}, "turn 2 must be a text"),
        ({"prompt": "a", "id": 7.5}, '"id" must be a text'),
        ({"prompt": "a", "id": "one"}, "'one' of line 1"),
        ({"prompt": "a", "family": "\x1b[31m"}, "printable"),
        ({"prompt": "a", "family": "x" * 65}, "at most 64"),
        ({"prompt": "a", "family": "all"}, "all families"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: object, reason: str) -> None:
    message = refused(file_of(tmp_path, {"prompt": "good", "id": "one"}, b"", line))
    assert "line 3:" in message
    assert reason in message


@pytest.mark.parametrize("line", [{"prompt": "a"}, {"output": "b"}, {"prompt": "a", "output": ["b"]}])
def test_forced_needs_both(tmp_path: Path, line: object) -> None:
    assert "line 1:" in refused(file_of(tmp_path, line), forced=True)


def test_missing_empty_and_unreadable_files(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "missing.jsonl")
    assert "directory" in refused(tmp_path)
    assert "null" in refused(Path("with\0null"))
    assert "line 1: no prompt" in refused(file_of(tmp_path))
    assert "line 1: no prompt" in refused(file_of(tmp_path, b"", b"  "))


def test_a_line_has_a_limit(tmp_path: Path) -> None:
    room = workloads.BYTES_LINE - len('{"prompt": ""}')
    assert len(read_prompts(file_of(tmp_path, {"prompt": "x" * room}))[0].turns[0]) == room
    assert "line 2: longer than 1 MiB" in refused(
        file_of(tmp_path, {"prompt": "a"}, {"prompt": "x" * (room + 1)}, {"prompt": "b"})
    )


def test_a_file_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_of(tmp_path, *({"prompt": "a"} for _ in range(10_000)))
    assert len(read_prompts(path)) == 10_000
    with path.open("a") as file:
        file.write('{"prompt": "a"}\n')
    assert "line 10001" in refused(path)
    monkeypatch.setattr(workloads, "BYTES_FILE", 1 << 20)
    path.write_bytes(b"\n" * ((1 << 20) + 1))
    assert "more than 1 MiB" in refused(path)
