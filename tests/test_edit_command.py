"""`localspec edit` from outside: streams, exit codes, questions on a terminal, signals, and real models."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from screen import Screen

from localspec.bench.replay import Forced
from localspec.config import Settings
from localspec.edit.command import edit, edits, undo
from localspec.edit.files import read
from localspec.edit.flow import Wrong
from localspec.edit.generate import is_complete, opened
from localspec.edit.inputs import MOST_TOKENS, Options
from localspec.edit.parts import Task, request_for
from localspec.edit.request import messages
from localspec.edit.undo import entries
from localspec.engine.generate import Fixed
from localspec.engine.types import Source
from localspec.errors import ExitStatus, UsageError
from localspec.ui.terminal import Terminal

ROOT = Path(__file__).parents[1]
OLD, NEW = "def f():\n    return 2\n", "def f():\n    return 3\n"
REPLY = f"```python\n{NEW}```\n"
NOWHERE = Settings(model="/nowhere/at/all.gguf", temp=0.0)
"""Whoever wants to load a model with these fails with ModelNotFound."""
LLAMA = {"PYTHONWARNINGS": "ignore"}
"""llama_cpp leaves /dev/null open."""


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own with a file and an answer in it; nothing on stdin."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TERM", "xterm")
    Path("a.py").write_text(OLD)
    Path("reply").write_text(REPLY)
    with open(os.devnull, encoding="utf-8") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield


def terminal(verbosity: int = 0) -> Terminal:
    """One that nobody sits at."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    return Terminal(out, io.StringIO(), False, False, False, verbosity)


def said(where: Terminal) -> tuple[str, str]:
    """What went to stdout and stderr."""
    assert isinstance(where.out, io.TextIOWrapper)
    assert isinstance(where.out.buffer, io.BytesIO)
    assert isinstance(where.err, io.StringIO)
    return where.out.buffer.getvalue().decode(), where.err.getvalue()


def run(*files: str, settings: Settings = NOWHERE, **options: Any) -> tuple[ExitStatus, str, str]:
    """The command in this process, without a terminal: exit status, stdout, stderr."""
    where = terminal()
    status = edit(Options(files or ("a.py",), **options), settings, where)
    return (status, *said(where))


@pytest.fixture
def send(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    """A function that lets bytes come from a pipe on stdin."""
    with ExitStack() as stack:

        def to_stdin(raw: bytes) -> None:
            reader, writer = os.pipe()
            with open(writer, "wb") as pipe:
                pipe.write(raw)
            monkeypatch.setattr(sys, "stdin", stack.enter_context(open(reader, encoding="utf-8")))

        yield to_stdin


def test_without_a_terminal_and_without_yes_the_patch_is_printed_and_nothing_written() -> None:
    status, out, err = run(reply="reply")
    assert (status, Path("a.py").read_text(), entries()) == (ExitStatus.NOT_APPLIED, OLD, [])
    assert "nobody is there to confirm" in err
    subprocess.run(["git", "apply", "-"], input=out.encode(), check=True)
    assert Path("a.py").read_text() == NEW


def test_yes_applies_and_says_how_to_undo() -> None:
    status, out, err = run(reply="reply", yes=True)
    assert (status, out, err) == (ExitStatus.OK, "", "a.py: +1 -1 lines, undo with: localspec undo a.py\n")
    assert Path("a.py").read_text() == NEW
    where = terminal()
    assert undo("a.py", where) == ExitStatus.OK
    assert (Path("a.py").read_text(), said(where)[0]) == (OLD, "")
    assert "a.py is as it was before the edit of " in said(where)[1]
    with pytest.raises(UsageError, match="nothing to undo"):
        undo("a.py", terminal())


def test_a_name_that_looks_like_a_flag_can_be_given_and_undone() -> None:
    Path("-y").write_text(OLD)
    where = terminal()
    assert edit(Options(("-y",), reply="reply", yes=True, force=True), NOWHERE, where) == ExitStatus.OK
    command = said(where)[1].partition("undo with: localspec ")[2].strip()
    assert command == "undo -- -y"
    subprocess.run(
        [sys.executable, "-m", "localspec", *shlex.split(command)], check=True, capture_output=True
    )
    assert Path("-y").read_text() == OLD


@pytest.mark.parametrize("name", ["new\nline.py", os.fsdecode(b"\xff.py")])
def test_a_name_that_cannot_be_typed_is_undone_as_the_last_one(name: str) -> None:
    os.rename("a.py", name)
    assert run(name, reply="reply", yes=True)[2].endswith(" undo with: localspec undo\n")
    undo(None, terminal())
    assert Path(name).read_text() == OLD


@pytest.mark.parametrize("name", ["./a.py", "b/../a.py", "{here}/a.py"])
def test_a_patch_names_the_file_as_git_apply_takes_it(name: str) -> None:
    os.mkdir("b")
    patch = run(name.format(here=os.getcwd()), reply="reply", diff=True)[1]
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "apply"], input=patch.encode(), check=True)
    assert Path("a.py").read_text() == NEW


def test_a_given_answer_that_cannot_be_used_is_said_once() -> None:
    Path("reply").write_text("I cannot do that.")
    status, out, err = run(reply="reply", yes=True)
    assert (status, out) == (ExitStatus.NOT_APPLIED, "")
    assert err.startswith("error: the answer cannot be used: The answer has no code block")
    assert err.count("no code block") == 1
    assert "mend it" in err


def test_a_closed_stdin_is_no_answer_and_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="nothing comes on stdin"):
        run(reply="-")
    with pytest.raises(UsageError, match="nothing comes on stdin"):
        run("-", reply="reply")


def test_without_edits_the_list_says_so() -> None:
    where = terminal()
    edits(where)
    assert said(where) == ("", "there are no edits that could be taken back\n")


def test_edits_are_listed_the_last_one_first() -> None:
    Path("b\n.py").write_text("x\n")
    run(reply="reply", yes=True)
    run("b\n.py", reply="reply", yes=True, force=True)
    lines, told = terminal(), terminal()
    edits(lines)
    edits(told, as_json=True)
    first, second = said(lines)[0].splitlines()
    assert first.endswith("2 -> 22 bytes  " + str(Path("b?.py").absolute()))
    assert second.endswith("22 -> 22 bytes  " + str(Path("a.py").absolute()))
    assert [one["file"] for one in json.loads(said(told)[0])] == [
        str(Path(name).absolute()) for name in ("b\n.py", "a.py")
    ]
    assert {one["id"] for one in json.loads(said(told)[0])} == {entry.id for entry in entries()}


def test_what_is_suspicious_is_refused_with_yes_but_not_with_force() -> None:
    Path("reply").write_text("```python\ndef f(:\n    return 3\n```\n")
    status, out, err = run(reply="reply", yes=True)
    assert (status, out, Path("a.py").read_text()) == (ExitStatus.NOT_APPLIED, "", OLD)
    assert "error: a.py is as it was: the new text is not valid Python" in err
    assert run(reply="reply", yes=True, force=True)[0] == ExitStatus.OK
    assert Path("a.py").read_text() == "def f(:\n    return 3\n"


def test_a_patch_alone_is_no_failure_and_shows_concerns() -> None:
    Path("reply").write_text("```python\ndef f(:\n    return 3\n```\n")
    status, out, err = run(reply="reply", diff=True)
    assert (status, Path("a.py").read_text()) == (ExitStatus.OK, OLD)
    assert out.startswith("diff --git a/a.py b/a.py\n")
    assert "a.py: the new text is not valid Python" in err


PATCHED = {
    "cp1252": (OLD.replace("2", "'é'").encode("cp1252"), "cp1252"),
    "CRLF": (OLD.replace("\n", "\r\n").encode(), None),
    "BOM": (b"\xef\xbb\xbf" + OLD.encode(), None),
    "no newline at the end": (OLD.rstrip("\n").encode(), None),
}


@pytest.mark.parametrize(("raw", "encoding"), PATCHED.values(), ids=PATCHED)
def test_the_patch_makes_of_the_file_what_the_edit_makes_of_it(raw: bytes, encoding: str | None) -> None:
    Path("reply").write_text("```\ndef g():\n    return 3\n```\n")
    Path("a.py").write_bytes(raw)
    where = terminal()
    edit(Options(("a.py",), reply="reply", diff=True, encoding=encoding), NOWHERE, where)
    assert isinstance(where.out, io.TextIOWrapper)
    patch = where.out.buffer.getvalue()
    run(reply="reply", yes=True, encoding=encoding)
    wanted = Path("a.py").read_bytes()
    Path("a.py").write_bytes(raw)
    subprocess.run(["git", "apply", "-"], input=patch, check=True)
    assert Path("a.py").read_bytes() == wanted != raw


def test_nothing_to_change_is_no_failure() -> None:
    Path("reply").write_text(f"```\n{OLD}```")
    assert run(reply="reply") == (ExitStatus.OK, "", "a.py: nothing to change\n")


def test_a_result_that_goes_elsewhere_is_there_also_when_nothing_changes() -> None:
    Path("a.py").write_text(NEW)
    Path("b.py").write_text("old")
    for out in ("new.py", "b.py", "a.py"):
        assert run(reply="reply", yes=True, out=out)[0] == ExitStatus.OK
        assert Path(out).read_text() == NEW
    assert [Path(entry.path).name for entry in entries()] == ["b.py"]


def test_json_is_one_object_and_asks_nothing() -> None:
    status, out, _ = run(reply="reply", as_json=True)
    (told,) = json.loads(out)["files"]
    assert status == ExitStatus.NOT_APPLIED
    assert (told["file"], told["status"], told["added"], told["removed"], told["undo"]) == (
        "a.py",
        "declined",
        1,
        1,
        None,
    )
    assert told["error"].startswith("a.py is as it was")
    assert "+    return 3\n" in told["diff"]
    (told,) = json.loads(run(reply="reply", as_json=True, yes=True)[1])["files"]
    assert (told["status"], told["concerns"], told["undo"]) == ("written", [], entries()[0].id)
    Path("reply").write_text("```\nx = (\n```")
    (told,) = json.loads(run(reply="reply", as_json=True, yes=True)[1])["files"]
    assert (told["status"], told["concerns"][0]["kind"]) == ("refused", "syntax")
    Path("reply").write_text("Sure, I can do that.")
    (told,) = json.loads(run(reply="reply", as_json=True, yes=True)[1])["files"]
    assert (told["status"], "no code block" in told["error"]) == ("failed", True)


def test_a_filter_writes_the_result_to_stdout_and_nothing_else(send: Callable[[bytes], None]) -> None:
    raw = b"\xef\xbb\xbf" + OLD.replace("\n", "\r\n").encode()
    send(raw)
    status, out, err = run("-", reply="reply")
    assert (status, out.encode(), err) == (ExitStatus.OK, raw.replace(b"2", b"3"), "")
    send(NEW.encode())
    assert run("-", reply="reply") == (ExitStatus.OK, NEW, "stdin: nothing to change\n")
    send(OLD.encode())
    Path("reply").write_text("```\n...\n```")
    status, out, err = run("-", reply="reply")
    assert (status, out) == (ExitStatus.NOT_APPLIED, "")
    send(b"\xff\x00")
    with pytest.raises(UsageError, match=r"^stdin is binary"):
        run("-", reply="reply")
    assert (entries(), sorted(os.listdir())) == ([], ["a.py", "reply"])


def test_the_answer_may_come_from_a_pipe(send: Callable[[bytes], None]) -> None:
    send(REPLY.encode())
    assert run(reply="-", yes=True)[0] == ExitStatus.OK
    assert Path("a.py").read_text() == NEW


def test_the_result_may_go_into_another_file() -> None:
    Path("a.py").chmod(0o750)
    assert run(reply="reply", yes=True, out="b.py") == (
        ExitStatus.OK,
        "",
        "a.py: +1 -1 lines, written to b.py\n",
    )
    assert (Path("a.py").read_text(), Path("b.py").read_text()) == (OLD, NEW)
    assert Path("b.py").stat().st_mode & 0o777 == 0o750 & ~umask()
    with pytest.raises(UsageError, match=r"b\.py exists"):
        run(reply="reply", out="b.py")
    Path("b.py").write_text("mine\n")
    assert "undo with: localspec undo b.py" in run(reply="reply", yes=True, out="b.py")[2]
    undo("b.py", terminal())
    assert (Path("b.py").read_text(), Path("a.py").read_text()) == ("mine\n", OLD)
    assert sorted(os.listdir()) == ["a.py", "b.py", "reply"]


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_another_file_that_cannot_be_is_refused_first() -> None:
    Path("folder").mkdir()
    Path("link").symlink_to("nowhere")
    for out, words in {"folder": "exists", "no/b": "no folder", "link": "exists", "x/": "no folder"}.items():
        with pytest.raises(UsageError, match=words):
            run(reply="reply", out=out)
    for out in ("folder", "link", "/dev/null"):
        with pytest.raises(UsageError, match=r"is a|does not exist"):
            run(reply="reply", out=out, yes=True)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no file": ({"files": ()}, "no file is named"),
    "format": ({"format": "diff"}, "--format"),
    "stdin twice": ({"files": ("-",), "reply": "-"}, "only once"),
    "stdin for two": ({"context": ("-",), "reply": "-"}, "only once"),
    "- and others": ({"files": ("-", "a.py")}, "goes alone"),
    "- and out": ({"files": ("-",), "out": "b"}, "stdout"),
    "- and json": ({"files": ("-",), "as_json": True}, "stdout"),
    "lines of two": ({"files": ("a.py", "reply"), "lines": "1"}, "for one file"),
    "reply for two": ({"files": ("a.py", "reply"), "reply": "reply"}, "for one file"),
    "diff and out": ({"diff": True, "out": "b"}, "writes nothing"),
    "no such file": ({"files": ("none.py",)}, "there is no file"),
    "the second is none": ({"files": ("a.py", "none.py")}, "there is no file"),
    "a folder": ({"files": (".",)}, "is a folder"),
    "no such lines": ({"lines": "5-9"}, "do not exist"),
    "no lines": ({"lines": "x"}, "not a range"),
    "no such context": ({"context": ("none.py",)}, "there is no file"),
    "no such reply": ({"reply": "none"}, "cannot read the answer"),
    "no instruction": ({"instruction": None}, "there is no instruction"),
    "an empty one": ({"instruction": " \n"}, "there is no instruction"),
    "no text": ({"instruction": "a\0"}, "NUL"),
    "no encoding": ({"encoding": "klingon"}, "no encoding"),
}


@pytest.mark.parametrize(("options", "words"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_is_refused_before_a_model_is_looked_for(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        edit(Options(**{"files": ("a.py",), "instruction": "x", **options}), NOWHERE, terminal())
    assert Path("a.py").read_text() == OLD


SIZES = {
    "5 MB in a line": (b"x = 1; " * 750_000, "about 1,750,000 tokens"),
    "50 MB": (b"x = 12345\n" * 5_000_000, "47.7 MiB"),
    "200k lines": (b"x\n" * 200_000, "about 400,000 tokens"),
}


@pytest.mark.parametrize(("raw", "words"), SIZES.values(), ids=SIZES)
def test_sizes_are_refused_with_their_number(raw: bytes, words: str) -> None:
    Path("a.py").write_bytes(raw)
    with pytest.raises(UsageError, match=words):
        run(instruction="x")


def test_an_empty_file_and_a_long_one_can_be_edited() -> None:
    Path("a.py").write_bytes(b"")
    assert run(reply="reply", yes=True)[0] == ExitStatus.OK
    assert Path("a.py").read_text() == NEW
    many = "".join(f"x{i} = {i}\n" for i in range(200_000))
    assert len(many) // 3 > MOST_TOKENS
    Path("a.py").write_text(many)
    block = "<<<<<<< SEARCH\nx77777 = 77777\n=======\ny = 7\n>>>>>>> REPLACE\n"
    Path("reply").write_text(block)
    assert run(reply="reply", yes=True)[0] == ExitStatus.OK
    assert Path("a.py").read_text() == many.replace("x77777 = 77777\n", "y = 7\n")


def test_a_file_with_changes_that_git_does_not_have_is_named() -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "a.py"], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    assert "git" not in run(reply="reply", yes=True)[2]
    assert "a.py has changes that git does not have yet" in run(reply="reply", yes=True)[2]
    assert "git" not in run(reply="reply", diff=True)[2]


def start(*command: str | Path, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*map(str, command)], start_new_session=True, **options)


def child(*flags: str, file: str = "a.py") -> list[str]:
    return [sys.executable, "-m", "localspec", "edit", file, *flags]


def test_a_given_answer_loads_no_model_library() -> None:
    code = (
        "import sys; from localspec.cli import main\n"
        "try: main()\n"
        "except SystemExit as left: print(left.code)\n"
        "print(sorted({'llama_cpp', 'numpy', 'huggingface_hub', 'jinja2'} & set(sys.modules)))"
    )
    flags = ["edit", "a.py", "--reply", "reply", "-y"]
    done = subprocess.run([sys.executable, "-c", code, *flags], capture_output=True, check=True)
    assert done.stdout == b"0\n[]\n", done.stderr
    assert Path("a.py").read_text() == NEW


def test_a_reader_that_leaves_and_a_full_disk() -> None:
    lines = "".join(f"x{i} = {i}\n" for i in range(8_000))
    Path("a.py").write_text(lines)
    Path("reply").write_text(f"```\n{lines.replace(' = ', ' == ')}```\n")
    reader, writer = os.pipe()
    os.close(reader)
    left = start(
        *child("--reply", "reply", "--diff"), stdout=writer, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    os.close(writer)
    with open("/dev/full", "wb") as full:
        no_room = start(*child("--reply", "reply", "--diff"), stdout=full, stderr=subprocess.PIPE)
        with open("a.py", "rb") as text:
            filtered = start(
                *child("--reply", "reply", "--force", file="-"),
                stdin=text,
                stdout=full,
                stderr=subprocess.PIPE,
            )
    for process, code, words in (
        (left, ExitStatus.BROKEN_PIPE, b""),
        (no_room, ExitStatus.ERROR, b"No space left"),
        (filtered, ExitStatus.ERROR, b"No space left"),
    ):
        _, err = process.communicate(timeout=60)
        assert (process.returncode, words in err, b"Traceback" in err) == (code, True, False), err
    assert Path("a.py").read_text() == lines


def at_prompt(*flags: str) -> Screen:
    return Screen(child("--reply", "reply", *flags))


def test_a_person_sees_the_change_and_says_yes() -> None:
    with at_prompt() as screen:
        screen.wait("Write a.py? [Y]es")
        assert screen.rows[:4] == ["@@ -1,2 +1,2 @@", " def f():", "-    return 2", "+    return 3"]
        assert Path("a.py").read_text() == OLD
        screen.send("\r")
        assert screen.exit_status() == ExitStatus.OK
        assert screen.rows[-1] == "a.py: +1 -1 lines, undo with: localspec undo a.py"
    assert Path("a.py").read_text() == NEW


def test_json_asks_nobody_on_a_terminal_either() -> None:
    with at_prompt("--json") as screen:
        assert screen.exit_status() == ExitStatus.NOT_APPLIED
        assert '"status": "declined"' in "".join(screen.rows)
        assert "Write a.py?" not in screen.text


@pytest.mark.parametrize(
    ("keys", "status"), [("n", ExitStatus.NOT_APPLIED), ("\x04", ExitStatus.NOT_APPLIED), ("\x03", 130)]
)
def test_a_person_says_no_or_leaves(keys: str, status: int) -> None:
    with at_prompt() as screen:
        screen.wait("Write a.py?")
        screen.send(keys)
        assert screen.exit_status() == status
        assert screen.rows[-1].endswith("a.py is as it was")
        assert "error" not in screen.text
        assert "Traceback" not in screen.text
    assert (Path("a.py").read_text(), entries()) == (OLD, [])


def test_where_something_is_suspicious_enter_says_no() -> None:
    Path("reply").write_text("```python\ndef f(:\n    return 3\n```\n")
    with at_prompt() as screen:
        screen.wait("[N]o")
        assert "the new text is not valid Python" in screen.text
        screen.send("\r")
        assert screen.exit_status() == ExitStatus.NOT_APPLIED
    assert Path("a.py").read_text() == OLD


def test_a_file_that_was_touched_while_its_change_was_shown_is_left_alone() -> None:
    with at_prompt() as screen:
        screen.wait("Write a.py?")
        Path("a.py").write_text("mine\n")
        screen.send("y")
        assert screen.exit_status() == ExitStatus.FILE_CHANGED
        assert "a.py has changed since it was read" in screen.text
    assert (Path("a.py").read_text(), entries()) == ("mine\n", [])


def test_the_instruction_is_asked_for_and_keys_come_from_the_terminal_behind_a_pipe() -> None:
    with Screen(child("-m", "/nowhere.gguf")) as screen:
        screen.wait("What should be changed?")
        screen.send("x\r")
        assert screen.exit_status() == ExitStatus.MODEL_MISSING
    piped = shlex.join(child("--reply", "-"))
    with Screen(["sh", "-c", f"cat reply | {piped}"]) as screen:
        screen.wait("Write a.py?")
        screen.send("y")
        assert screen.exit_status() == ExitStatus.OK
    assert Path("a.py").read_text() == NEW


def test_of_ten_that_look_at_one_file_one_wins() -> None:
    with ExitStack() as stack:
        screens = []
        for i in range(10):
            Path(f"reply{i}").write_text(REPLY.replace("3", str(30 + i)))
            screens.append(stack.enter_context(Screen(child("--reply", f"reply{i}"))))
        for screen in screens:
            screen.wait("Write a.py?")
        for screen in screens:
            screen.send("y")
        codes = [screen.exit_status() for screen in screens]
    assert sorted(codes) == [ExitStatus.OK] + [ExitStatus.FILE_CHANGED] * 9
    assert Path("a.py").read_text() == OLD.replace("2", str(30 + codes.index(ExitStatus.OK)))
    assert len(entries()) == 1


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llama(tmp_path_factory.mktemp("edit") / "endless.gguf", end_bias=-30.0)


def test_ctrl_c_while_the_model_writes_stops_it(endless: Path) -> None:
    Path("a.py").write_text(OLD * 20)
    model = ["-m", str(endless), "--ctx", "4096", "-n", "3000", "-t", "1"]
    with Screen(child("-i", "x", *model), env=LLAMA) as screen:
        screen.wait(lambda: "tokens/s" in screen.raw)
        screen.send("\x03")
        assert screen.exit_status() == ExitStatus.INTERRUPTED
        assert screen.rows[-1] == "stopped: a.py is as it was", screen.picture()
    assert (Path("a.py").read_text(), entries()) == (OLD * 20, [])


@pytest.fixture
def small(endless: Path) -> Settings:
    return Settings(model=str(endless), temp=0.0, threads=1, ctx=1024, max_tokens=64, seed=1)


def test_an_answer_that_never_ends_is_not_written(small: Settings) -> None:
    status, out, err = run(instruction="add a line", yes=True, settings=small)
    assert (status, out, Path("a.py").read_text()) == (ExitStatus.NOT_APPLIED, "", OLD)
    assert "error: the answer reached its longest allowed length" in err or "cut off" in err
    assert "64 tokens" in err


def test_a_file_that_fails_does_not_keep_the_next_one_from_its_turn(small: Settings) -> None:
    Path("long.py").write_text("x = 1\n" * 500)
    status, out, _ = run("long.py", "a.py", instruction="x", settings=small, format="blocks", as_json=True)
    first, second = json.loads(out)["files"]
    assert (status, first["file"], second["file"]) == (ExitStatus.USAGE, "long.py", "a.py")
    assert "do not fit" in first["error"]
    assert "longest allowed length" in second["error"]


def test_a_model_is_asked_again_and_the_reason_said(small: Settings) -> None:
    task, where = Task(read("a.py"), "x"), terminal()
    with opened(small, where, 100) as author:
        (part,), _ = author.parts(task)
        author.answer(request_for(task, part), Wrong("Sorry.", "The answer has no code block.\nMore."))
    assert "the answer cannot be used (The answer has no code block.); asking again\n" in said(where)[1]


def test_the_source_that_follows_the_file_knows_it_and_changes_no_text(small: Settings) -> None:
    Path("a.py").write_text(OLD * 8)
    task = Task(read("a.py"), "x")
    replies = []
    for draft in ("auto", "none"):
        with opened(replace(small, draft=draft), terminal(), 100) as author:
            (part,), _ = author.parts(task)
            request = request_for(task, part)
            replies.append(author.answer(request, None))
            guessers = author.loaded.guessers
            assert ("edit" in guessers.sources) == (draft == "auto") == (guessers.follower is not None)
            if guessers.follower:
                prompt = author.template.encode(messages(request))
                copied = author.loaded.target.vocab.tokenize(f"```\n{OLD * 8}```", special=False)
                guessers.follower.begin(prompt)
                assert list(guessers.follower.propose(prompt, 20, lambda _: True).tokens) == copied[:20]
    assert replies[0] == replies[1]
    assert replies[0].finish_reason == "length"


def test_a_file_that_does_not_fit_the_context_is_asked_for_in_parts(small: Settings) -> None:
    Path("a.py").write_text("".join(f"def f{i}():\n    return {i}\n\n\n" for i in range(40)))
    task = Task(read("a.py"), "x")
    with opened(small, terminal(), 100) as author:
        parts, why = author.parts(task)
        assert f"asking for {len(parts)} parts" in why
        assert len(parts) > 1
        assert author.answer(request_for(task, parts[0]), None).text
        for length in (50, 5000):
            wrong = Wrong("No. " * length, "The answer has no code block.")
            assert author.answer(request_for(task, parts[0]), wrong).text
    Path("a.py").write_text("x = 1\n" * 500)
    status, _, err = run(instruction="x", settings=small, format="blocks")
    assert (status, "do not fit" in err) == (ExitStatus.USAGE, True)


def test_a_copied_file_is_guessed_and_nothing_is_read_behind_it(small: Settings) -> None:
    """The model is made to say what a good one would, and to go on."""
    names = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
    before = "".join(f"def {name}(x):\n    return x + {len(name)}\n\n\n" for name in names)
    Path("a.py").write_text(before)
    after = before.replace("delta", "omega")
    task = Task(read("a.py"), "rename delta to omega")
    with opened(replace(small, ctx=2048, max_tokens=None), terminal(), 100) as author:
        (part,), _ = author.parts(task)
        request = request_for(task, part)
        said = f"```\n{after}```\nI have renamed it. " + "Is there anything else? " * 20
        prompt = author.template.encode(messages(request))
        tokens = author.loaded.target.vocab.tokenize(said, special=False)
        generator, follower = author.loaded.generator, author.loaded.guessers.follower
        assert follower
        generator.sampler = Forced([*prompt, *tokens])
        generator.policy = Fixed((Source(follower, 15),))  # a pass of this model costs less than any look
        reply = author.answer(request, None)
        assert reply.text.startswith(f"```\n{after}```\n")
        assert (len(reply.text) < len(said) - 100, reply.finish_reason) == (True, "stop")
        counts = author.stats()
        assert counts["sources"]["edit"]["accepted"] > 0.8 * counts["tokens"]


def test_a_long_file_gets_the_context_it_needs(endless: Path) -> None:
    settings = Settings(model=str(endless), temp=0.0, threads=1, max_tokens=8)
    with opened(settings, terminal(), 100) as author:
        assert author.loaded.target.n_ctx == 4096  # all the model was trained on
    with opened(replace(settings, ctx=512), terminal(), 10**6) as author:
        assert author.loaded.target.n_ctx == 512


COMPLETE = {
    "a block": (f"```python\n{NEW}```\n", True),
    "with talk before it": (f"Sure:\n\n```\n{NEW}```\n", True),
    "not closed": (f"```python\n{NEW}", False),
    "an example": ("```\nx\n```\n", False),
    "none": (NEW, False),
}


@pytest.mark.parametrize(("answer", "complete"), COMPLETE.values(), ids=COMPLETE)
def test_nothing_is_awaited_behind_a_complete_answer(answer: str, complete: bool) -> None:
    assert is_complete(answer, OLD * 2) == complete


def test_a_text_with_fences_ends_at_a_longer_one() -> None:
    text = "a\n```\nb\n```\nc\n"
    assert not is_complete("```\na\n```\nb\n```\n", text)
    assert is_complete(f"````\n{text}````\n", text)


@pytest.mark.slow
def test_a_real_model_is_shown_checked_and_writes_nothing_without_consent(real_model: Path) -> None:
    """This one copies the functions and leaves out a blank line."""
    code = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n"
    Path("a.py").write_text(code)
    model = ["-m", str(real_model), "--ctx", "1024", "-n", "200", "-t", "1"]
    with Screen(child("-i", "Replace add with plus.", *model), env=LLAMA) as screen:
        screen.wait("Write a.py?")
        assert "% · " in screen.raw  # how far it has come
        assert "tokens/s" in screen.text
        assert "@@ -1,6 +1," in screen.text
        assert Path("a.py").read_text() == code
        screen.send("n")
        assert screen.exit_status() == ExitStatus.NOT_APPLIED
    assert Path("a.py").read_text() == code


@pytest.mark.slow
def test_what_a_real_model_gets_wrong_is_refused_with_a_reason(real_model: Path) -> None:
    """It leaves out half of the file, or talks in it: with --yes that must not get through."""
    code = "".join(f"def f{i}(a):\n    return a + {i}\n\n\n" for i in range(12))
    Path("a.py").write_text(code)
    settings = Settings(model=str(real_model), temp=0.0, threads=1, ctx=2048, seed=1, max_tokens=400)
    status, out, err = run(instruction="Add a docstring to f3.", yes=True, settings=settings)
    if status == ExitStatus.OK:  # then all that was there is still there
        compile(Path("a.py").read_text(), "a.py", "exec")
        assert all(f"def f{i}(" in Path("a.py").read_text() for i in range(12))
    else:
        assert (status, out, Path("a.py").read_text()) == (ExitStatus.NOT_APPLIED, "", code)
        assert "error: " in err
