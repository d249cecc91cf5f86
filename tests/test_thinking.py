"""Thinking is told apart from the answer, however the text is cut, and no tag is ever shown in part."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import eq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.thinking import FAMILIES, THINK, Kind, Tags, Thinking, tags_of

HARMONY, GEMMA, MISTRAL, _ = FAMILIES
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"


def split(tags: Tags, pieces: Sequence[str], opened: bool = False) -> dict[Kind, str]:
    thinking = Thinking(tags, opened=opened)
    parts = [part for piece in pieces for part in thinking.feed(piece)] + thinking.finish()
    assert all(text for _, text in parts)
    return {
        kind: "".join(text for k, text in parts if k == kind)
        for kind in ("thinking", "answer")
        if any(k == kind for k, _ in parts)
    }


CASES = {
    "plain": (THINK, False, "Hello, world.", "", "Hello, world."),
    "plain with space around": (THINK, False, "\n  Hello \n", "", "\n  Hello \n"),
    "only space": (THINK, False, " \n", "", " \n"),
    "nothing": (THINK, False, "", "", ""),
    "think": (
        THINK,
        False,
        "<think>\nLet me see.\n\nYes.\n</think>\n\nIt is 4.\n",
        "Let me see.\n\nYes.",
        "It is 4.\n",
    ),
    "think after space": (THINK, False, "\n<think>a</think>b", "a", "b"),
    "opened by the prompt": (THINK, True, "Hm.\n</think>\n\n4", "Hm.", "4"),
    "opened by the prompt and again": (THINK, True, "\n<think>\nHm.</think>4", "Hm.", "4"),
    "no thoughts": (THINK, False, "<think>\n\n</think>\n\n4", "", "4"),
    "not closed": (THINK, False, "<think>\nHm, </thi", "Hm, </thi", ""),
    "not closed, opened by the prompt": (THINK, True, "Hm. \n", "Hm.", ""),
    "half a tag": (THINK, False, "<thi", "", "<thi"),
    "an opening tag in thinking": (THINK, True, "the tag <think> is</think>b", "the tag <think> is", "b"),
    "tags in the answer": (THINK, False, "Write <think>x</think> so.", "", "Write <think>x</think> so."),
    "tags in the answer after thinking": (
        THINK,
        False,
        "<think>a</think>b </think> <think>",
        "a",
        "b </think> <think>",
    ),
    "a stray closing tag": (THINK, False, "</think>\n\n4", "", "4"),
    "two blocks": (THINK, False, "<think>a</think>\n<think>b</think>c", "ab", "c"),
    "almost a tag": (THINK, True, "a </ b </thin> c</think> d", "a </ b </thin> c", "d"),
    "mistral": (MISTRAL, False, "[THINK]Ü[/THINK]Ja [THINK]", "Ü", "Ja [THINK]"),
    "gemma": (GEMMA, False, "<|channel>thought\nHm\n<channel|>Yes", "Hm", "Yes"),
    "gemma, no thoughts": (GEMMA, False, "<|channel>thought\n<channel|>Yes", "", "Yes"),
    "harmony": (HARMONY, False, f"{ANALYSIS}Hm<|end|><|start|>assistant{FINAL}4 \n", "Hm", "4 \n"),
    "harmony, final only": (HARMONY, False, f"{FINAL}4", "", "4"),
    "harmony, twice": (
        HARMONY,
        False,
        f"{ANALYSIS}a<|end|><|start|>assistant<|channel|>commentary<|message|>b<|end|><|start|>assistant{FINAL}c",
        "ab",
        "c",
    ),
    "harmony, after the answer": (HARMONY, False, f"{FINAL}a<|end|><|start|>assistant{ANALYSIS}b", "b", "a"),
    "harmony, opened by the prompt": (HARMONY, True, f"Hm<|end|><|start|>assistant{FINAL}4", "Hm", "4"),
}


@pytest.mark.parametrize(("tags", "opened", "text", "thought", "said"), CASES.values(), ids=CASES.keys())
def test_each_family(tags: Tags, opened: bool, text: str, thought: str, said: str) -> None:
    expected = {kind: part for kind, part in (("thinking", thought), ("answer", said)) if part}
    assert split(tags, [text], opened) == expected
    assert split(tags, list(text), opened) == expected  # a character at a time
    assert Thinking(tags, opened=opened).strip(text) == said


@given(st.data(), st.sampled_from(FAMILIES), st.booleans())
def test_the_cuts_do_not_matter(data: st.DataObject, tags: Tags, opened: bool) -> None:
    words = st.sampled_from([*tags.all, "<", " ", "\n", "a", "é", tags.closes[0][:4]])
    text = "".join(data.draw(st.lists(words, max_size=10)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20)))
    pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(tags, pieces, opened) == split(tags, [text], opened)


@pytest.mark.parametrize("tags", FAMILIES)
def test_no_part_of_a_tag_is_shown(tags: Tags) -> None:
    thinking = Thinking(tags)
    shown = [thinking.feed(char) for char in f"{tags.before}abc{tags.between}def"]
    assert "".join(text for parts in shown for kind, text in parts if kind == "thinking") == "abc"
    assert "".join(text for parts in shown for kind, text in parts if kind == "answer") == "def"


def test_text_comes_as_soon_as_it_is_certain() -> None:
    thinking = Thinking(THINK)
    assert (thinking.feed("<think>"), thinking.inside) == ([], True)
    assert thinking.feed("\nabc <") == [("thinking", "abc")]
    assert thinking.feed("b\n") == [("thinking", " <b")]
    assert (thinking.feed("</think>\nd\n"), thinking.inside) == ([("answer", "d\n")], False)
    assert thinking.feed("<think") == [("answer", "<think")]
    assert thinking.finish() == []


def test_what_was_thought_alone_has_no_answer() -> None:
    thinking = Thinking(THINK, opened=True)
    assert thinking.feed("abc") == [("thinking", "abc")]
    assert thinking.finish() == []
    assert thinking.inside


@pytest.mark.parametrize(
    ("source", "tail", "tags", "opened"),
    [
        ("{{ content.split('</think>')[-1] }}", "<|im_start|>assistant\n", THINK, False),
        ("{{ content.split('</think>')[-1] }}", "<|im_start|>assistant\n<think>\n", THINK, True),
        ("{{ '<think>\n\n</think>\n\n' }}", "<|im_start|>assistant\n<think>\n\n</think>\n\n", THINK, False),
        (
            "{{ '<think>' }}",
            "<|im_start|>user\nwhat is <think>\n<|im_end|>\n<|im_start|>assistant\n",
            THINK,
            False,
        ),
        ("{{ '<|channel|>analysis<|message|>' }}", "<|start|>assistant", HARMONY, False),
        ("{{ text.split('<channel|>') }}", "<|turn>model\n", GEMMA, False),
        ("{{ text.split('<channel|>') }}", "<|turn>model\n<|channel>thought\n", GEMMA, True),
        ("{{ '[THINK]' + x + '[/THINK]' }}", "[/INST]", MISTRAL, False),
        ("{{ messages }}", "", THINK, False),
        (None, "", THINK, False),
    ],
)
def test_the_tags_are_found_in_the_template(source: str | None, tail: str, tags: Tags, opened: bool) -> None:
    thinking = Thinking.of(source, tail)
    assert (thinking.tags, thinking.inside) == (tags, opened)


def test_the_tags_are_found_in_the_vocabulary() -> None:
    for tags in FAMILIES:
        knows = partial(eq, tags.sign)
        assert tags_of(None, knows) is tags
        assert tags_of("</think>", knows) is THINK
