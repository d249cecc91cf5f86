"""Hunks give the new text to the byte, any subset applies, and patches are what git and patch take."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from localspec.edit.diff import Hunk, hunks, select, split_hunk, unified

TEXTS = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "b", "c", " x", "}"]), st.sampled_from(["\n", "\n", "\n", "\r\n", "\r", ""])
    ),
    max_size=20,
).map(lambda lines: "".join(line + end for line, end in lines))


@given(TEXTS, TEXTS, st.integers(0, 4))
@example("a", "a\n", 3)
@example("a\r\nb\r\n", "a\nb\n", 3)
@example("", "a", 0)
def test_no_hunk_is_the_old_text_and_all_are_the_new(before: str, after: str, context: int) -> None:
    found = hunks(before, after, context)
    assert select(before, found, ()) == before
    assert select(before, found, range(len(found))) == after
    assert bool(found) == (before != after)


@given(TEXTS, TEXTS, st.data())
def test_a_chosen_hunk_changes_its_lines_and_no_others(before: str, after: str, data: st.DataObject) -> None:
    found = hunks(before, after, 1)
    wanted = data.draw(st.sets(st.sampled_from(range(len(found))))) if found else set()
    left = select(before, found, wanted)
    undone = [hunk for index, hunk in enumerate(found) if index not in wanted]
    assert len(before) + sum(grown(found[index]) for index in wanted) == len(left)
    assert len(after) - sum(grown(hunk) for hunk in undone) == len(left)


def grown(hunk: Hunk) -> int:
    return len("".join(hunk.new)) - len("".join(hunk.old))


@given(TEXTS, TEXTS)
def test_parts_of_a_hunk_make_the_same_change(before: str, after: str) -> None:
    parts = tuple(part for hunk in hunks(before, after, 2) for part in split_hunk(hunk))
    assert select(before, parts, range(len(parts))) == after
    for index, part in enumerate(parts):
        assert split_hunk(part) == (part,)
        select(before, parts, {index})


def test_hunks_say_where_they_are() -> None:
    before = "".join(f"{n}\n" for n in range(1, 31))
    after = before.replace("2\n", "two\n", 1).replace("20\n", "").replace("25\n", "25\nmore\n")
    first, second = hunks(before, after)
    assert (first.old_start, first.new_start, first.header) == (0, 0, "@@ -1,5 +1,5 @@")
    assert second.header == "@@ -17,12 +17,12 @@"
    assert second.old[3:4] == ("20\n",)
    assert [part.header for part in split_hunk(second)] == ["@@ -17,9 +17,8 @@", "@@ -21,8 +20,9 @@"]
    assert [part.lines[0] for part in split_hunk(second)] == [(" ", "17\n"), (" ", "21\n")]


def test_changes_further_apart_than_their_context_are_separate() -> None:
    before = "".join(f"{n}\n" for n in range(20))
    assert len(hunks(before, before.replace("5\n", "x\n", 1).replace("12\n", "y\n"))) == 1
    assert len(hunks(before, before.replace("5\n", "x\n", 1).replace("13\n", "y\n"))) == 2


def test_a_hunk_of_another_text_is_refused() -> None:
    found = hunks("a\nb\n", "a\nc\n")
    for other in ("a\n", "a\nB\n", "b\na\n", ""):
        with pytest.raises(ValueError, match="another text"):
            select(other, found, {0})
    with pytest.raises(IndexError):
        select("a\nb\n", found, {1})


def test_parts_sharing_a_changed_line_are_refused() -> None:
    found = hunks("a\nb\n", "a\nc\n")
    with pytest.raises(ValueError, match="another text"):
        select("a\nb\n", (*found, *found), {0, 1})


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12))
def test_repeated_lines_only_give_the_fewest_changes(old: list[str], new: list[str]) -> None:
    """Twice each of a, b, c and no common ends: nothing holds them together, Myers alone decides."""
    before = ["1", *"abcabc", *old, *"cbacba", "2"]
    after = ["3", *"abcabc", *new, *"cbacba", "4"]
    found = hunks("\n".join(before), "\n".join(after))
    changed = sum(sign != " " for hunk in found for sign, _ in hunk.lines)
    assert changed == len(before) + len(after) - 2 * longest_common(before, after)


def longest_common(a: list[str], b: list[str]) -> int:
    row = [0] * (len(b) + 1)
    for x in a:
        old = row[:]
        for j, y in enumerate(b):
            row[j + 1] = old[j] + 1 if x == y else max(old[j + 1], row[j])
    return row[-1]


def test_a_function_put_between_two_is_one_hunk() -> None:
    one, two, three = (f"def {name}():\n    if x:\n        return\n    return\n\n" for name in "abc")
    (found,) = hunks(one + three, one + two + three)
    assert {sign for sign, _ in found.lines} == {" ", "+"}


@pytest.mark.parametrize("shape", ["shuffled", "rewritten", "periodic"])
def test_a_large_repetitive_file_is_no_trouble(shape: str) -> None:
    """Here difflib without its heuristics takes minutes."""
    rng = random.Random(1)
    before = [rng.choice(["  }\n", "  {\n", "\n", "  return;\n"]) for _ in range(5000)]
    after = {
        "shuffled": rng.sample(before, 5000),
        "rewritten": [rng.choice(["", "  }\n"]) + f"{n}\n" for n in range(5000)],
        "periodic": ["  }\n", "\n"] * 2500,
    }[shape]
    found = hunks("".join(before), "".join(after))
    assert select("".join(before), found, range(len(found))) == "".join(after)


def test_a_large_file_with_a_few_changes_gives_a_few_hunks() -> None:
    before = [f"  value {n % 50}\n" for n in range(5000)]
    after = before[:]
    after[100] = "changed\n"
    del after[2500]
    after.insert(4000, "new\n")
    found = hunks("".join(before), "".join(after))
    assert [(hunk.old_start, len(hunk.old), len(hunk.new)) for hunk in found] == [
        (97, 7, 7),
        (2497, 7, 6),
        (3998, 6, 7),
    ]


PATCHES = {
    "a line": ("a\nb\nc\n", "a\nB\nc\n"),
    "two hunks": ("".join(f"{n}\n" for n in range(30)), "".join(f"{n}\n" for n in range(1, 29))),
    "final newline goes": ("a\nb\n", "a\nb"),
    "final newline comes": ("a\nb", "a\nb\n"),
    "no final newline": ("a\nb", "A\nb"),
    "after a line without newline": ("a\nb", "a\nb\nc"),
    "filled": ("", "a\nb\n"),
    "filled without newline": ("", "a"),
    "emptied": ("a\nb\n", ""),
    "CRLF": ("a\r\nb\r\nc\r\n", "a\r\nB\r\nc\r\n"),
    "CRLF to LF": ("a\r\nb\r\n", "a\nb\n"),
    "LF to CRLF": ("a\nb\n", "a\r\nb\r\n"),
    "CR inside": ("a\rb\rc\nd\n", "a\rB\rc\nd\n"),
    "CR at the end": ("a\rb\r", "a\rB\r"),
    "separators that are no line ends": ("a\x0cb\x85\u2028c\nd\n", "a\x0cb\x85\u2028C\nd\n"),
    "looks like a patch": ("-- a\n++ b\n@@ -1 +1 @@\n", "-- x\n++ b\n\\ No newline at end of file\n"),
    "not ASCII": ("é\u202e\n", "ü\x1b[2J\n"),
}
NAMES = [
    "plain.py",
    "with space.py",
    'quote".py',
    "back\\slash",
    "new\nline",
    "tab\there",
    "é.py",
    "-rf",
    "\x1b[2J\x07\x7f",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    work = tmp_path / "work" / "sub"
    work.mkdir(parents=True)
    return work


def applied(command: list[str], folder: Path, name: str, before: str, after: str) -> bytes:
    file = folder / name
    file.write_bytes(before.encode())
    patch = unified(before, after, name).encode()
    done = subprocess.run(command, cwd=folder, input=patch, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr, patch)
    return file.read_bytes()


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
@pytest.mark.parametrize(("before", "after"), PATCHES.values(), ids=PATCHES)
def test_git_applies_the_patch(before: str, after: str, folder: Path) -> None:
    assert applied(["git", "apply"], folder, "f", before, after) == after.encode()


@pytest.mark.skipif(not shutil.which("patch"), reason="needs patch")
@pytest.mark.parametrize(("before", "after"), PATCHES.values(), ids=PATCHES)
def test_patch_applies_the_patch(before: str, after: str, folder: Path) -> None:
    assert applied(["patch", "-p1"], folder, "f", before, after) == after.encode()


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
@pytest.mark.parametrize("name", NAMES)
def test_git_finds_the_file_by_its_name(name: str, folder: Path) -> None:
    assert applied(["git", "apply"], folder, name, "a\n", "b\n") == b"b\n"


@pytest.mark.skipif(not shutil.which("patch"), reason="needs patch")
@pytest.mark.parametrize("name", [name for name in NAMES if "\n" not in name])  # which GNU patch refuses
def test_patch_finds_the_file_by_its_name(name: str, folder: Path) -> None:
    assert applied(["patch", "-p1"], folder, name, "a\n", "b\n") == b"b\n"


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
@pytest.mark.parametrize("name", NAMES)
def test_names_are_quoted_as_git_does(name: str, folder: Path) -> None:
    (folder / name).write_bytes(b"a\n")
    for command in (["init", "-q"], ["add", "--", name]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    (folder / name).write_bytes(b"b\n")
    theirs = subprocess.run(["git", "diff"], cwd=folder, capture_output=True, check=True).stdout.decode()
    ours = unified("a\n", "b\n", name).splitlines()
    assert ours == [line for line in theirs.splitlines() if not line.startswith("index ")]


def test_a_name_cannot_forge_a_header_or_drive_a_terminal() -> None:
    for name in ("x\n+++ b/other\n", "\x1b]0;root\x07", "\udcff\udc80", "a\u202eb", "/etc/passwd"):
        head = unified("a\n", "b\n", name).split("@@")[0]
        assert head.count("\n") == 3
        assert head.isascii()
        assert head.replace("\t\n", "\n").replace("\n", "").isprintable()
        assert "a//" not in head


def test_nothing_changed_is_no_patch() -> None:
    assert unified("a\n", "a\n", "f") == ""
