"""Suspicious changes are told, honest ones pass, and nothing a model writes can harm who looks at it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.edit.guards import Concern, examine, is_lazy
from localspec.edit.reply import Notes

FILE = "import os\n\n\n" + "".join(
    f"def f{n}(x):\n    return os.path.join(x, '{n}')\n\n\n" for n in range(12)
)
NEW = FILE.replace("return os.path.join(x, '3')", "return None")


PLAIN = Notes()


def concerns(
    before: str = FILE,
    after: str = NEW,
    name: str = "app.py",
    notes: Notes = PLAIN,
    finish: str = "stop",
    instruction: str = "let f3 return None",
    around: tuple[str, str] = ("", ""),
) -> tuple[Concern, ...]:
    return examine(
        before,
        after,
        name=name,
        reply_notes=notes,
        finish_reason=finish,
        instruction=instruction,
        around=around,
    )


def kinds(
    before: str = FILE,
    after: str = NEW,
    *,
    name: str = "app.py",
    finish: str = "stop",
    instruction: str = "let f3 return None",
) -> list[str]:
    found = concerns(before, after, name, finish=finish, instruction=instruction)
    return [concern.kind for concern in found]


@pytest.mark.parametrize(
    "after",
    [
        NEW,
        FILE,
        FILE.replace("os.path.join(x", "os.path.join(x, y"),
        f"# The rest API\n{FILE}",
        f"{FILE}# Loading...\nx = [*range(3)]\n",
        f"{FILE}\n\nclass P(Protocol):\n    def f(self) -> int: ...\n    def g(self) -> int:\n        ...\n",
        FILE.replace("def", "async def"),
        FILE.replace("    return", "        return"),
        f"{FILE}x = 'naïve — 日本語 👩\u200d💻'\n",
        f"{FILE}'''\n```\nx\n```\n'''\n",
    ],
)
def test_honest_changes_raise_nothing(after: str) -> None:
    assert kinds(FILE, after) == []


@pytest.mark.parametrize(
    "line",
    [
        "# ... rest of the code remains unchanged",
        "# ...",
        "    # …",
        "// ... existing code ...",
        "//...",
        "/* rest of the file */",
        "/* ... */",
        "<!-- The remaining sections are unchanged -->",
        "<!-- ... -->",
        "{/* ... other components ... */}",
        "-- rest of the statements stay the same",
        "; existing settings here",
        "% remaining sections",
        "# existing code",
        "# Rest of your code goes here",
        "# (rest of the class is unchanged)",
        "# The rest of the functions remain the same as before.",
        "# [unchanged]",
        "[unchanged]",
        "[... rest of the document ...]",
        "(rest unchanged)",
        "<rest of the file>",
        "... rest unchanged",
        "...",
        "…",
        "Rest of the code remains the same.",
        "# same as before",
        "# implementation here",
        "# Keep the existing implementation",
        "pass  # existing implementation",
        "foo();  // ... rest of the code",
        "# ... (other functions)",
        "// Other methods...",
        "REM rest of the file",
        "* ... remaining methods unchanged",
        "# todo: add the remaining functions",
    ],
)
def test_placeholders_are_seen(line: str) -> None:
    assert is_lazy(line)
    assert "lazy" in kinds("a = 1\nb = 2\n", f"a = 2\n{line}\n", name="x.txt")
    assert "lazy" not in kinds(f"a = 1\n{line}\n", f"a = 2\n{line}\n", name="x.txt")


@pytest.mark.parametrize(
    "line",
    [
        "# the REST client keeps the other end of the socket open",
        "rest = items[1:]",
        "# Loading...",
        "print('...')",
        "...defaults,",
        "  ...options }",
        "function f(...rest) {",
        "[...a, ...b].map(f)",
        "x[..., 0] = 1",
        "# retries the existing connection at most 3 times",
        "- other",
        "other:",
        "existing",
        "return same  # note",
        "# skip lines before the first heading",
        "If it existed before, the old file is kept as a backup copy.",
        "#include <other.h>",
        "    # one more test",
        "",
        "* item",
    ],
)
def test_ordinary_lines_are_no_placeholders(line: str) -> None:
    assert not is_lazy(line)


def test_a_body_replaced_by_dots_is_lazy_where_lines_are_gone() -> None:
    before = "def f(x):\n    y = x\n    return y\n"
    assert kinds(before, "def f(x):\n    ...\n") == ["lazy"]


@pytest.mark.parametrize(
    ("after", "instruction", "told"),
    [
        (FILE[: len(FILE) // 2], "rename f3", True),
        (FILE[: len(FILE) // 2], "delete the second half", False),
        (FILE[: len(FILE) // 2], "Simplify this file", False),
        (FILE[: len(FILE) * 4 // 5], "rename f3", False),
        ("x = 1\n" * 40, "rename f3", True),
        ("x = 1\n" * 40, "rewrite everything in one style", False),
        ("x = 1\n", "make it clearer", True),
    ],
)
def test_large_deletions_nobody_asked_for(after: str, instruction: str, told: bool) -> None:
    assert ("deletion" in kinds(FILE, after, instruction=instruction)) is told


def test_short_texts_may_lose_most_of_their_lines() -> None:
    assert kinds("a\nb\nc\nd\n", "a\n", name="x.txt") == []


@pytest.mark.parametrize("finish", ["length", "context", "cancelled"])
def test_answers_cut_short(finish: str) -> None:
    assert kinds(finish=finish) == ["truncated"]


def test_a_fence_that_was_never_closed() -> None:
    assert [c.kind for c in concerns(notes=Notes((), truncated=True))] == ["truncated"]


def test_nothing_left_and_nothing_changed() -> None:
    assert kinds(FILE, " \n") == ["empty"]
    assert kinds(FILE, FILE, finish="length") == []
    assert kinds("", "x = 1\n") == []


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("a.py", "x = 1\n", "x = (1\n"),
        ("a.PY", "x = 1\n", "x = 1\n  y = 2\n"),
        ("a.json", '{"a": 1}\n', '{"a": 1,}\n'),
        ("dir.d/a.toml", "a = 1\n", "a = \n"),
        ("a.py", "", "x = = 1\n"),
    ],
)
def test_a_file_that_no_longer_parses(name: str, good: str, bad: str) -> None:
    (concern,) = concerns(good, bad, name=name)
    assert concern.kind == "syntax"
    assert re.search(r"not valid (Python|JSON|TOML): .+line \d", concern.words)
    assert kinds(bad, f"{bad}z", name=name) == []  # it did not parse before
    assert kinds(good, bad, name="a.c") == []


def test_a_part_is_parsed_within_its_file() -> None:
    around = ("def f():\n", "    return 2\n")
    assert concerns("    x = 1\n", "    x = 2\n", around=around) == ()
    assert [c.kind for c in concerns("    x = 1\n", "  x = 2\n", around=around)] == ["syntax"]


@pytest.mark.parametrize(
    ("name", "bomb"),
    [
        ("a.py", "(" * 100_000),
        ("a.py", "-" * 200_000 + "1"),
        ("a.py", "x = " + "a." * 100_000 + "b"),
        ("a.py", "not " * 100_000 + "1"),
        ("a.py", "x = 1\0"),
        ("a.py", "x = '\udc80'"),
        ("a.py", "9" * 5_000),
        ("a.json", "[" * 100_000),
        ("a.json", "9" * 5_000),
        ("a.toml", "a = " + "[" * 100_000),
    ],
)
def test_hostile_nesting_is_told_not_suffered(name: str, bomb: str) -> None:
    assert "syntax" in kinds("", bomb, name=name)


def test_a_dotted_key_that_would_keep_the_library_busy_is_not_judged() -> None:
    assert kinds("", "a" + ".a" * 100_000 + " = 1\n", name="a.toml") == []


def test_warnings_of_the_parser_stay_inside() -> None:
    """Warnings are errors in these tests."""
    assert kinds("x = 1\n", "x = '\\d' is 1\n") == []


@pytest.mark.parametrize(
    ("after", "kind", "name"),
    [
        (f"```python\n{NEW}```\n", "fences", "a.txt"),
        (f"{NEW}```\n", "fences", "a.c"),
        (f"{NEW}```\n", "fences", "a.md"),
        (f"{NEW}>>>>>>> REPLACE\n", "fences", "a.txt"),
        (f"{NEW}=======\n", "fences", "a.c"),
        (f"Here is the updated file:\n\n{NEW}", "prose", "a.txt"),
        (f"{NEW}\nI\u2019ve changed f3.\n", "prose", "a.txt"),
        (f"{NEW}\nThis code returns None.\n", "prose", "a.txt"),
        ("".join(f"{n} | {line}\n" for n, line in enumerate(NEW.split("\n"), 1)), "numbers", "a.txt"),
        (f"{NEW}<|im_end|>", "tokens", "a.txt"),
        (f"{NEW}<\uff5cend\u2581of\u2581sentence\uff5c>", "tokens", "a.txt"),
        (f"{NEW}</s>", "tokens", "a.txt"),
        (f"{NEW}</think>", "tokens", "a.txt"),
        (f"{NEW}# \u202e x", "invisible", "a.txt"),
        (f"{NEW}a\u200bb", "invisible", "a.txt"),
        (f"{NEW}a\u200db", "invisible", "a.txt"),
        (f"{NEW}\x1b[2J", "invisible", "a.txt"),
        (f"{NEW}\U000e0041", "invisible", "a.txt"),
        (f"{NEW}\ufeff", "invisible", "a.txt"),
        (f"{NEW}\u2028", "invisible", "a.txt"),
    ],
)
def test_what_does_not_belong_into_a_file(after: str, kind: str, name: str) -> None:
    assert kind in kinds(FILE, after, name=name)
    assert kinds(after, after + "x\n", name=name) == []


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ("# T\n", "# T\n\n```\nx\n```\n", "a.md"),
        ("T\n", "T\n=======\n", "a.md"),
        ("a <s>b</s>\n", "a <s>b</s> <s>c</s>\n", "a.html"),
        ("a\n", "<s>b</s>\n", "a.html"),
        ("1: a\n2: b\n3: c\n", "1: a\n2: b\n3: d\n", "a.yaml"),
        ("<|im_end|>\n", "<|im_end|>\nx\n", "a.txt"),
        ("a\u202eb\n", "a\u202ebc\n", "a.txt"),
        ("\u0645\u06cc\u200c\u062e\n", "\u0645\u06cc\u200c\u062e \u0645\u06cc\u200c\u062e\n", "a.txt"),
    ],
)
def test_what_does_belong_there(before: str, after: str, name: str) -> None:
    assert kinds(before, after, name=name) == []


def test_invisible_characters_are_named_with_their_line() -> None:
    (concern,) = concerns("a\n", "a\nb\u202e\nc\u202e\n", name="a.txt")
    assert "U+202E RIGHT-TO-LEFT OVERRIDE (line 2, and 1 more)" in concern.words


nasty = st.text(max_size=60) | st.lists(
    st.sampled_from(
        [
            "```",
            "\n",
            "# ...",
            "<|im_end|>",
            "(",
            "\u202e",
            "x = 1",
            "1: ",
            "\0",
            "\udc80",
            "a.b",
            "[",
            "Sure",
        ]
    )
).map("".join)


@given(nasty, nasty, st.sampled_from(["a.py", "a.json", "a.toml", "a.md", "", "a\0.py"]), nasty)
def test_whatever_the_texts_they_are_judged(before: str, after: str, name: str, instruction: str) -> None:
    for concern in concerns(before, after, name, instruction=instruction):
        assert concern.words
        assert len(concern.words) < 300
