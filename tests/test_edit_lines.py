"""Line endings: what a model did not touch keeps every byte, what it wrote fits in."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from localspec.edit.lines import lf, restore, split

ENDINGS = ["\n", "\r\n", "\r"]
NOT_ENDINGS = "\v\f\x1c\x1d\x1e\x85\u2028\u2029"

words = st.text(st.sampled_from("ab \té" + NOT_ENDINGS), max_size=4)
texts = st.text(st.sampled_from("ab\r\n\f\u2028"), max_size=30)


@st.composite
def files(draw: st.DrawFn, line: st.SearchStrategy[str] = words, kinds: list[str] = ENDINGS) -> list[str]:
    """Lines with endings as a file could have them: split(join) gives them back."""
    lines = draw(st.lists(st.tuples(line, st.sampled_from(kinds)), max_size=12))
    text = "".join(content + ending for content, ending in lines) + draw(st.sampled_from(["", "end"]))
    return split(text)


def content(line: str) -> str:
    return line.rstrip("\r\n")


def ending(line: str) -> str:
    return line[len(content(line)) :]


def test_only_three_ends_of_line() -> None:
    text = f"a\nb\r\nc\rd{NOT_ENDINGS}\n\r\n\r\r\nlast"
    assert split(text) == ["a\n", "b\r\n", "c\r", f"d{NOT_ENDINGS}\n", "\r\n", "\r", "\r\n", "last"]
    assert lf(text) == f"a\nb\nc\nd{NOT_ENDINGS}\n\n\n\nlast"
    assert split("") == []


@given(texts)
def test_splitting_loses_nothing(text: str) -> None:
    lines = split(text)
    assert "".join(lines) == text
    assert all(lines)
    assert all(ending(line) in ENDINGS for line in lines[:-1])
    assert "".join(content(line) + "\n" * bool(ending(line)) for line in lines) == lf(text)


@given(texts, st.sampled_from([None, True, False]))
def test_unchanged_text_is_the_identical_text(text: str, final: bool | None) -> None:
    kept = final is None or final == lf(text).endswith("\n")
    if kept or not text:
        assert restore(text, lf(text), final) == text


@given(files(), st.data())
def test_one_word_changes_only_its_own_characters(lines: list[str], data: st.DataObject) -> None:
    if not lines:
        return
    i = data.draw(st.integers(0, len(lines) - 1))
    changed = [*lines]
    changed[i] = "word" + lines[i]
    assert restore("".join(lines), lf("".join(changed))) == "".join(changed)


@given(files(), texts, st.sampled_from([None, True, False]))
@example(["\n", "\r\n", "end"], "\r", None)
def test_the_model_s_words_come_out_whatever_the_endings(
    lines: list[str], new: str, final: bool | None
) -> None:
    out = restore("".join(lines), lf(new), final)
    lines_as_written = lf(new).removesuffix("\n")
    endings = ("", "\n") if final is None else ("\n" * (final and new != ""),)
    assert lf(out) in [lines_as_written + ending for ending in endings]


@given(st.sampled_from(ENDINGS), st.data())
def test_a_file_of_one_kind_of_ending_stays_so(kind: str, data: st.DataObject) -> None:
    lines = data.draw(files(kinds=[kind]))
    out = restore("".join(lines), lf(data.draw(texts)), True)
    if len(lines) > 1:
        assert {ending(line) for line in split(out)} <= {kind}


@given(files(line=st.integers(0, 10**9).map(str)), st.data())
def test_lines_that_stay_keep_their_endings(lines: list[str], data: st.DataObject) -> None:
    """Lines that occur once, some deleted, new ones between them: the others are unchanged bytes."""
    lines = list({content(line): line for line in lines}.values())
    new: list[str] = []
    for line in lines:
        new += data.draw(st.lists(st.sampled_from(["new1", "new2"]), max_size=2))
        new += [content(line)] if data.draw(st.booleans()) else []
    out = split(restore("".join(lines), "".join(line + "\n" for line in new), True))
    own = {content(line): ending(line) for line in lines}
    for line in out:
        assert ending(line) == (own.get(content(line)) or ending(line))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a\r\nb\nc\r", "A\nb\nC\n", "A\r\nb\nC\r"),  # in place
        ("a\r\nb\n", "a\nx\ny\nb\n", "a\r\nx\r\ny\r\nb\n"),  # inserted: as the line before
        ("a\r\nb\n", "x\na\nb\n", "x\r\na\r\nb\n"),  # at the beginning: as the line after
        ("a\r\nb\nc\r\nd\n", "a\nx\ny\nz\nd\n", "a\r\nx\ny\r\nz\r\nd\n"),  # two become three
        ("a\nb\r\nc", "a\nb\nc\nd", "a\nb\r\nc\r\nd"),  # the last line had no ending to give
        ("a\rx\r\n\nb", "a\n\nb", "a\r\rb"),  # \r and an empty line's \n would be one ending
        ("a", "a\nb", "a\nb"),  # nothing to go by
        ("", "a\nb\n", "a\nb\n"),
        ("", "a\nb", "a\nb"),
        ("a\r\n", "", ""),
        ("a\r\nb\r\n", "a\r\nc\r\n", "a\r\nc\r\n"),  # a model that writes \r\n itself
    ],
)
def test_new_lines_end_like_the_place_they_stand_in(old: str, new: str, expected: str) -> None:
    assert restore(old, new) == expected


@pytest.mark.parametrize("end", ENDINGS)
def test_final_newline_is_the_file_s_own(end: str) -> None:
    with_end, without = f"a{end}b{end}", f"a{end}b"
    assert restore(with_end, "a\nc") == f"a{end}c{end}"  # a reply that lost it
    assert restore(without, "a\nc\n") == f"a{end}c"  # or added it, in passing
    assert restore(with_end, "a\nb") == without  # unless that is the change
    assert restore(without, "a\nb\n") == with_end
    assert restore(with_end, "a\nc", False) == f"a{end}c"  # or it is asked for
    assert restore(without, "a\nc", True) == f"a{end}c{end}"
    assert restore(with_end, "a\nb", True) == with_end
    assert restore(without, "a\nb\n", False) == without


@pytest.mark.parametrize("repeated", [False, True])
def test_every_second_line_of_a_big_mixed_file(repeated: bool) -> None:
    """20 000 changes, with which difflib alone would be busy for minutes."""
    rng = random.Random(1)
    lines = [f"{k % 7 if repeated else k}" + rng.choice(ENDINGS) for k in range(40_000)]
    changed = [line if k % 2 else "x" + line for k, line in enumerate(lines)]
    assert restore("".join(lines), lf("".join(changed))) == "".join(changed)


def test_what_moved_far_keeps_its_endings_too() -> None:
    """A block moved over a longer one: the longer one stays, and neighbours of a change find their own."""
    old = [f"{k}" + ENDINGS[k % 3] for k in range(300)]
    moved = old[100:] + old[:100]
    out = split(restore("".join(old), lf("".join(moved))))
    assert out[:200] == old[100:]


def test_repeated_lines_between_changes_are_found_again() -> None:
    old = ["{\r\n", "}\n", "}\r", "a\r\n", "}\n", "{\n"]
    new = ["1", "{", "}", "}", "b", "c", "}", "{", "2"]
    assert restore("".join(old), "\n".join(new) + "\n") == "1\r\n{\r\n}\n}\rb\r\nc\r\n}\n{\n2\n"
