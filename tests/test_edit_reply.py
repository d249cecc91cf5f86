"""What answers mean: every text survives its fence, and the mistakes of small models are read or refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from localspec.chat.prompt import quote
from localspec.edit.reply import BadReply, Block, Blocks, has_markers, parse_blocks, parse_whole, unnumbered

FILE = "import os\n\n\ndef f(x):\n    return x\n\n\ndef g(x):\n    return os.path.join(x)\n"
NEW = FILE.replace("return x\n", "return x + 1\n")
README = "# Title\n\n```\npip install x\n```\n\nMore.\n\n```python\nimport x\n```\n\nEnd.\n"

pieces = st.sampled_from(
    ["```", "````", "~~~", "```py", "\n", "\n\n", "x = 1", "    y", "# T", " ", "\t", "<think>", "</think>",
     "é", "1: a", "2: b", "12 | x", "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "Here is the file:",
     "\u2028", "`", "...", "\x0c"]
)  # fmt: skip
texts = st.lists(pieces, max_size=25).map("".join) | st.text(
    st.characters(exclude_characters="\r"), max_size=80
)


def fenced(text: str, name: str = "Here") -> str:
    return quote(text, name)


@given(texts)
@example("")
@example("\n")
@example("a")
@example("a\n\n")
@example("```\n````\n")
@example("</think>\n")
def test_a_fenced_text_comes_back_unchanged(text: str) -> None:
    """As the text itself and its final newline were."""
    assume(text != "\n")  # looks the same as no text at all
    assert parse_whole(fenced(text), text).text == text


def test_a_fenced_empty_line_comes_back() -> None:
    assert parse_whole("```\n\n```\n", "\n").text == "\n"


@given(st.text(max_size=200) | texts, texts)
def test_whatever_the_answer_it_is_read_or_refused(reply: str, before: str) -> None:
    for parse in (parse_whole, parse_blocks):
        with contextlib.suppress(BadReply):
            parse(reply, before)


@pytest.mark.parametrize(
    "reply",
    [
        f"```python\n{NEW}```",
        f"```\n{NEW}```\n",
        f"~~~~ py\n{NEW}~~~~\n",
        f"````python\n{NEW}`````\n",
        f"Sure! Here is the file:\n\n```python\n{NEW}```\n\nI changed f.",
        f"app.py\n```\n{NEW}\n```\n".replace("\n\n```", "\n```"),
        f"<think>\nFirst ```x``` then\n```\ndraft\n```\n</think>\n\n```python\n{NEW}```",
        f"the user wants f changed\n</think>\n```python\n{NEW}```",
        f"[THINK]hm[/THINK]```python\n{NEW}```",
        f"```python\r\n{NEW}```\r\n".replace("\n", "\r\n").replace("\r\r", "\r"),
        f"Old:\n```python\n{FILE}```\nNew:\n```python\n{NEW}```\n",
        f"```python\n{NEW}```\nTo install:\n```bash\npip install x\n```\n",
        f"```python\n{NEW}```\n```python\n{NEW}```\n",
        NEW,
        f"\n{NEW}\n\n",
        f"{NEW}```\n",
        f"```python\n{NEW.removesuffix(chr(10))}```",
        "```\n" + "".join(f"{n} | {line}\n" for n, line in enumerate(NEW.split("\n")[:-1], 1)) + "```",
        "```\n"
        + "".join(f"{n}: {line}\n".replace(": \n", ":\n") for n, line in enumerate(NEW.split("\n")[:-1], 1))
        + "```",
        "```\n" + "".join(f"{n:>4}\t{line}\n" for n, line in enumerate(NEW.split("\n")[:-1], 40)) + "```",
    ],
)
def test_the_new_file_is_found(reply: str) -> None:
    whole = parse_whole(reply, FILE)
    assert whole.text == NEW
    assert not whole.notes.truncated


@pytest.mark.parametrize(
    ("reply", "remark"),
    [
        (f"```\n{NEW}```", None),
        (f"Sure:\n```\n{NEW}```", 'left out what stood around the code block: "Sure:"'),
        (f"<think>x</think>```\n{NEW}```", "left out the thinking"),
        (NEW, "no code block"),
        (f"```\n{FILE}```\n```\n{NEW}```", "2 code blocks"),
        (
            "```\n" + "".join(f"{n}\t{line}\n" for n, line in enumerate(NEW.split("\n")[:-1], 1)) + "```",
            "line numbers",
        ),
    ],
)
def test_what_was_tolerated_is_told(reply: str, remark: str | None) -> None:
    remarks = parse_whole(reply, FILE).notes.remarks
    assert (remarks == ()) if remark is None else any(remark in line for line in remarks)


@pytest.mark.parametrize(
    ("reply", "reason", "truncated"),
    [
        ("", "empty", False),
        ("\n \n", "empty", False),
        ("I'm sorry, but I cannot change files.", "no code block", False),
        ("Sure! Here is the updated file:\n\n" + NEW, "no code block", False),
        ("You should add one to x in the function f and then run it.", "no code block", False),
        ("```python\ndef a(): ...\n```\nand\n```python\ndef b(): ...\n```", "2 code blocks", False),
        (f"```\n{NEW}```\n```\n{NEW}x = 1\n```", "2 code blocks", False),
        ("Here it is:\n```python\n", "stops", True),
        ("<think>\nThe user wants", "thinking", True),
    ],
)
def test_an_answer_without_the_file_is_refused(reply: str, reason: str, truncated: bool) -> None:
    with pytest.raises(BadReply, match=reason) as caught:
        parse_whole(reply, FILE)
    assert caught.value.truncated is truncated


def test_a_fence_that_is_never_closed_is_a_truncated_answer() -> None:
    whole = parse_whole("```python\nimport os\n\n\ndef f(x):\n    ret", FILE)
    assert whole.notes.truncated
    assert whole.text == "import os\n\n\ndef f(x):\n    ret\n"


@pytest.mark.parametrize(
    "reply",
    [
        f"````markdown\n{README}````\n",
        f"~~~markdown\n{README}~~~\n",
        f"```markdown\n{README}```\n",  # no longer than those inside
        f"Here:\n```\n{README}```\n",
        f"````\n{README}````\nRun it:\n```\nx\n```\n",
    ],
)
def test_a_file_may_contain_fences(reply: str) -> None:
    assert parse_whole(reply, README).text == README


@pytest.mark.parametrize(
    ("before", "text"),
    [("a\n", "b\n"), ("a", "b"), ("", "b\n"), ("a\n\n", "b\n")],
)
def test_the_final_newline_stays_as_it_was(before: str, text: str) -> None:
    assert parse_whole("```\nb\n```", before).text == text


def test_an_unchanged_file_is_not_mistaken_for_the_example_beside_it() -> None:
    assert parse_whole(f"```\n{FILE}```\nLike so:\n```\nx = f(1)\n```\n", FILE).text == FILE


def test_an_empty_block_is_an_empty_file() -> None:
    assert parse_whole("```\n```", FILE).text == ""


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["1: a", "2: b"], ["a", "b"]),
        (["9 | a", "10 |", "11 |   b"], ["a", "", "  b"]),
        (["  7\t a", "  8\tb"], [" a", "b"]),
        (["1→a", "2→ b"], ["a", " b"]),
        (["1: a", "3: b"], None),
        (["1: a", "b"], None),
        (["1: a"], None),
        (["1: a", "2 | b"], None),
        ([], None),
    ],
)
def test_line_numbers_come_off_only_when_every_line_has_one(lines: list[str], text: list[str] | None) -> None:
    assert unnumbered(lines) == text


def test_a_numbered_file_keeps_its_numbers() -> None:
    assert parse_whole("```\n1: a\n2: c\n```", "1: a\n2: b\n").text == "1: a\n2: c\n"


def blocks(reply: str, before: str = FILE) -> Blocks:
    return parse_blocks(reply, before)


ONE = (Block(("    return x",), ("    return x + 1",)),)
PLAIN = "<<<<<<< SEARCH\n    return x\n=======\n    return x + 1\n>>>>>>> REPLACE\n"


@pytest.mark.parametrize(
    "reply",
    [
        PLAIN,
        f"```python\n{PLAIN}```\n",
        f"../../etc/passwd\n```\n{PLAIN}```\nDone!",
        PLAIN.replace("<<<<<<<", "<<<<<").replace("=======", "=====").replace(">>>>>>>", ">>>>>>>>>"),
        PLAIN.replace("SEARCH", "search").replace(" REPLACE", ""),
        PLAIN.replace("SEARCH", "ORIGINAL").replace("REPLACE", "UPDATED"),
        PLAIN.replace(">>>>>>> REPLACE", "<<<<<<< REPLACE"),
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("\n", "  \n", 1).rstrip("\n"),
        f"<think>Like <<<<<<< SEARCH?</think>\n{PLAIN}",
        "<<<<<<< SEARCH\n```py\n    return x\n```\n=======\n```py\n    return x + 1\n```\n>>>>>>> REPLACE",
        "<<<<<<< SEARCH\n5:     return x\n6:\n=======\n5:     return x + 1\n6:\n>>>>>>> REPLACE",
    ],
)
def test_blocks_are_read(reply: str) -> None:
    found = blocks(reply).blocks
    assert len(found) == 1
    assert (found[0].search[0].strip(), found[0].replace[0].strip()) == ("return x", "return x + 1")
    if "5:" not in reply and "  \n" not in reply:
        assert found == ONE


@pytest.mark.parametrize(
    ("reply", "reason", "truncated"),
    [
        ("", "no block", False),
        (f"```\n{NEW}```", "no block", False),
        (PLAIN.replace(">>>>>>> REPLACE\n", ""), "Block 1 has no line >>>>>>> REPLACE", True),
        (PLAIN + PLAIN[:40], "Block 2", True),
        (PLAIN.replace(">>>>>>> REPLACE\n", "") + PLAIN, "before the next", False),
        (PLAIN.replace("=======\n", ""), "Block 1 has no line =======", False),
    ],
)
def test_broken_blocks_are_refused(reply: str, reason: str, truncated: bool) -> None:
    with pytest.raises(BadReply, match=reason) as caught:
        blocks(reply)
    assert caught.value.truncated is truncated


def test_a_heading_underlined_like_a_divider_is_part_of_the_search() -> None:
    reply = "<<<<<<< SEARCH\nTitle\n=======\ntext\n=======\nTitle\n=======\nnew\n>>>>>>> REPLACE"
    found = blocks(reply, "Title\n=======\ntext\nmore\n")
    assert found.blocks == (Block(("Title", "=======", "text"), ("Title", "=======", "new")),)


def test_a_divider_that_cannot_be_told_is_refused() -> None:
    with pytest.raises(BadReply, match="more than one"):
        blocks("<<<<<<< SEARCH\na\n=======\nb\n=======\nc\n>>>>>>> REPLACE", "x\n")


def test_a_flood_of_dividers_is_refused_at_once() -> None:
    """Trying each of them would take their square."""
    with pytest.raises(BadReply, match="more than one"):
        blocks("<<<<<<< SEARCH\n" + "=======\n" * 20_000 + ">>>>>>> REPLACE\n")


def test_markers_in_a_file_are_seen() -> None:
    assert has_markers(f"x\n{PLAIN}")
    assert not has_markers("<<<<<<< HEAD\na\n=======\nb\n>>>>>>> main\n")
