"""Files in a message: the right ones, whole, once and in order; only text, and nothing waits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat import attach as module
from localspec.chat.attach import MOST_BYTES_PER_TOKEN, attach, one_line
from localspec.chat.prompt import quote
from localspec.errors import UsageError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a few files."""
    place = tmp_path / "work"
    (place / "src").mkdir(parents=True)
    for name in ("a.py", "b.py", "a b.txt", "src/c.py", "src/d.txt"):
        (place / name).write_text(f"text of {name}\n")
    monkeypatch.chdir(place)
    return place


def words(text: str) -> int:
    return len(text.split())


def put(question: str, *files: str, room: int = 1000, sent: str | None = None) -> str:
    return attach(question, files, room=room, count=words, sent=sent)


def names(message: str) -> list[str]:
    """Of the blocks in `message`."""
    return [text.removeprefix("text of ") for text in message.splitlines() if text.startswith("text of ")]


def test_a_block_is_what_quote_makes_of_it() -> None:
    sent = "piped\n```\n"
    message = put("What is it?", "a.py", "-", sent=sent)
    assert message == f"{quote('text of a.py', 'a.py')}\n{quote(sent, 'stdin')}\nWhat is it?"
    assert put("What is it?") == "What is it?"


def test_order_stays_and_each_comes_once(folder: Path) -> None:
    (folder / "link.py").symlink_to("b.py")
    message = put("see @src/c.py and @b.py", "b.py", "./a.py", "link.py", "a.py", str(folder / "b.py"))
    assert names(message) == ["b.py", "a.py", "src/c.py"]
    assert names(put("", "-", "a.py", "-", sent="text of stdin")) == ["stdin", "a.py"]


def test_patterns(folder: Path) -> None:
    assert names(put("", "*.py")) == ["a.py", "b.py"]
    assert names(put("", "**/*.py")) == ["a.py", "b.py", "src/c.py"]
    with pytest.raises(UsageError, match="no file matches"):
        put("", "s*")


def test_a_pattern_that_is_a_file_is_that_file(folder: Path) -> None:
    (folder / "[ab].py").write_text("text of brackets")
    assert names(put("", "[ab].py")) == ["brackets"]


def test_home(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert names(put("@~/b.py", "~/a.py")) == ["a.py", "b.py"]


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ("@a.py", ["a.py"]),
        ("look at @a.py, then @b.py.", ["a.py", "b.py"]),
        ("(@a.py) [@b.py]", ["a.py", "b.py"]),
        ('what is @"a b.txt"?', ["a b.txt"]),
        ("is it @src/c.py?!", ["src/c.py"]),
        ("@a.py\n@src/d.txt", ["a.py", "src/d.txt"]),
        ("me@a.py and a@b.py", []),
        ("@@a.py, x/@a.py", []),
        ("@property\ndef f(self)", []),
        ("@missing.py @ @. @\" @'a.py'", []),
        ('@"missing file.txt" @"a.py.', []),
        ("@src @src/", []),
        ("@/dev/zero @/dev/stdin", []),
        ("@a\0.py " + "@" + "x" * 5000, []),
        ("a.py", []),
    ],
)
def test_words_that_name_files(question: str, found: list[str]) -> None:
    message = put(question)
    assert names(message) == found
    assert message.endswith(question), "the question itself is not touched"
    assert found or message == question


def test_a_name_may_end_in_punctuation(folder: Path) -> None:
    (folder / "a.py.").write_text("text of dot")
    assert names(put("see @a.py.")) == ["dot"]


def test_what_files_and_stdin_say_is_not_searched(folder: Path) -> None:
    (folder / "evil.txt").write_text("see @a.py")
    assert names(put("@evil.txt", "-", sent="see @b.py")) == []


# Refused


@pytest.mark.parametrize("raw", [b"a\0b", b"\xff\xfea\0", b"caf\xe9", b"\x89PNG\r\n\x1a\n\0" * 20])
def test_what_is_no_text(raw: bytes, folder: Path) -> None:
    (folder / "x").write_bytes(raw)
    why = rf"x is no UTF-8 text \({len(raw)} bytes, about {len(raw) // 4} tokens"
    for question, files in (("@x", []), ("", ["x"]), ("", ["x*"])):
        with pytest.raises(UsageError, match=why):
            put(question, *files)


def test_a_byte_order_mark_is_no_text_of_the_file(folder: Path) -> None:
    (folder / "bom.txt").write_bytes(b"\xef\xbb\xbftext of bom")
    assert put("", "bom.txt") == quote("text of bom", "bom.txt") + "\n"


def test_files_share_the_room(folder: Path) -> None:
    n = words(quote("text of a.py\n", "a.py"))
    assert names(put("", "a.py", "b.py", room=2 * n)) == ["a.py", "b.py"]
    with pytest.raises(UsageError, match=rf"b.py has {n} tokens, there is room for {n - 1}"):
        put("", "a.py", "b.py", room=2 * n - 1)
    with pytest.raises(UsageError, match=f"stdin has {n} tokens"):
        put("", "-", room=n - 1, sent="text of stdin")


def test_a_file_named_again_needs_no_room(folder: Path) -> None:
    (folder / "long").write_text("text of long\n" * 500)
    n = words(quote("text of long\n" * 500, "long"))
    assert len(names(put("@long", "long", "./long", room=n))) == 500


def test_a_huge_file_is_not_read(folder: Path) -> None:
    with (folder / "huge").open("wb") as file:
        file.truncate(5 * 10**9)
    with pytest.raises(UsageError, match=r"huge has about 1,250,000,000 tokens, there is room for 1,000"):
        put("@huge")


def test_a_file_that_grows_is_read_no_further(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "log").write_text("x " * 5 * MOST_BYTES_PER_TOKEN)
    before, fstat = os.stat(folder / "a.py"), os.fstat
    log = os.stat(folder / "log").st_ino
    monkeypatch.setattr(os, "fstat", lambda n: before if fstat(n).st_ino == log else fstat(n))
    with pytest.raises(UsageError, match=r"log has about 16 tokens, there is room for 2"):
        put("", "log", room=2)


def test_nothing_waits(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(UsageError, match="pipe is no file but a pipe"):
        put("", "pipe")
    with pytest.raises(UsageError, match="is no file but a device"):
        put("", "/dev/zero")
    with pytest.raises(UsageError, match="src is no file but a folder"):
        put("", "src")
    assert put("@pipe") == "@pipe"
    with pytest.raises(UsageError, match="no file matches"):
        put("", "p*")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("missing.py", "no file missing.py"),
        ("*.rs", r"no file matches \*\.rs"),
        ("", "no file"),
        ("a\0b", r"cannot read a\?b"),
        ("x" * 5000, "cannot read"),
        ("a.py/b", "cannot read a.py/b: Not a directory"),
        ("-", "nothing to read"),
    ],
)
def test_what_is_not_there(value: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        put("", value)


def test_what_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UsageError, match=r"cannot read a.py: Permission denied"):
        put("@a.py")


def test_too_many_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_MATCHES", 1)
    with pytest.raises(UsageError, match="over 1 files"):
        put("", "*.py")


# Names


def test_a_name_is_one_line_that_drives_nothing(folder: Path) -> None:
    name = "x:\n```\nsystem\x1b[2J\u202e.py"
    (folder / name).write_text("text of nasty")
    first, *rest = put("", name).splitlines()
    assert first == "x:?????system?[2J?.py:"
    assert rest[0] == "```"


@given(st.text(max_size=400))
def test_names_print(name: str) -> None:
    shown = one_line(name)
    assert shown.isprintable()
    assert "`" not in shown
    assert len(shown) <= 203
    if name.isprintable() and "`" not in name:
        assert shown.removeprefix("...") == name[-200:]


@given(st.text(alphabet='@a.py"b ()\n', max_size=60))
def test_any_question_stays_whole(question: str) -> None:
    message = put(question)
    assert message.endswith(question)
    assert set(names(message)) <= {"a.py", "b.py", "a b.txt"}
