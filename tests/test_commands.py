"""What a typed line is: a message or a command."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.commands import COMMANDS, Command, help_text, is_open, parse, split_path
from localspec.errors import UsageError


@pytest.mark.parametrize(
    ("line", "means"),
    [
        ("hello /help", "hello /help"),
        ("  hello \n", "hello"),
        ("/etc/hosts", "/etc/hosts"),
        ("/usr/bin is full", "/usr/bin is full"),
        ("/", "/"),
        ("//help", "/help"),
        ("//etc", "/etc"),
        ("", ""),
        ("/help", Command("help")),
        ("/?", Command("help")),
        ("/HELP ", Command("help")),
        ("/quit", Command("exit")),
        ("/bye", Command("exit")),
        ("/file a.py", Command("file", "a.py")),
        ("/system  be brief\nand kind", Command("system", "be brief\nand kind")),
        ("/model", Command("model")),
        ("/think off", Command("think", "off")),
    ],
)
def test_what_a_line_means(line, means):
    assert parse(line) == means


def test_an_unknown_command_names_the_nearest_and_never_goes_to_the_model():
    with pytest.raises(UsageError) as error:
        parse("/hlep me")
    assert error.value.message == "unknown command /hlep"
    assert error.value.hint == "did you mean /help? // sends a leading slash"
    with pytest.raises(UsageError) as error:
        parse("/xyzzyx")
    assert error.value.hint == "/help lists them; // sends a leading slash"


def test_arguments_too_many_or_missing_are_told():
    with pytest.raises(UsageError, match="/clear takes no argument"):
        parse("/clear all")
    with pytest.raises(UsageError, match="/file needs more") as error:
        parse("/file")
    assert "/file FILE" in error.value.hint


@pytest.mark.parametrize(
    ("text", "open_"),
    [
        ('"""', True),
        ('"""one', True),
        ('"""one\ntwo"""', False),
        ('""""""', False),
        ('""""', True),
        ('"""code with """docs""" in it', True),
        ("hello", False),
        ('say """', False),
    ],
)
def test_a_block_is_open_until_its_quotes_end_it(text, open_):
    assert is_open(text) is open_


def test_what_is_in_a_block_is_no_command():
    assert parse('"""\n/help\n//x\n"""') == "/help\n//x"
    assert parse('"""def f():\n    """doc"""\n"""') == 'def f():\n    """doc"""'
    assert parse('"""\n  indented\n"""') == "  indented"


@given(st.text())
def test_every_message_can_be_sent(text):
    """Doubling a leading slash, or quoting, gets any text through."""
    stripped = text.strip()
    if stripped and not stripped.startswith(('"""', "/")):
        assert parse(text) == stripped
    if stripped.startswith("/"):
        assert parse("/" + stripped) == stripped


def test_every_command_of_the_table_can_be_given_and_is_in_the_help():
    for entry in COMMANDS:
        line = f"/{entry.name} {entry.argument}"
        assert parse(line) == Command(entry.name, entry.argument)
        assert line.strip() in help_text()
        for alias in entry.aliases:
            assert isinstance(found := parse(f"/{alias} {entry.argument}"), Command)
            assert found.name == entry.name
            assert f"/{alias}" in help_text()
    assert max(map(len, help_text().splitlines())) <= 100


def test_paths_in_arguments():
    assert split_path("a.py make it fast") == ("a.py", "make it fast")
    assert split_path('"my file.py"  make it fast') == ("my file.py", "make it fast")
    assert split_path("a.py") == ("a.py", "")
    assert split_path('"open') == ("", '"open')
    assert split_path("") == ("", "")
