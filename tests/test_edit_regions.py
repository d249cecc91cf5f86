"""Parts of a long file are the file, fit, and end where a reader would."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from localspec.edit.regions import CONTEXT_LINES, Region, lines_region, regions, splice
from localspec.errors import UsageError

LINES = st.sampled_from(
    [
        "",
        "a b",
        "    c",
        "\td e f",
        "}",
        "# note",
        "def f():",
        "    pass",
        "@x",
        "x = 1; y = (",
        ")",
        '"""',
        "\x0c",
        "u\u2028v",
    ]
)
TEXTS = st.lists(st.tuples(LINES, st.sampled_from(["\n", "\n", "\r\n", "\r"])), max_size=60).map(
    lambda lines: "".join(line + end for line, end in lines)
)


def words(text: str) -> int:
    """A start token, one for each word, one for each line: not additive, as with real vocabularies."""
    return 1 + len(text.split()) + text.count("\n")


@given(TEXTS, st.sampled_from([".py", ".txt", ""]), st.integers(12, 80))
@example("", ".py", 12)
@example("x", ".py", 12)
def test_regions_are_the_file_and_fit(text: str, suffix: str, limit: int) -> None:
    try:
        found = regions(text, suffix, limit, words)
    except UsageError:
        assert suffix == ".py"  # no line of these alone is too long
        return
    assert "".join(region.text for region in found) == text
    place = 1
    for region in found:
        assert region.first == place
        place = region.last + 1
        around = sum(words(part) for part in (region.head, region.tail) if part)
        assert words(region.text) + around <= limit
        assert text.count(region.head + region.text + region.tail) >= 1
    assert splice(text, {region: region.text for region in found}) == text


@given(TEXTS, st.integers(12, 40), st.data())
def test_a_region_is_replaced_and_nothing_else(text: str, limit: int, data: st.DataObject) -> None:
    found = regions(text, ".txt", limit, words)
    chosen = data.draw(st.sampled_from(found))
    at = found.index(chosen)
    before, after = ("".join(region.text for region in part) for part in (found[:at], found[at + 1 :]))
    assert splice(text, {chosen: "new\n"}) == before + "new\n" + after
    assert splice(text, {chosen: ""}) == before + after


PYTHON = '''\
"""Docs."""
import os

# About one.
# Two lines of it.
@decorated(
    1,
)
def one():
    # inside
    return """
def not_a_definition():
"""


X = 1; Y = [
    2]


class Two:
    def method(self):
        pass

    def other(self):
        pass
'''


def test_python_is_cut_at_top_level_definitions_with_what_belongs_to_them() -> None:
    found = regions(PYTHON, ".py", 33, words)
    assert [region.text.split("\n")[0] for region in found] == [
        '"""Docs."""',
        "# About one.",
        "X = 1; Y = [",
        "class Two:",
    ]
    assert [(region.first, region.last) for region in found] == [(1, 3), (4, 15), (16, 19), (20, 25)]


def test_small_definitions_share_a_region() -> None:
    text = "".join(f"def f{n}():\n    return {n}\n\n\n" for n in range(100))
    found = regions(text, ".py", 100, words)
    assert all(region.text.startswith("def ") for region in found)
    assert len(found) <= 1 + 100 * 8 // 70


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_python_with_any_line_end_and_a_byte_order_mark(ends: str) -> None:
    found = regions(
        "\ufeff" + PYTHON.replace("\n", ends), ".py", 33, lambda text: words(text.replace(ends, "\n"))
    )
    assert "class Two:" in [region.text.split(ends)[0] for region in found]


@pytest.mark.parametrize(
    "text",
    ["def f(:\n    x\n\n" * 9, "x\0y\n\n" * 9, "(" * 300 + "\n\n" * 40 + ")" * 300, "print 'a'\n\n" * 9],
)
def test_what_is_no_python_is_cut_as_any_text(text: str) -> None:
    found = regions(text, ".py", 16, words)
    assert len(found) > 1
    assert "".join(region.text for region in found) == text


def test_odd_escapes_in_python_are_no_warning() -> None:
    assert len(regions('x = "\\d"\n' * 20, ".py", 24, words)) > 1


C = """\
int one(void)
{
    if (x) {

        y();
    }
    return 1;
}

int two(void)
{
    return 2;
}

"""


def test_other_text_is_cut_after_a_blank_line_where_indentation_is_least() -> None:
    found = regions(C * 2, ".c", 32, words)
    assert [region.text.split("\n")[0] for region in found] == ["int one(void)", "int two(void)"] * 2


def test_prose_is_cut_between_paragraphs() -> None:
    text = "one two three\nfour five\n\n" * 20
    for region in regions(text, ".md", 60, words):
        assert region.text.startswith("one")
        assert region.text.endswith("\n\n")


def test_the_lines_around_are_there_to_read() -> None:
    text = "".join(f"line {n}\n" for n in range(1, 101))
    first, second, *_ = regions(text, "", 64, words)
    assert first.head == ""
    assert first.tail
    assert second.text.startswith(first.tail)
    assert second.head
    assert first.text.endswith(second.head)


def test_a_file_that_fits_is_one_region() -> None:
    assert regions("a\n\nb\n", "", 10, words) == (Region(1, 3, "a\n\nb\n"),)
    assert regions("", "", 10, words) == (Region(1, 0, ""),)
    assert splice("", {Region(1, 0, ""): "new"}) == "new"


def test_a_line_that_does_not_fit_is_refused_with_its_size() -> None:
    with pytest.raises(
        UsageError, match=r"^line 2 alone is 52 tokens, more than the 40 that fit$"
    ) as refused:
        regions("a\n" + "b " * 50 + "\nc\n", ".txt", 40, words)
    assert "--lines" in refused.value.hint


def test_a_definition_that_does_not_fit_is_refused_with_its_size() -> None:
    text = "import os\n\n\n# why\ndef long():\n" + "    a = 1\n" * 20 + "\n\nx = 1\n"
    with pytest.raises(
        UsageError, match=r"^lines 4-27 belong together and are 89 tokens, more than the 60 that fit$"
    ):
        regions(text, ".py", 60, words)


def test_what_leaves_no_room_for_context_is_taken_without() -> None:
    text = "a\n" * 30 + "b " * 37 + "\n" + "c\n" * 30
    long = next(region for region in regions(text, "", 40, words) if "b" in region.text)
    assert (long.text.strip("b \n"), long.head, long.tail) == ("", "", "")


def test_the_vocabulary_is_asked_about_little_text() -> None:
    asked = 0

    def count(text: str) -> int:
        nonlocal asked
        asked += len(text)
        return words(text)

    text = "".join(f"value {n}\n\n" for n in range(20_000))
    found = regions(text, "", 1000, count)
    assert len(found) > 50
    assert asked < 20 * len(text)


def test_a_new_text_without_a_line_end_does_not_join_the_next_line() -> None:
    text = "a\r\nb\r\nc\r\n"
    assert splice(text, {lines_region(text, "2"): "new"}) == "a\r\nnew\r\nc\r\n"
    assert splice(text, {lines_region(text, "3"): "new"}) == "a\r\nb\r\nnew"
    assert splice(text, {lines_region(text, "1"): "x\n", lines_region(text, "3"): ""}) == "x\nb\r\n"


@pytest.mark.parametrize(
    "region", [Region(1, 1, "b\n"), Region(2, 2, "a\n"), Region(3, 3, "c\n"), Region(1, 3, "a\nb\n")]
)
def test_a_region_of_another_text_is_refused(region: Region) -> None:
    if region.text == "a\nb\n":
        assert splice("a\nb\n", {region: "x"}) == "x"
    with pytest.raises(ValueError, match="another text"):
        splice("a\nB\n", {region: "x"})


def test_regions_that_overlap_are_refused() -> None:
    with pytest.raises(ValueError, match="another text"):
        splice("a\nb\n", {Region(1, 2, "a\nb\n"): "x", Region(2, 2, "b\n"): "y"})


NUMBERED = "".join(f"{n}\n" for n in range(1, 31)) + "31"


@pytest.mark.parametrize(
    ("which", "first", "last"),
    [
        ("2-4", 2, 4),
        ("2", 2, 2),
        ("30-", 30, 31),
        ("-3", 1, 3),
        ("1-31", 1, 31),
        ("31", 31, 31),
        (" 5-5 ", 5, 5),
    ],
)
def test_lines_by_number(which: str, first: int, last: int) -> None:
    region = lines_region(NUMBERED, which)
    assert (region.first, region.last) == (first, last)
    assert region.text.split() == [str(n) for n in range(first, last + 1)]
    assert region.head.split() == [str(n) for n in range(max(1, first - CONTEXT_LINES), first)]
    assert region.tail.split() == [str(n) for n in range(last + 1, min(31, last + CONTEXT_LINES) + 1)]


@pytest.mark.parametrize("which", ["0", "32", "0-3", "30-32", "5-4", "32-", "-32", "-0", "999999999"])
def test_lines_that_do_not_exist_are_refused_with_what_there_is(which: str) -> None:
    with pytest.raises(UsageError, match="the file has 31 lines"):
        lines_region(NUMBERED, which)


@pytest.mark.parametrize(
    "which", ["", "-", "a", "1-b", "1--2", "1-2-3", "+1", "1,2", "1.5", "٤", "1" * 5000, "1\n2"]
)
def test_what_is_no_range_is_refused(which: str) -> None:
    with pytest.raises(UsageError, match="is not a range of lines"):
        lines_region(NUMBERED, which)


def test_an_empty_file_has_no_lines() -> None:
    with pytest.raises(UsageError, match="the file is empty"):
        lines_region("", "1-")
