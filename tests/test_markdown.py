"""Markdown as rows: what a block is, that nothing is hidden, and that nothing but characters gets out."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from localspec.ui.markdown import CHUNK, CONTEXT, LONGEST, Block, cut, render, split_blocks

SGR = re.compile(r"\x1b\[[0-9;]*m")


def rows(text, width=60, color=False):
    """All rows of a whole text, without styles."""
    found = []
    for block in cut(Block(text, gap=False)):
        shown = render(block, width, color=color)
        found += ["", *shown] if block.gap and shown else shown
    return [SGR.sub("", row) for row in found]


PIECES = st.one_of(
    st.sampled_from(
        ["# Head\n", "text ", "**b** ", "`c` ", "\n", "\n\n", "- item\n", "  more\n", "1. one\n"]
    ),
    st.sampled_from(
        ["```py\n", "```\n", "~~~~\n", "x = 1\n", "    code\n", "> quote\n", "   1. sub\n", "* "]
    ),
    st.sampled_from(["| a | b |\n", "|---|---|\n", "<div>\n", "***\n", "---\n", "===\n", "[x]: http://y\n"]),
    st.sampled_from(
        ["中文字 ", "e\u0301", "👩\u200d👧 ", "\t", "\\", "&#27;", "&lrm;", "\x1b]0;x\x07", "\u202e"]
    ),
    st.sampled_from(["``", "`", "- ", "-", "|", "long" * 12, "[a](http://b)", "![i](j)", "_", "~", "= "]),
)
TEXTS = st.lists(PIECES, max_size=40).map("".join)


@pytest.mark.parametrize(
    ("text", "finished", "rest"),
    [
        ("", [], ""),
        ("one", [], "one"),
        ("one\n\n", [], "one\n\n"),
        ("one\n\ntwo", [], "one\n\ntwo"),  # it may yet become anything
        ("one\n\ntwo\n", ["one\n\n"], "two\n"),
        ("# a\ntext\n", ["# a\n"], "text\n"),
        ("text\n===\n", [], "text\n===\n"),
        ("- a\n- b\n", ["- a\n"], "- b\n"),
        ("- a\n\n  more\n- b\n", ["- a\n\n  more\n"], "- b\n"),
        ("- a\n  - b\n  - c\n", [], "- a\n  - b\n  - c\n"),
        ("```\na\n\n# b\n", [], "```\na\n\n# b\n"),
        ("```\na\n```\nb\n", ["```\na\n```\n"], "b\n"),
        ("````\n```\n````\nb\n", ["````\n```\n````\n"], "b\n"),
        ("~~~\n```\n~~~\nb\n", ["~~~\n```\n~~~\n"], "b\n"),
        ("| a |\n|---|\n| b |\n", [], "| a |\n|---|\n| b |\n"),
        ("> a\nlazy\n\nb\n", ["> a\nlazy\n\n"], "b\n"),
        ("[a]: http://b\n\nc\n", ["[a]: http://b\n\n"], "c\n"),
        ("<div>\n# a\n", ["<div>\n"], "# a\n"),
        ("<div>\na\n\nb\n", ["<div>\na\n\n"], "b\n"),
    ],
)
def test_blocks(text, finished, rest):
    assert split_blocks(text) == (finished, rest)


@given(TEXTS)
def test_blocks_are_the_text_and_finished_ones_stay_as_they_are(text):
    before: list[str] = []
    for end in range(len(text) + 1):
        finished, rest = split_blocks(text[:end])
        assert "".join(finished) + rest == text[:end]
        assert finished[: len(before)] == before
        before = finished


def test_long_code_is_cut_by_its_lines_alone():
    code = [f"line {i}\n" for i in range(100)]
    blocks = cut(Block("```py\n" + "".join(code)))
    ends = [block.text.count("\n") - 1 - block.shown for block in blocks]
    assert ends == [CHUNK] * (100 // CHUNK) + [100 % CHUNK]
    assert max(block.shown for block in blocks) == CONTEXT
    assert [block.gap for block in blocks] == [True] + [False] * (len(blocks) - 1)
    assert rows("```py\n" + "".join(code)) == ["```py", *(line.strip() for line in code)]


@pytest.mark.parametrize("closing", ["```\n", "```", "`````\n", ""])
def test_code_is_shown_with_its_fences_whatever_its_length(closing):
    for n in (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, CONTEXT + 2 * CHUNK):
        code = [f"  v{i} = {i}" for i in range(n)]
        text = "\n".join(["```python", *code, closing])
        assert rows(text) == ["```python", *code, *([closing.strip()] if closing else [])]


def test_colours_know_the_lines_before():
    """A line inside a long string is coloured as a string, though it is another block than its quotes."""
    text = '```py\nx = """\n' + "word\n" * 3 * CHUNK + '"""\n```\n'
    blocks = cut(Block(text, gap=False))
    colored = [row for block in blocks for row in render(block, 60, color=True)]
    assert set(colored[3:-3]) == {"\x1b[33mword\x1b[0m"}


GOLDEN = """\
# Title

Some **bold** and `code`, a [link](http://x.y/z) and <b>HTML</b>.

1. first
2. second
   - nested

* loose

* list

| a | b |
|---|--:|
| 1 | 2 |
| long cell | 中文 |

> quoted

[1]: http://ref

```sh
ls  -l
```
"""


def test_golden_rows_at_forty_columns():
    assert rows(GOLDEN, 40) == [
        "Title",
        "",
        "Some bold and code, a link",
        "(http://x.y/z) and <b>HTML</b>.",
        "",
        " 1 first",
        " 2 second",
        "    • nested",
        "",
        " • loose",
        "",
        " • list",
        "",
        " a             b",
        " ───────────────",
        " 1             2",
        " long cell  中文",
        "",
        "▌ quoted",
        "",
        "[1]: http://ref",
        "",
        "```sh",
        "ls  -l",
        "```",
    ]


def test_no_row_is_wider_than_twenty_columns():
    text = GOLDEN + "```\n" + "x" * 50 + "\n" + "中" * 15 + "\n```\n" + "> " * 18 + "deep\n"
    assert max(cell_len(row) for row in rows(text, 20)) <= 20
    assert "".join(rows(text, 20)).count("x") == 51


@settings(deadline=None)
@given(TEXTS, st.integers(1, 50))
@example("> " * 30 + "deep", 4)
@example("- " * 30 + "deep", 4)
def test_whatever_the_text_rows_fit_and_hold_nothing_but_characters(text, width):
    for block in cut(Block(text)):
        for row in render(block, width, color=True):
            plain = SGR.sub("", row)
            assert cell_len(plain) <= max(2, width)
            assert plain.isprintable() or not re.search(r"[\x00-\x1f\x7f-\x9f\u200e\u202e]", plain)


def test_without_colour_there_is_none():
    text = GOLDEN + '\n```py\ndef f(): return "x"\n```\n'
    for block in cut(Block(text)):
        for row in render(block, 60, color=False):
            assert not re.search(r"\x1b\[[0-9;]*[349][0-7]", row)


@pytest.mark.parametrize(
    "text",
    [
        "<div>\nhello\n</div>",
        "<!-- hidden -->",
        "![alt](http://u)",
        "[x]: http://hidden",
        "<http://auto>",
        "a <span style='display:none'>secret</span> b",
        "[text](http://elsewhere)",
        "&lt;tag&gt;",
    ],
)
def test_nothing_of_a_text_is_hidden(text):
    shown = " ".join(rows(text))
    for word in re.findall(r"hello|hidden|alt|http://\w+|secret|text|tag|style='display:none'", text):
        assert word in shown


def test_links_are_text_and_no_escape_codes():
    blocks = cut(Block("[x](http://y) https://z"))
    assert "\x1b]8" not in "".join(row for block in blocks for row in render(block, 60, color=True))


def test_a_huge_block_is_shown_as_it_is():
    text = "*a " * LONGEST
    assert "".join("".join(rows(text)).split()) == "".join(text.split())


def test_markup_of_the_renderer_is_text():
    assert rows("[red]x[/red] :smile: `[b]`") == ["[red]x[/red] :smile: [b]"]
