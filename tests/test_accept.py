"""Acceptance is exactly the target's law: every outcome of the dice is enumerated, in Fractions.

`branches` runs a function once for every sequence of dice outcomes. A *table* is a law for every prefix.
What a rule emits, continued by plain draws of the target, must have the target's joint law: equality of
Fractions, no statistics.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import TableModel, joint_law

from localspec.drafters.model import ModelDrafter
from localspec.engine import accept
from localspec.engine.accept import Dice, Verdict
from localspec.engine.generate import Fixed, Generator
from localspec.engine.sampling import RandomDice, Sampler
from localspec.engine.types import Dist, Logits, Proposal, Sampling, Source

T = TypeVar("T")
Text = tuple[int, ...]
Law = dict[Text, Any]
Table = Callable[[Text], Dist]
Ends = Callable[[int], bool]
Rule = Callable[[Sequence[int], Sequence[Dist], Sequence[Dist], Dice, Ends], Verdict]

SHAPES = [(2, 1), (3, 1), (4, 1), (2, 2), (3, 2), (4, 2), (2, 3), (3, 3), (4, 3), (2, 4)]
"""(vocabulary, draft length) of the random cases."""


def never(token: int) -> bool:
    return False


def end_is(end: int) -> Ends:
    return lambda token: token == end


# Enumeration.


class Branch:
    """Dice that follow a script of outcomes, then take the first possible one."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script = script
        self.path: list[tuple[int, int]] = []  # the outcome taken, out of how many
        self.weight: Any = 1

    def flip(self, probability: Any) -> bool:
        probability = min(1, probability)  # rounding may take it above
        return bool(self._take([(1, probability), (0, 1 - probability)]))

    def draw(self, dist: Dist) -> int:
        return self._take(list(zip(dist.ids.tolist(), dist.probs, strict=True)))

    def _take(self, outcomes: list[tuple[int, Any]]) -> int:
        possible = [(value, chance) for value, chance in outcomes if chance > 0]
        place = self.script[len(self.path)] if len(self.path) < len(self.script) else 0
        self.path.append((place, len(possible)))
        value, chance = possible[place]
        self.weight *= chance
        return value


def branches(run: Callable[[Branch], T]) -> Iterator[tuple[Any, T]]:
    """(probability, result) of `run` for every sequence of outcomes of its dice, depth first."""
    script: list[int] = []
    while True:
        dice = Branch(script)
        result = run(dice)
        yield dice.weight, result
        path = dice.path
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return
        script = [place for place, _ in path[:-1]] + [path[-1][0] + 1]


def law_of(weighted: Iterator[tuple[Any, Text]]) -> Law:
    law: Law = defaultdict(int)
    for weight, text in weighted:
        law[text] += weight
    return {text: weight for text, weight in law.items() if weight}


def continued(law: Law, target: Table, length: int, is_end: Ends) -> Law:
    """The law of the first `length` tokens when every text of `law` goes on by plain draws of `target`."""
    law = defaultdict(int, law)
    for n in range(length):
        for text in [text for text in law if len(text) == n and not (text and is_end(text[-1]))]:
            weight, here = law.pop(text), target(text)
            for token, chance in zip(here.ids.tolist(), here.probs, strict=True):
                law[*text, token] += weight * chance
    return dict(law)


def verdicts(
    rule: Rule,
    target: Table,
    guess: Table,
    length: int,
    is_end: Ends = never,
    stop: Callable[[Text], bool] = lambda drafted: False,
) -> list[tuple[Any, Verdict]]:
    """Every verdict of `rule`, weighted, on drafts of `length` drawn from `guess`.

    A draft is shorter when it meets an end of turn or when `stop` says so after a token that stays in it.
    """

    def run(dice: Dice) -> Verdict:
        draft: Text = ()
        while len(draft) < length and not (draft and (is_end(draft[-1]) or stop(draft))):
            draft = (*draft, dice.draw(guess(draft)))
        guesses = [guess(draft[:i]) for i in range(len(draft))]
        targets = [target(draft[:i]) for i in range(len(draft) + 1)]
        return rule(draft, guesses, targets, dice, is_end)

    return list(branches(run))


def emitted(found: Sequence[tuple[Any, Verdict]]) -> Law:
    return law_of((weight, tuple(verdict.tokens)) for weight, verdict in found)


def mean_accepted(found: Sequence[tuple[Any, Verdict]]) -> Any:
    return sum(weight * verdict.accepted for weight, verdict in found)


# Random tables.


def law(weights: dict[int, Any]) -> Dist:
    """The Dist of positive weights by id, in Fractions."""
    total = Fraction(sum(weights.values()))
    ids = sorted(weights)
    return Dist(np.array(ids), np.array([weights[token] / total for token in ids], dtype=object))


def same(dist: Dist) -> Table:
    """The same law after every prefix."""
    return lambda prefix: dist


def random_target(seed: object, vocab: int) -> Table:
    """Each prefix its own random law; an id is missing from one in seven."""

    @functools.cache
    def table(prefix: Text) -> Dist:
        rng = random.Random(repr((seed, prefix)))
        support = [token for token in range(vocab) if rng.random() < 6 / 7] or [rng.randrange(vocab)]
        return law({token: rng.randint(1, 6) for token in support})

    return table


def random_guess(seed: object, vocab: int, target: Table) -> Table:
    """Random too; some of its laws are the target's, some a point, some share no id with the target's."""
    other = random_target((seed, "guess"), vocab)

    @functools.cache
    def table(prefix: Text) -> Dist:
        rng = random.Random(repr((seed, "kind", prefix)))
        kind = rng.choice([*["free"] * 6, "equal", "point", "disjoint"])
        if kind == "equal":
            return target(prefix)
        if kind == "point":
            return law({rng.randrange(vocab): 1})
        absent = set(range(vocab)) - set(target(prefix).ids.tolist())
        if kind == "disjoint" and absent:
            return law({token: rng.randint(1, 6) for token in absent})
        return other(prefix)

    return table


def as_floats(table: Table) -> Table:
    def floats(prefix: Text) -> Dist:
        here = table(prefix)
        return Dist(here.ids, here.probs.astype(np.float64))

    return floats


def random_stop(seed: object) -> Callable[[Text], bool]:
    """Stops a draft after one prefix in eight: any rule that sees what was drafted so far."""
    return lambda drafted: random.Random(repr((seed, "stop", drafted))).random() < 1 / 8


def token_wise(
    draft: Sequence[int], guess: Sequence[Dist], target: Sequence[Dist], dice: Dice, is_end: Ends
) -> Verdict:
    """Token by token (Leviathan et al., 2211.17192): what block verification must never do worse than."""
    for i, token in enumerate(draft):
        p, q = (dict(zip(dist.ids.tolist(), dist.probs, strict=True)) for dist in (target[i], guess[i]))
        if not dice.flip(min(1, p.get(token, 0) / q[token])):
            rest = {y: p[y] - q.get(y, 0) for y in p if p[y] > q.get(y, 0)}
            return Verdict([*draft[:i], dice.draw(law(rest))], i)
        if is_end(token):
            return Verdict(list(draft[: i + 1]), i + 1)
    return Verdict([*draft, dice.draw(target[-1])], len(draft))


def independent(
    draft: Sequence[int], guess: Sequence[Dist], target: Sequence[Dist], dice: Dice, is_end: Ends
) -> Verdict:
    """`match` with choices of the target that know nothing of how the draft was drawn."""
    return accept.match(draft, lambda i: dice.draw(target[i]), is_end)


RULES = {"block": accept.block, "token-wise": token_wise, "match": independent}


# The enumeration itself.


def test_branches_are_all_outcomes_with_their_probabilities() -> None:
    coin, die = Fraction(1, 3), law({0: 1, 5: 3})

    def run(dice: Dice) -> Text:
        return (dice.draw(die), dice.draw(die)) if dice.flip(coin) else (int(dice.flip(1)), int(dice.flip(0)))

    assert law_of(branches(run)) == {
        (1, 0): Fraction(2, 3),
        (0, 0): Fraction(1, 48),
        (0, 5): Fraction(3, 48),
        (5, 0): Fraction(3, 48),
        (5, 5): Fraction(9, 48),
    }


def test_enumeration_sees_the_bias_of_a_cut_that_looks_ahead() -> None:
    """Dropping a guess because its own probability is small is not lossless."""

    def drops(
        draft: Sequence[int], guess: Sequence[Dist], target: Sequence[Dist], dice: Dice, is_end: Ends
    ) -> Verdict:
        kept = int(guess[0].at(np.array(draft))[0] >= Fraction(1, 5))
        return accept.block(draft[:kept], guess[:kept], target[: kept + 1], dice, is_end)

    found = verdicts(drops, same(law({0: 50, 1: 30, 2: 20})), same(law({0: 60, 1: 25, 2: 15})), 1)
    first = law_of((weight, text[:1]) for text, weight in emitted(found).items())
    assert first == {(0,): Fraction(575, 1000), (1,): Fraction(345, 1000), (2,): Fraction(80, 1000)}


# The target's law, exactly.


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize(("vocab", "length"), SHAPES)
def test_emits_exactly_the_targets_law(rule: Rule, vocab: int, length: int) -> None:
    for case in range(1200 // vocab**length):
        target = random_target(case, vocab)
        guess = random_guess(case, vocab, target)
        is_end = end_is(case % (2 * vocab))  # half the cases have no end of turn
        found = verdicts(rule, target, guess, length, is_end, random_stop(case))
        reached = continued(emitted(found), target, length + 1, is_end)
        assert reached == continued({(): 1}, target, length + 1, is_end), case


@pytest.mark.parametrize(("vocab", "length"), [(2, 2), (3, 2), (2, 3)])
def test_floats_agree_with_fractions(vocab: int, length: int) -> None:
    for case in range(20):
        target = random_target(case, vocab)
        guess = random_guess(case, vocab, target)
        exact = verdicts(accept.block, target, guess, length)
        rounded = verdicts(accept.block, as_floats(target), as_floats(guess), length)
        assert float(mean_accepted(exact)) == pytest.approx(mean_accepted(rounded), abs=1e-12)
        want, got = emitted(exact), emitted(rounded)
        for text in want.keys() | got.keys():
            assert float(want.get(text, 0)) == pytest.approx(got.get(text, 0), abs=1e-12), (case, text)


def test_laws_that_differ_by_rounding_keep_the_law_and_the_draft() -> None:
    """A ratio of 1 - 1e-16 must not throw away a draft of a model that agrees with the target."""
    rng = random.Random(0)
    for _ in range(20):
        one = np.array([rng.random() for _ in range(3)])
        one /= one.sum()
        other = one * [1 + rng.uniform(-1e-15, 1e-15) for _ in range(3)]
        target, guess = Dist(np.arange(3), one), Dist(np.arange(3), other / other.sum())
        found = verdicts(accept.block, same(target), same(guess), 2)
        assert mean_accepted(found) == pytest.approx(2, abs=1e-12)
        got = continued(emitted(found), same(target), 3, never)
        for text in itertools.product(range(3), repeat=3):
            assert got[text] == pytest.approx(np.prod(one[list(text)]), abs=1e-12)


# How much is accepted.


def test_two_letter_example() -> None:
    """Sun et al. (2403.10444), section 3."""
    target, guess = same(law({0: 1, 1: 2})), same(law({0: 2, 1: 1}))
    assert mean_accepted(verdicts(accept.block, target, guess, 2)) == Fraction(11, 9)
    assert mean_accepted(verdicts(token_wise, target, guess, 2)) == Fraction(10, 9)


@pytest.mark.parametrize(("vocab", "length"), [(2, 2), (3, 2), (2, 3)])
def test_block_accepts_at_least_as_much_as_token_wise(vocab: int, length: int) -> None:
    gains = []
    for case in range(40):
        target = random_target(case, vocab)
        guess = random_guess(case, vocab, target)
        found = [verdicts(rule, target, guess, length) for rule in (accept.block, token_wise)]
        gains.append(mean_accepted(found[0]) - mean_accepted(found[1]))
    assert min(gains) == 0
    assert sum(gain > 0 for gain in gains) >= 5


@pytest.mark.parametrize("vocab", [2, 3, 4])
def test_one_guess_is_kept_as_often_as_the_laws_overlap(vocab: int) -> None:
    for case in range(50):
        target = random_target(case, vocab)
        guess = random_guess(case, vocab, target)
        p, q = target(()), guess(())
        overlap = sum(min(p.at(np.array([token]))[0], q.at(np.array([token]))[0]) for token in range(vocab))
        assert mean_accepted(verdicts(accept.block, target, guess, 1)) == overlap


@pytest.mark.parametrize("draft", [(0, 1, 0), (1, 1), (2, 0, 0)])
def test_point_mass_is_kept_as_often_as_the_target_says_it(draft: Text) -> None:
    """Block, token-wise and match coincide for a deterministic draft."""
    for case in range(20):
        target = random_target(case, 3)

        def guess(prefix: Text) -> Dist:
            return law({draft[len(prefix)]: 1})

        laws = [emitted(verdicts(rule, target, guess, len(draft))) for rule in RULES.values()]
        assert laws[0] == laws[1] == laws[2]
        chances = [target(draft[:i]).at(np.array([draft[i]]))[0] for i in range(len(draft))]
        expected = sum(itertools.accumulate(chances, lambda a, b: a * b))
        assert mean_accepted(verdicts(accept.block, target, guess, len(draft))) == expected


def test_draft_of_the_targets_own_law_is_kept_whole() -> None:
    target = random_target("own", 3)
    for rule in (accept.block, token_wise):
        assert {verdict.accepted for _, verdict in verdicts(rule, target, target, 3)} == {3}


def test_draft_the_target_cannot_say_is_dropped_whole() -> None:
    target, guess = same(law({0: 1, 1: 3})), same(law({2: 1, 3: 1}))
    found = verdicts(accept.block, target, guess, 3)
    assert {verdict.accepted for _, verdict in found} == {0}
    assert emitted(found) == {(0,): Fraction(1, 4), (1,): Fraction(3, 4)}


# Coupled acceptance.


def quantised(seed: object, vocab: int, total: int) -> Table:
    """Random laws whose probabilities are multiples of 1 / `total`."""

    @functools.cache
    def table(prefix: Text) -> Dist:
        rng = random.Random(repr((seed, prefix)))
        letters = [rng.randrange(vocab) for _ in range(total)]
        return law({token: letters.count(token) for token in set(letters)})

    return table


def quantile(dist: Dist, noise: int, total: int) -> int:
    """The inverse distribution function at (noise + 1/2) / total: each noise stands for 1 / total of mass."""
    mass = itertools.accumulate(dist.probs)
    return next(
        token for token, reached in zip(dist.ids.tolist(), mass, strict=True) if reached * total > noise
    )


Noise = tuple[int, ...]
Drafting = Callable[[Callable[[Text], int], Table, Noise, int], Text]


def says(table: Table, noise: Noise, total: int) -> Callable[[Text], int]:
    """prefix -> the token after it under the noise of its position."""
    return lambda prefix: quantile(table(prefix), noise[len(prefix)], total)


def follow(choose: Callable[[Text], int], length: int) -> Text:
    text: Text = ()
    for _ in range(length):
        text = (*text, choose(text))
    return text


def same_noise(plain: Callable[[Text], int], guess: Table, noise: Noise, total: int) -> Text:
    return follow(says(guess, noise, total), len(noise) - 1)


def other_noise(plain: Callable[[Text], int], guess: Table, noise: Noise, total: int) -> Text:
    return follow(says(guess, tuple(reversed(noise)), total), len(noise) - 1)


def knows_the_noise(plain: Callable[[Text], int], guess: Table, noise: Noise, total: int) -> Text:
    """Right until a place that depends on all of the noise, wrong there in a way that depends on it too."""
    rng = random.Random(repr(noise))
    draft = list(follow(plain, len(noise) - 1))
    draft[rng.randrange(len(draft))] = rng.randrange(3)
    return tuple(draft)


def only_rare_texts(plain: Callable[[Text], int], guess: Table, noise: Noise, total: int) -> Text:
    """Right when the target is about to say letter 0 first, else hopeless."""
    text = follow(plain, len(noise) - 1)
    return text if text[0] == 0 else (9, *text[1:])


@pytest.mark.parametrize("drafting", [same_noise, other_noise, knows_the_noise, only_rare_texts])
def test_match_emits_what_plain_decoding_says_whoever_drafts(drafting: Drafting) -> None:
    """Shared finite noise, all of it enumerated: the same text for every noise, hence the same law."""
    total, length = 4, 2
    for case in range(20):
        target, guess = quantised(case, 3, total), quantised((case, "guess"), 3, total)
        is_end = end_is(case % 6)
        texts: Law = defaultdict(Fraction)
        for noise in itertools.product(range(total), repeat=length + 1):
            plain = says(target, noise, total)
            draft = drafting(plain, guess, noise, total)
            verdict = accept.match(draft, lambda i, draft=draft, plain=plain: plain(draft[:i]), is_end)
            text = tuple(verdict.tokens)
            while len(text) <= length and not is_end(text[-1]):
                text = (*text, plain(text))
            assert text == follow(plain, length + 1)[: len(text)]
            texts[text] += Fraction(1, total ** (length + 1))
        assert texts == continued({(): 1}, target, length + 1, is_end)


def test_match_with_shared_noise_keeps_more_than_with_its_own() -> None:
    total, kept = 4, {same_noise: 0, other_noise: 0}
    for case in range(20):
        target = quantised(case, 3, total)
        for drafting in kept:
            for noise in itertools.product(range(total), repeat=2):
                plain = says(target, noise, total)
                draft = drafting(plain, target, noise, total)
                kept[drafting] += accept.match(draft, lambda i, d=draft, p=plain: p(d[:i]), never).accepted
    assert kept[same_noise] == 20 * total**2
    assert kept[other_noise] < kept[same_noise]


tokens = st.lists(st.integers(0, 2), max_size=6)


@given(tokens, tokens.filter(bool), st.integers(0, 3))
def test_match_stops_at_the_first_difference_or_end(draft: list[int], text: list[int], end: int) -> None:
    """Tokens 0..2, end of turn `end` (3: none); `text` is what the target says, cut or padded to fit."""
    text = [*text, *[1] * 6][: len(draft) + 1]
    asked: list[int] = []

    def choose(i: int) -> int:
        asked.append(i)
        return text[i]

    verdict = accept.match(draft, choose, end_is(end))
    n = len(verdict.tokens)
    assert verdict.tokens == text[:n]
    assert asked == list(range(n))
    assert end not in text[: n - 1]
    assert text[: n - 1] == draft[: n - 1]
    if verdict.accepted == n:
        assert text[n - 1] == draft[n - 1] == end
    else:
        assert verdict.accepted == n - 1
        assert n == len(draft) + 1 or text[n - 1] != draft[n - 1]


# Ends of turn.


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_end_of_turn_in_a_draft_ends_the_turn_without_bonus(rule: Rule) -> None:
    certain_end = lambda prefix: law({2: 1} if prefix else {0: 1})  # noqa: E731
    assert verdicts(rule, certain_end, certain_end, 3, end_is(2)) == [(1, Verdict([0, 2], 2))]
    for case in range(20):
        target = random_target(case, 3)
        found = verdicts(rule, target, random_guess(case, 3, target), 2, end_is(2))
        for _, verdict in found:
            ended = 2 in verdict.tokens[: verdict.accepted]
            assert len(verdict.tokens) == verdict.accepted + (not ended)
            assert 2 not in verdict.tokens[:-1]


def test_end_of_turn_the_target_refuses_is_dropped() -> None:
    found = verdicts(accept.block, same(law({0: 1})), same(law({2: 1})), 3, end_is(2))
    assert found == [(1, Verdict([0], 0))]


# The residual and the distributions under it.


def test_residual_is_what_the_guess_left_over() -> None:
    rest = accept.residual(law({0: 5, 1: 3, 2: 2}), law({0: 6, 2: 1, 3: 3}))
    assert rest.ids.tolist() == [1, 2]
    assert rest.probs.tolist() == [Fraction(3, 4), Fraction(1, 4)]


def test_residual_of_a_ratio() -> None:
    rest = accept.residual(law({0: 2, 1: 2}), law({0: 1, 1: 3}), Fraction(1, 2) + Fraction(1, 4))
    assert rest.ids.tolist() == [0]
    assert rest.probs.tolist() == [1]


@pytest.mark.parametrize("rounding", [0.0, 1e-15, -1e-15])
def test_residual_of_nothing_is_the_target(rounding: float) -> None:
    target = Dist(np.array([1, 4]), np.array([0.25, 0.75]))
    guess = Dist(np.array([1, 4]), np.array([0.25 + rounding, 0.75 - rounding]))
    assert accept.residual(target, guess).probs.tolist() == [0.25, 0.75]


def test_residual_of_a_small_difference_is_not_the_target() -> None:
    target = Dist(np.array([0, 1]), np.array([0.5 + 1e-9, 0.5 - 1e-9]))
    rest = accept.residual(target, Dist(np.array([0, 1]), np.array([0.5, 0.5])))
    assert rest.ids.tolist() == [0]


def test_probability_outside_the_support_is_zero() -> None:
    dist = law({3: 1, 7: 3})
    assert dist.at(np.array([7, 0, 3, 5, 9])).tolist() == [Fraction(3, 4), 0, Fraction(1, 4), 0, 0]
    assert Dist.point(5).at(np.array([4, 5, 6])).tolist() == [0.0, 1.0, 0.0]


# The loop around it: the whole of it enumerated, dice for every choice.


class DiceSampler(Sampler):
    """The engine's chain, with dice in place of the position's noise, so that plain steps enumerate too."""

    def __init__(self, sampling: Sampling, dice: Dice) -> None:
        super().__init__(sampling)
        self.dice = dice

    def pick(self, row: Logits, history: Sequence[int], position: int) -> int:
        return self.dice.draw(self.dist(row, history))


OFF = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
LOOPS = {
    "plain": (OFF, 0.0),
    "unsure": (OFF, 0.5),
    "cold": (Sampling(temperature=0.4, top_k=0, top_p=1.0, min_p=0.0), 0.0),
    "top-k": (Sampling(temperature=1.0, top_k=2, top_p=1.0, min_p=0.0), 0.0),
    "top-p": (Sampling(temperature=1.0, top_k=0, top_p=0.7, min_p=0.0), 0.6),
    "min-p": (Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.2), 0.0),
    "penalties": (
        Sampling(1.0, 0, 1.0, 0.0, repeat_penalty=1.5, presence_penalty=0.7, penalty_window=2),
        0.0,
    ),
    "all": (Sampling(0.9, 3, 0.9, 0.05, repeat_penalty=1.3, presence_penalty=0.2), 0.4),
}


PROMPT = [0, 2, 1]


def loop_law(sampling: Sampling, sources: Callable[[Sampler, Dice], list[Source]]) -> tuple[Law, Law]:
    """The law of four tokens, ends of turn included: of the loop with `sources`, and of plain decoding."""
    model = TableModel(seed=1, n_vocab=3, spread=1.0, end=2)

    def run(dice: Dice) -> Text:
        model.rewind(0)
        sampler = DiceSampler(sampling, dice)
        loop = Generator(model, sampler, model.is_end, Fixed(sources(sampler, dice)), dice)
        return tuple(token for step in loop.generate(PROMPT, 4) for token in step.tokens)

    return law_of(branches(run)), joint_law(model, sampling, PROMPT, 4)


@pytest.mark.parametrize(("sampling", "min_confidence"), LOOPS.values(), ids=LOOPS.keys())
def test_loop_with_a_draft_model_has_exactly_the_targets_law(
    sampling: Sampling, min_confidence: float
) -> None:
    """Rejection mode: ModelDrafter, Generator and block verification together."""
    draft = TableModel(seed=2, n_vocab=3, spread=1.0, near=TableModel(seed=1, n_vocab=3, spread=1.0))

    def sources(sampler: Sampler, dice: Dice) -> list[Source]:
        draft.rewind(0)
        drafter = ModelDrafter("draft", draft, sampler, 3, end_is(2), dice)
        return [Source(drafter, 2, min_confidence)]

    got, want = loop_law(sampling, sources)
    assert got.keys() == want.keys()
    assert got == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize("dice", [None, RandomDice(0)], ids=["coupled", "rejection"])
@pytest.mark.parametrize(("sampling", "min_confidence"), LOOPS.values(), ids=LOOPS.keys())
def test_loop_keeps_every_guess_of_the_target_itself(
    sampling: Sampling, min_confidence: float, dice: RandomDice | None
) -> None:
    """The draft sees the same history and the same noise, so a perfect draft is perfect."""
    model, twin = TableModel(seed=1, n_vocab=12), TableModel(seed=1, n_vocab=12)
    sampler = Sampler(replace(sampling, seed=5))
    drafter = ModelDrafter("draft", twin, sampler, 12, never, dice)
    loop = Generator(
        model, sampler, never, Fixed([Source(drafter, 4, min_confidence)]), dice or RandomDice(1)
    )
    steps = list(loop.generate(PROMPT, 60))
    assert all(step.accepted == step.drafted for step in steps)
    assert sum(step.drafted for step in steps) >= 20


class Broken(TableModel):
    """Computes NaN after every third token."""

    def row(self, context: Sequence[int]) -> Logits:
        row = super().row(context)
        return np.full_like(row, np.nan) if len(context) % 3 == 1 else row


@pytest.mark.parametrize("sampling", [LOOPS["plain"], LOOPS["penalties"]], ids=["plain", "penalties"])
@pytest.mark.parametrize("draft", [TableModel(2, n_vocab=2), TableModel(2, n_vocab=4), Broken(2, n_vocab=3)])
def test_loop_with_an_unfit_draft_model_has_exactly_the_targets_law(
    sampling: tuple[Sampling, float], draft: TableModel
) -> None:
    """Fewer ids than the target (2 is in the prompt), more ids, and NaN."""

    def sources(sampler: Sampler, dice: Dice) -> list[Source]:
        draft.rewind(0)
        return [Source(ModelDrafter("draft", draft, sampler, 3, end_is(2), dice), 2)]

    got, want = loop_law(sampling[0], sources)
    assert got == pytest.approx(want, abs=1e-9)


@dataclass
class Scribbler:
    """Draws uniform guesses, one more than it may and on behind an end of turn; each second time guesses
    without drawing."""

    dice: Dice
    name: str = "scribbler"

    def begin(self, context: Sequence[int]) -> None: ...

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        if len(context) % 2:
            return Proposal([context[-1]] * limit, [1.0] * limit)
        law = Dist(np.arange(3), np.full(3, 1 / 3))
        return Proposal([self.dice.draw(law) for _ in range(limit + 1)], [1.0] * limit, [law] * (limit + 1))


def test_loop_with_a_careless_source_has_exactly_the_targets_law() -> None:
    got, want = loop_law(OFF, lambda sampler, dice: [Source(Scribbler(dice), 2)])
    assert got == pytest.approx(want, abs=1e-9)
