"""The source that follows a file being rewritten: where it goes on after each kind of change, and that it
cannot change the text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.bench.replay import VirtualClock
from localspec.drafters import EditDrafter, NgramDrafter, align
from localspec.drafters.align import Original, replaced_words, shifted
from localspec.drafters.changes import Habit
from localspec.engine.cost import PassCosts
from localspec.engine.generate import Fixed, Generator, common_prefix
from localspec.engine.sampling import Sampler
from localspec.engine.schedule import Scheduler
from localspec.engine.sources import Free
from localspec.engine.types import Proposal, Sampling
from localspec.llama.model import LlamaModel

FENCE = "```\n"


@dataclass
class Words:
    """A tokenizer like those of models: words take the space before them, indentation a break before it."""

    known: list[bytes] = field(default_factory=list)
    asked: int = 0

    def tokenize(self, text: str) -> list[int]:
        self.asked += 1
        found = re.findall(r" ?[A-Za-z]+|_|\d|\s+(?!\S)|\s+| ?[^\sA-Za-z\d_]+", text)
        assert "".join(found) == text
        return [self._id(part.encode()) for part in found]

    def piece(self, token: int) -> bytes:
        return self.known[token] if 0 <= token < len(self.known) else b"?"

    def text(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.piece, tokens)).decode()

    def _id(self, part: bytes) -> int:
        if part not in self.known:
            self.known.append(part)
        return self.known.index(part)


@dataclass
class Rewriting:
    """`before` is rewritten as `after`; the reply comes behind a prompt of two tokens."""

    before: str
    after: str
    words: Words = field(default_factory=Words)

    def __post_init__(self) -> None:
        tokenize = self.words.tokenize
        self.reply = tokenize(f"{FENCE}{self.after}```")
        self.drafter = EditDrafter(self.words.piece, tokenize)
        self.prompt = tokenize("Do it")
        self.original = tokenize(f"{FENCE}{self.before}```")
        self.drafter.follow_file(self.original, len(self.prompt))
        self.drafter.begin(self.prompt)

    def guess(self, said: str, limit: int = 47) -> Proposal:
        """What it proposes when the reply is so far what ends with the first `said` in it."""
        end = f"{FENCE}{self.after}".index(said) + len(said)
        length = next(n for n in range(len(self.reply) + 1) if len(self.words.text(self.reply[:n])) >= end)
        assert len(self.words.text(self.reply[:length])) == end, "give whole tokens"
        return self.at(length, limit)

    def at(self, length: int, limit: int = 47) -> Proposal:
        return self.drafter.propose([*self.prompt, *self.reply[:length]], limit, lambda _: True)

    def says(self, said: str) -> str:
        return self.words.text(self.guess(said).tokens)

    def passes(self) -> int:
        """Passes that the whole reply takes when every guess is checked, 47 at most."""
        place = count = 0
        while place < len(self.reply):
            place += common_prefix(self.at(place).tokens, self.reply[place:]) + 1
            count += 1
        return count


CODE = """import os
import sys

def first(path, mode):
    with open(path, mode) as file:
        text = file.read()
    return text.strip()

def second(values):
    total = 0
    for value in values:
        if value > 10:
            total += value
        else:
            total -= 1
    return total

def third(name):
    print(name)
    return name.upper()
"""


def changed(*edits: tuple[str, str]) -> Rewriting:
    after = CODE
    for old, new in edits:
        assert old in after
        after = after.replace(old, new)
    return Rewriting(CODE, after)


def test_an_unchanged_file_is_guessed_from_the_first_token_to_the_last() -> None:
    text = Rewriting(CODE, CODE)
    assert list(text.at(0).tokens) == text.reply[:47]
    assert text.passes() == -(-len(text.reply) // 48)
    assert list(text.at(len(text.reply)).tokens) == []


def test_confidence_rises_with_agreement_and_is_lower_where_lines_begin() -> None:
    long = "".join(f"line {'abcdefgh'[i % 8]} is as it was;\n" for i in range(60))
    text = Rewriting(long, long)
    start = text.at(0).confidence
    assert 0.8 < start[0] < start[40]
    late = text.at(300).confidence
    assert sorted(late)[len(late) // 2] >= 0.98, "long agreement makes the widest pass worth it"
    tokens = text.at(300).tokens
    breaks = [c for c, t in zip(late, tokens, strict=True) if text.words.piece(t) == b"\n"]
    assert max(breaks) < max(late)


def test_it_is_silent_without_a_file_and_before_the_reply() -> None:
    words = Words()
    tokens = words.tokenize(CODE)
    drafter = EditDrafter(words.piece, words.tokenize)
    assert drafter.propose(tokens, 5, lambda _: True) == Proposal()
    drafter.follow_file(tokens, 10)
    assert drafter.propose(tokens[:9], 5, lambda _: True) == Proposal()
    assert drafter.propose(tokens[:10], 5, lambda _: True).tokens == tokens[:5]
    drafter.follow_file([], 10)
    assert drafter.propose(tokens, 5, lambda _: True) == Proposal()


def test_it_is_silent_where_the_text_does_not_follow_the_file() -> None:
    other = "A poem about the sea and ships, of wind; nothing here is code at all.\n" * 3
    text = Rewriting(CODE, other)
    said = [text.at(n).confidence for n in range(10, len(text.reply) - 1)]
    spoken = [confidence[0] for confidence in said if confidence]
    assert len(spoken) < len(text.reply) // 3
    assert all(confidence < 0.6 for confidence in spoken)


def test_after_an_insertion_it_goes_on_where_it_was() -> None:
    text = changed(("    total = 0\n", "    checked = sorted(values)\n    total = 0\n"))
    rest = CODE[CODE.index(" = 0\n") :]
    assert rest.startswith(text.says("sorted(values)\n    total")[:80])


def test_after_a_deletion_it_goes_on_behind_it_at_once() -> None:
    text = changed(("    with open(path, mode) as file:\n        text = file.read()\n", ""))
    assert text.says("mode):\n    return").startswith(" text.strip()\n\ndef second(values):")


def test_after_a_replaced_expression_it_goes_on_behind_it() -> None:
    text = changed(("value > 10:", "is_large(value):"))
    assert text.says("is_large(value):\n            total").startswith(" += value\n        else:")


def test_it_jumps_to_a_block_that_was_moved_and_back() -> None:
    third = CODE[CODE.index("def third") :]
    moved = CODE.replace(third, "").replace("def first", f"{third}\ndef first")
    text = Rewriting(CODE, moved)
    assert text.says("def third").startswith("(name):\n    print(name)\n    return name.upper()\n")
    assert text.says("upper()\n\ndef first").startswith("(path, mode):\n    with open(path, mode) as file:")


@pytest.mark.parametrize("by", [4, -4])
def test_a_block_keeps_its_new_indentation(by: int) -> None:
    body = CODE[CODE.index("    total = 0") : CODE.index("\ndef third")]
    lines = [" " * by + line if by > 0 else line[-by:] for line in body.splitlines(keepends=True)]
    text = Rewriting(CODE, CODE.replace(body, "".join(lines)))
    first, *others = lines
    assert text.says(first[:-1])[:200].startswith(f"\n{''.join(others)}"[:200].rstrip())


def test_a_word_replaced_once_is_replaced_in_later_guesses() -> None:
    text = changed(("total", "amount"))
    said = text.says("    amount = 0\n    for value in values:")
    assert said.startswith(
        "\n        if value > 10:\n            amount += value\n        else:\n            amount -="
    )


def test_a_replaced_word_is_replaced_wherever_it_stands_in_its_token() -> None:
    before = "old_name = 1\nuse(old_name)\nself.old_name += old_name\nolder_name = 2\n"
    text = Rewriting(before, before.replace("old_name", "fresh"))
    assert text.says("fresh = 1\nuse(").startswith("fresh)\nself.fresh += fresh\nolder_name = 2\n")


def test_related_words_are_replaced_in_their_own_case() -> None:
    before = "load(cart)\nshow()\nnew Cart(1)\nCART_SIZE = 2\nsaveCart(carts)\nscart = 3\n"
    after = before.replace("cart", "basket").replace("Cart", "Basket").replace("CART", "BASKET")
    said = Rewriting(before, after).says("load(basket)\nshow()\nnew")
    assert said.startswith(" Basket(1)\nBASKET_SIZE = 2\nsaveBasket(baskets)\n")


def test_words_that_are_kept_are_no_longer_replaced() -> None:
    before = "a(one)\nb(one)\nc(one)\nd(one)\ne(one)\nf(one)\n"
    text = Rewriting(before, before.replace("one", "two", 1))
    assert text.says("a(two)\nb(one)\nc(one)\nd").startswith("(one)\ne(one)\nf(one)")


def test_confidence_in_a_replacement_follows_what_came_of_it() -> None:
    before = "".join(f"call {name} with(item)\n" for name in ("ab", "cd", "ef", "gh", "ij", "kl", "mn"))
    often = Rewriting(before, before.replace("item", "entry"))
    sure = [often.guess(f"call {name} with(", 1).confidence[0] for name in ("cd", "ef", "gh")]
    assert sure == sorted(sure)
    assert sure[0] < 0.8 < sure[2]
    once = Rewriting(before, before.replace("item", "entry", 1))
    kept = [once.guess(f"call {name} with(", 1) for name in ("ef", "gh", "kl")]
    assert {once.words.text(proposal.tokens) for proposal in kept} == {"item"}
    assert kept[0].confidence[0] < 0.8
    assert kept[2].confidence[0] > 0.9
    once = Rewriting(before, before.replace("item)", "item, 1)", 1))
    kept = [once.guess(f"call {name} with(item", 1) for name in ("ef", "gh", "kl")]
    assert {once.words.text(proposal.tokens) for proposal in kept} == {")"}
    assert kept[0].confidence[0] < 0.8
    assert kept[2].confidence[0] > 0.9


def test_a_replacement_that_changes_midway_is_learnt_anew() -> None:
    before = "".join(f"call {name} with(item)\n" for name in ("ab", "cd", "ef", "gh"))
    after = before.replace("item", "one_thing", 2).replace("item", "one_entry")
    text = Rewriting(before, after)
    assert text.says("call ef with").startswith("(one_thing)\n")
    assert text.says("call gh with").startswith("(one_entry)\n")
    assert Rewriting(before, after).passes() == 9


def test_an_insertion_made_before_is_made_again_but_once() -> None:
    before = "".join(f"call {name} with(item)\n" for name in ("ab", "cd", "ef", "gh"))
    text = Rewriting(before, before.replace("item)", "item, 1)"))
    said = text.says("call cd with")
    assert said.startswith("(item, 1)\ncall ef with(item, 1)\ncall gh with(item, 1)\n")


def test_a_change_made_before_is_made_again() -> None:
    before = "".join(f'log("{name}", level=1, quiet=no)\nrun({name})\n' for name in ("ab", "cd", "ef", "gh"))
    text = Rewriting(before, before.replace(", level=1, quiet=no", ", mode[2]"))
    assert text.says('"cd", mode[2])\nrun').startswith(
        '(cd)\nlog("ef", mode[2])\nrun(ef)\nlog("gh", mode[2])'
    )


def test_several_changes_take_few_passes() -> None:
    text = changed(("import sys\n", ""), ("total", "amount"), ("print(name)", "print(name, flush=True)"))
    ngram = Rewriting(text.before, text.after)
    index = NgramDrafter()
    context = [*ngram.prompt, *ngram.original, *ngram.prompt]
    place = passes = 0
    while place < len(text.reply):
        said = index.propose([*context, *text.reply[:place]], 47, lambda _: True)
        place += common_prefix(said.tokens, text.reply[place:]) + 1
        passes += 1
    assert text.passes() < 0.8 * passes


def test_following_an_unchanged_file_never_asks_the_tokenizer() -> None:
    text = Rewriting(CODE, CODE)
    before = text.words.asked
    text.passes()
    assert text.words.asked == before


def test_a_token_that_is_everywhere_is_not_looked_up_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    real = align.candidates

    def counted(original: Original, text: Sequence[int], gap: align.Gap) -> dict[int, int]:
        found = real(original, text, gap)
        looked.append(len(found))
        return found

    monkeypatch.setattr(align, "candidates", counted)
    before = "x y\n" * 2000
    text = Rewriting(before, "x y\n" * 900 + "z z\n" + "x y\n" * 900)
    for place in range(3590, 3640):
        text.at(place)
    assert looked
    assert max(looked) < 40


def test_a_new_turn_forgets_the_reply_but_not_the_file() -> None:
    text = changed(("value", "price"))
    text.at(60)
    text.drafter.begin(text.prompt)
    assert list(text.at(0).tokens) == text.original[:47]


def test_bytes_that_are_no_text_are_copied_as_they_are() -> None:
    pieces = {1: b"\xff", 2: b" a", 3: b"\n ", 4: b"\x80b", 5: b"c"}

    def tokenize(text: str) -> list[int]:
        return [9]  # stands for nothing: never to be proposed

    drafter = EditDrafter(lambda token: pieces.get(token, b""), tokenize)
    original = [1, 2, 3, 4, 5, 2, 3, 4, 1] * 4
    drafter.follow_file(original, 0)
    text: list[int] = []
    for token in [1, 2, 3, 5, 5, 5, 2, 3, 4, 1, 1, 2, 3, 5, 5, 2]:
        text.append(token)
        assert set(drafter.propose(text, 20, lambda _: True).tokens) <= set(original)


LETTERS = st.text("ab_ \n(é1", max_size=60)


@settings(max_examples=150, deadline=None)
@given(LETTERS, LETTERS, st.integers(0, 47), st.randoms())
def test_any_text_is_followed_without_harm(before: str, after: str, limit: int, random: object) -> None:
    """No exception, valid guesses only, as many confidences in [0, 1] as guesses, the same every time and
    however many tokens come at once."""
    one, other = Rewriting(before, after), Rewriting(before, after)
    place = 0
    while place <= len(one.reply):
        proposal = one.at(place, limit)
        assert len(proposal.tokens) == len(proposal.confidence) <= limit
        assert all(0 <= c <= 1 for c in proposal.confidence)
        assert all(0 <= t < len(one.words.known) for t in proposal.tokens)
        place += random.randint(1, 5)  # type: ignore[attr-defined]
        said = other.at(min(place, len(one.reply)), limit)
        again = one.at(min(place, len(one.reply)), limit)
        assert other.words.text(said.tokens) == one.words.text(again.tokens)
        assert list(said.confidence) == list(again.confidence)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 6), max_size=40),
    st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 6), max_size=60),
    st.integers(0, 10),
)
def test_any_tokens_are_followed_without_harm(original: list[int], context: list[int], start: int) -> None:
    pieces = [b"", b"\n", b"  ", b"\n  ", b" a", b"b\xc3", b"_"]
    drafter = EditDrafter(lambda t: pieces[t] if t < 7 else b"z", lambda _: [4, 4])
    drafter.follow_file(original, start)
    drafter.begin(context[:start])
    for end in range(len(context) + 1):
        proposal = drafter.propose(context[:end], 15, lambda _: True)
        assert set(proposal.tokens) <= {*original, *context, 4}


def test_segments_hold_whole_words_and_breaks_and_do_not_overlap() -> None:
    words = Words()
    original = Original(words.tokenize(CODE), words.piece)
    ends = 0
    for first, segment in sorted(original.segments.items()):
        assert first >= ends
        ends = segment.end
        assert segment.text == original.bytes_of(first, segment.end)
    assert {word for s in original.segments.values() for word in s.words} == set(
        re.findall(rb"[A-Za-z_]+", CODE.encode())
    )


@pytest.mark.parametrize(
    ("text", "by", "wanted"),
    [
        (b"\n    if", -4, b"\nif"),
        (b"\n  if", -4, b"\nif"),
        (b":\n\n  if", 2, b":\n\n    if"),
        (b"\n\tif", 1, b"\n\t\tif"),
        (b"\nif", 3, b"\n   if"),
    ],
)
def test_indentation_is_shifted_behind_the_last_break(text: bytes, by: int, wanted: bytes) -> None:
    assert shifted(text, by) == wanted


def test_only_texts_that_differ_in_words_give_replaced_words() -> None:
    assert replaced_words(b"a.b(c)", b"a.x(y)") == [(b"b", b"x"), (b"c", b"y")]
    assert replaced_words(b"a.b(c)", b"a.b[c]") == []


def test_a_habit_follows_what_was_seen_last() -> None:
    habit = Habit(b"x")
    habit.see(b"x")
    first = habit.chance
    habit.see(b"x")
    assert habit.chance > first
    habit.see(None)
    habit.see(None)
    assert habit.chance < 0.5
    habit.see(b"y")
    assert habit.into == b"y"
    habit.see(b"y")
    assert habit.chance > 0.5, "what was seen twice outweighs what was seen before"


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_text_stays_the_same(tiny_model: LlamaModel, temperature: float) -> None:
    """A file that is right in places and wrong in others: guesses are kept, and change nothing."""
    sampling = Sampling(temperature=temperature, seed=3)
    prompt = list(range(20, 40))

    def decode(policy: Fixed | Scheduler) -> tuple[list[int], int]:
        tiny_model.rewind(0)
        loop = Generator(tiny_model, Sampler(sampling), lambda _: False, policy, clock=VirtualClock())
        steps = list(loop.generate(prompt, 90))
        return [token for step in steps for token in step.tokens], sum(step.accepted for step in steps)

    plain, _ = decode(Fixed())
    drafter = EditDrafter(tiny_model.vocab.piece, lambda text: tiny_model.vocab.tokenize(text, special=False))
    drafter.follow_file([*plain[:30], 7, 7, 7, *plain[45:60], *plain[62:]], len(prompt))
    flat = {n: 1 + 0.01 * n for n in (1, 2, 4, 8, 16)}
    costs = PassCosts(flat, widths=tuple(flat))
    text, accepted = decode(Scheduler(costs, [Free(drafter)], (), VirtualClock()))
    assert text == plain
    assert accepted > 20
