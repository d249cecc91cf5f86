"""What Tab offers."""

from __future__ import annotations

import pytest

from localspec.chat.commands import COMMANDS, split_path
from localspec.chat.complete import MOST, complete, list_folder

MODELS = ("qwen3-4b", "qwen3-8b", "smollm2")
FOLDERS = {
    "": [("b.py", False), ("a.py", False), ("src", True), ("my file.txt", False), (".git", True)],
    "src/": [("main.py", False), ("old stuff", True)],
    "evil/": [("a\x1b]0;x\x07", False), ("b\nc", False), ('d"e', False), ("f\u202eg", False), ("ok", False)],
}


def offered(before, models=lambda: MODELS):
    """The lines that Tab would make of `before`."""

    def listing(folder):
        if folder not in FOLDERS:
            raise FileNotFoundError(folder)
        return FOLDERS[folder]

    found = complete(before, models, listing)
    return [before[: len(before) - candidate.replaces] + candidate.text for candidate in found]


@pytest.mark.parametrize(
    ("before", "lines"),
    [
        ("/mo", ["/model "]),
        ("/s", ["/system ", "/stats", "/save ", "/sessions "]),
        ("/xyz", []),
        ("hello /mo", []),
        ("/model q", ["/model qwen3-4b", "/model qwen3-8b"]),
        ("/draft SM", ["/draft smollm2"]),
        ("/model qwen3-4b x", []),
        ("/file ", ["/file a.py", "/file b.py", '/file "my file.txt"', "/file src/"]),
        ("/edit src/m", ["/edit src/main.py"]),
        ("/save src/o", ['/save "src/old stuff/']),
        ('/file "src/old', ['/file "src/old stuff/']),
        ('/file "b', ['/file "b.py"']),
        ("/file .", ["/file .git/"]),
        ("/edit a.py b", []),
        ("/file nowhere/", []),
        ("explain @src/", ["explain @src/main.py", 'explain @"src/old stuff/']),
        ("me@b", []),
        ("plain text", []),
        ("", []),
    ],
)
def test_what_is_offered(before, lines):
    assert offered(before) == lines


def test_all_commands_are_offered_for_a_slash():
    assert [line.strip() for line in offered("/")] == [f"/{entry.name}" for entry in COMMANDS]


def test_names_that_could_drive_the_terminal_are_not_offered():
    assert offered("@evil/") == ["@evil/ok"]
    assert offered("/model ", lambda: ("a\x1b[2J", "b\u202e", "c")) == ["/model c"]


def test_what_is_offered_reads_back_as_the_same_path():
    for line in offered("/file "):
        assert split_path(line.removeprefix("/file "))[0] in [n + "/" * f for n, f in FOLDERS[""]]


def test_lists_are_bounded():
    found = complete("@", tuple, lambda _: ((f"{i:06}", False) for i in range(10**9)))
    assert len(found) == MOST


def test_models_are_asked_for_only_where_one_is_wanted():
    def ask():
        raise AssertionError("nobody wants a model")

    assert complete("/mo", ask, list_folder)
    assert complete("text", ask, list_folder) == []


def test_the_files_of_this_machine(tmp_path, monkeypatch):
    (tmp_path / "one.txt").touch()
    (tmp_path / "two").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sorted(list_folder("~/")) == [("one.txt", False), ("two", True)]
    monkeypatch.chdir(tmp_path)
    assert sorted(list_folder("")) == [("one.txt", False), ("two", True)]
    with pytest.raises(OSError, match="nowhere"):
        list(list_folder("nowhere/"))
