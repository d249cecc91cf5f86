"""Blocks applied to a text: exactly what they say, or nothing and a reason that names the lines."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from localspec.edit.apply import apply
from localspec.edit.reply import BadReply, Block, parse_blocks

FILE = "class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 2\n"


def block(search: str, replace: str) -> Block:
    """From texts whose lines all end."""
    return Block(tuple(search.split("\n")[:-1]), tuple(replace.split("\n")[:-1]))


def outcome(text: str, blocks: list[Block]) -> tuple[str | None, str]:
    """The new text, or None and the reason why there is none."""
    try:
        return apply(text, blocks).text, ""
    except BadReply as bad:
        return None, bad.reason


words = st.text("ab \t=`<", min_size=1, max_size=6).filter(str.strip)


@given(
    st.lists(st.tuples(st.booleans(), st.lists(words, max_size=3)), min_size=1, max_size=12), st.booleans()
)
def test_blocks_do_what_replacing_the_lines_does(rows: list[tuple[bool, list[str]]], ends: bool) -> None:
    """Every line is unique; some give way to other lines, all at once."""
    old = [f"{at} line" for at in range(len(rows))]
    asked = [Block((line,), tuple(new)) for line, (wanted, new) in zip(old, rows, strict=True) if wanted]
    new = [
        word
        for line, (wanted, lines) in zip(old, rows, strict=True)
        for word in (lines if wanted else [line])
    ]
    final = "\n" * ends
    applied = apply("\n".join(old) + final, asked[::-1])
    assert applied.text == ("\n".join(new) + final if new else "")
    assert applied.notes == ()


@given(
    st.text("ab \n", max_size=30),
    st.lists(st.tuples(st.text("ab \n", max_size=8), st.text("ab \n", max_size=8))),
)
def test_whatever_the_blocks_say_they_apply_or_are_refused(text: str, pairs: list[tuple[str, str]]) -> None:
    result, reason = outcome(
        text, [Block(tuple(old.split("\n")), tuple(new.split("\n"))) for old, new in pairs]
    )
    assert (result is None) == ("Nothing was changed" in reason)


@given(st.lists(st.sampled_from(["a", "  a", "b ", "", "\tc"]), min_size=1, max_size=8), st.data())
def test_a_piece_put_in_its_own_place_changes_nothing(lines: list[str], data: st.DataObject) -> None:
    assume(any(lines))
    start = data.draw(st.integers(0, len(lines) - 1))
    piece = tuple(lines[start : data.draw(st.integers(start + 1, len(lines)))])
    text = "\n".join(lines) + "\n"
    result, reason = outcome(text, [Block(piece, piece)])
    assert result == text or "more than once" in reason or not any(piece)


@pytest.mark.parametrize(
    ("text", "search", "replace", "result", "note"),
    [
        (FILE, "        return 1\n", "        return 3\n", FILE.replace("1", "3"), None),
        ("a\nb", "b\n", "c\n", "a\nc", None),
        ("a\nb\n", "b\n", "", "a\n", None),
        ("a\n", "a\n", "", "", None),
        (FILE, "\n        return 1\n\n", "\n        return 3\n\n", FILE.replace("1", "3"), "blank lines"),
        ("a  \nb\nc\n", "a\nb\n", "a\nB\n", "a  \nB\nc\n", "spaces at line ends"),
        (FILE, "def f(self):\n    return 1\n", "def f(self):\n    if x:\n        return 3\n",
         FILE.replace("return 1", "if x:\n            return 3"), "indentation"),
        (FILE, "            return 1\n", "            return 3\n\n",
         FILE.replace("return 1\n", "return 3\n\n"), "indentation"),
        ("\tif x:\n\t\ty\n", "if x:\n\ty\n", "if z:\n\ty\n", "\tif z:\n\t\ty\n", "indentation"),
        ("", "", "a\n", "a\n", None),
        ("\n", "", "a\n", "a\n", None),
        ("", "\n", "a\nb\n", "a\nb\n", None),
    ],
)  # fmt: skip
def test_the_ladder(text: str, search: str, replace: str, result: str, note: str | None) -> None:
    applied = apply(text, [block(search, replace)])
    assert applied.text == result
    assert (note in applied.notes[0]) if note else (applied.notes == ())


def test_an_exact_place_wins_over_looser_ones() -> None:
    assert apply("  x\nx\nx \n", [block("x\n", "y\n")]).text == "  x\ny\nx \n"


@pytest.mark.parametrize(
    ("text", "blocks", "reason"),
    [
        ("x\ny\nx\n", [block("x\n", "z\n")], "more than once, beginning at lines 1, 3"),
        (" x\ny\n  x\n", [block("x\n", "z\n")], "more than once, beginning at lines 1, 3"),
        ("x\n" * 9, [block("x\n", "z\n")], "1, 2, 3, 4 and more"),
        (FILE, [block("", "x\n")], "Block 1 has no SEARCH lines"),
        (FILE, [block("        retrun 1\n", "x\n")], "Did you mean line 3"),
        (FILE, [block("    def f(self):\n        return 7\n", "x\n")], "Did you mean lines 2-3"),
        (FILE, [block("import numpy\n", "x\n")], "nor anything like them"),
        ("", [block("a\n", "b\n")], "nor anything like them"),
        ("a\nb\nc\n", [block("a\nb\n", "x\n"), block("b\nc\n", "y\n")], "Blocks 1 and 2 both change line 2"),
        ("a\nb\n", [block("a\n", "a\nx\n"), block("a\nb\n", "a\ny\nb\n")], "Blocks 1 and 2 both change"),
        ("\tx\n    y\n", [block("  x\n", "z\n")], "not in the text"),
    ],
)
def test_what_has_no_place_of_its_own_is_refused(text: str, blocks: list[Block], reason: str) -> None:
    with pytest.raises(BadReply) as caught:
        apply(text, blocks)
    assert reason in caught.value.reason


def test_every_failing_block_is_described_and_none_is_applied() -> None:
    good, bad, worse = block("b\n", "B\n"), block("a\n", "A\n"), block("nowhere\n", "")
    with pytest.raises(BadReply) as caught:
        apply("a\nb\na\n", [good, bad, worse])
    assert "block 2" in caught.value.reason
    assert "block 3" in caught.value.reason
    assert "block 1 " not in caught.value.reason


def test_near_misses_are_shown_as_they_stand() -> None:
    with pytest.raises(BadReply) as caught:
        apply(FILE, [block("    def f(self):\n        return 0\n", "x\n")])
    assert "```\n    def f(self):\n        return 1\n```" in caught.value.reason


def test_blocks_may_share_lines_that_neither_changes() -> None:
    asked = [block("a\nb\n", "A\nb\n"), block("b\nc\n", "b\nC\n")]
    assert apply("a\nb\nc\n", asked).text == "A\nb\nC\n"


def test_a_repeated_block_counts_once_and_an_idle_one_is_told() -> None:
    applied = apply("a\nb\n", [block("a\n", "A\n"), block("a\n", "A\n"), block("b\n", "b\n")])
    assert applied.text == "A\nb\n"
    assert applied.notes == ("block 2 repeats block 1", "block 3 changes nothing")


def test_blocks_apply_to_the_text_as_it_was() -> None:
    assert apply("a\nb\n", [block("a\n", "b\n"), block("b\n", "a\n")]).text == "b\na\n"


def test_from_an_answer_to_the_text() -> None:
    reply = "app.py\n```\n<<<<<<< SEARCH\ndef g(self):\n=======\ndef h(self):\n>>>>>>> REPLACE\n```\n"
    assert apply(FILE, parse_blocks(reply, FILE).blocks).text == FILE.replace("g(self)", "h(self)")


def test_a_long_file_of_equal_lines_is_no_burden() -> None:
    """Looks at a few places, not at all pairs."""
    with pytest.raises(BadReply, match="more than once"):
        apply("x\n" * 200_000, [block("x\n" * 1_000, "y\n")])
