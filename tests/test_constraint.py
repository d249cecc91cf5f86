"""The law of a constrained choice, against one worked out token by token, and its states along an answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tables import TableModel, chain, plain_text

from localspec.drafters import NAMED, ModelDrafter
from localspec.engine import constraint
from localspec.engine.constraint import Followed
from localspec.engine.generate import Fixed, Generator
from localspec.engine.sampling import CANDIDATES, RandomDice, Sampler
from localspec.engine.types import Constraint, NothingAllowed, Sampling, Source

GREEDY = Sampling(temperature=0.0)
WARM = Sampling(temperature=0.9, top_k=20, top_p=0.9, min_p=0.02)
END = 5


@dataclass(frozen=True)
class Table:
    """Allows after the tokens `said` what a hash of them says; after `length` of them the end alone."""

    seed: int
    n_vocab: int
    share: float = 0.3
    length: int = 1000
    said: tuple[int, ...] = ()

    def mask(self) -> NDArray[np.bool_]:
        if len(self.said) >= self.length:
            return np.asarray(np.arange(self.n_vocab) == END)
        chance = np.random.default_rng([self.seed, len(self.said), *self.said]).random(self.n_vocab)
        mask = chance < self.share
        mask[chance.argmin()] = True
        mask[END] = False
        mask[END + 1] |= not mask.any()
        return mask

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self.mask()[ids]
        return found

    def after(self, token: int) -> Constraint | None:
        if token == END or not self.mask()[token]:
            return None
        return replace(self, said=(*self.said, token))


def support(row: NDArray[np.float32], mask: NDArray[np.bool_]) -> list[int]:
    """What may be chosen: the allowed among the 64 largest, the lower id first on a tie; else all allowed."""
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    return [i for i in order[:CANDIDATES] if mask[i]] or [i for i in order if mask[i]]


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    n_vocab=st.sampled_from([8, 70, 300, 2000]),
    share=st.sampled_from([0.0001, 0.02, 0.3, 1.0]),
    temperature=st.sampled_from([0.0, 0.4, 1.3]),
    top_k=st.sampled_from([0, 1, 5, 40]),
    top_p=st.sampled_from([0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.9]),
    penalty=st.sampled_from([1.0, 1.4]),
)
def test_law(
    seed: int,
    n_vocab: int,
    share: float,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    penalty: float,
) -> None:
    """Pick and law are those of the chain by the book, run on a row in which all but the support is -inf."""
    sampling = Sampling(temperature, top_k, top_p, min_p, repeat_penalty=penalty, seed=seed)
    row = np.random.default_rng(seed).normal(0, 3, n_vocab).round(1).astype(np.float32)  # rounded: with ties
    prompt, start = [1, 2, 3], Table(seed, n_vocab, share)
    token = int(start.mask().argmax())
    context, mask = [*prompt, token], start.after(token)
    assert isinstance(mask, Table)
    penalised = Sampler(replace(sampling, temperature=0.0))._penalise(row, context)
    masked = np.full_like(row, -np.inf)
    kept = support(penalised, mask.mask())
    masked[kept] = penalised[kept]
    want = chain(masked, [], replace(sampling, repeat_penalty=1.0))
    want = {i: p for i, p in want.items() if p > 0}
    sampler = Sampler(sampling, start)
    sampler.begin(prompt)
    law = sampler.dist(row, context)
    assert dict(zip(law.ids.tolist(), law.probs.tolist(), strict=True)) == pytest.approx(want)
    assert sampler.pick(row, context, len(context)) == sampler.draw(law, len(context))
    ids, logits = sampler.likeliest(row, context, 2)
    assert ids.tolist() == kept[:2]
    assert logits.tolist() == [float(penalised[i]) for i in kept[:2]]
    if temperature == 0.0:
        allowed = np.where(mask.mask(), penalised, -np.inf)
        assert sampler.pick(row, context, len(context)) == int(allowed.argmax())


def test_all_are_asked_only_if_the_best_fail() -> None:
    class Counting(Table):
        def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
            asked.append(len(ids))
            return np.asarray(ids == last)

    row = -np.arange(500, dtype=np.float32)
    for last, want in ((0, [1]), (3, [1, 64]), (63, [1, 64]), (64, [1, 64, 500])):
        asked: list[int] = []
        sampler = Sampler(GREEDY, Counting(0, 500))
        sampler.begin([1])
        assert sampler.pick(row, [1], 1) == last
        assert asked == want


def test_nothing_allowed() -> None:
    class Never(Table):
        def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
            return np.zeros(len(ids), np.bool_)

    for sampling in (GREEDY, WARM):
        model = TableModel(n_vocab=100)
        generator = Generator(model, Sampler(sampling, Never(0, 100)), model.is_end)
        with pytest.raises(NothingAllowed):
            list(generator.generate([1, 2], 5))
        assert model.tokens == [1], "the model is left in order"


def test_a_token_that_cannot_be_said_is_no_candidate() -> None:
    row = np.full(100, -np.inf, np.float32)
    row[7], row[9] = 1.0, 0.5

    class Only(Table):
        def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
            return np.asarray((ids == 9) | (ids == 50))

    sampler = Sampler(replace(WARM, top_p=1.0), Only(0, 100))
    sampler.begin([1])
    assert sampler.dist(row, [1]).ids.tolist() == [9]


def obeys(start: Table, tokens: Sequence[int]) -> bool:
    state: Constraint | None = start
    for token in tokens:
        if state is None or not state.allowed(np.array([token]))[0]:
            return False
        state = state.after(token)
    return True


@pytest.mark.parametrize("accept", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_every_source_gives_the_plain_text(temperature: float, accept: str) -> None:
    """Two answers of one conversation; coupled text is the plain one, and rejected guesses still obey."""
    target = TableModel(seed=3, n_vocab=90, n_ctx=400, order=2, end=END)
    near = TableModel(seed=4, n_vocab=90, n_ctx=400, order=2, end=END, near=target, spread=0.5)
    accepted = 0
    for seed in range(4):
        start = Table(seed, 90, 0.1, 60)
        sampling = Sampling(temperature=temperature, seed=seed, repeat_penalty=1.0 + 0.3 * (seed % 2))
        sampler, dice = Sampler(sampling, start), RandomDice(seed)
        drawn = dice if accept == "rejection" and temperature else None
        draft = ModelDrafter("draft", near, sampler, 90, target.is_end, drawn)
        for sources in (
            [Source(NAMED["ngram"](), 7)],
            [Source(draft, 5)],
            [Source(NAMED["ngram"](), 3), Source(draft, 5)],
        ):
            generator = Generator(target, sampler, target.is_end, Fixed(sources), dice)
            prompt = [1, 2, 3, 1, 2, 3]
            for _ in range(2):
                steps = list(generator.generate(prompt, 100))
                text = [token for step in steps for token in step.tokens]
                accepted += sum(step.accepted for step in steps)
                assert len(text) == 61
                assert obeys(start, text)
                if not drawn:
                    sampler.begin(prompt)
                    assert text == plain_text(target, sampler, prompt, 100)
                prompt = [*prompt, *text, 1, 2]
    assert accepted > 100


def test_a_draft_guesses_under_the_constraint() -> None:
    """A draft that is the target guesses right each time, which it could not without the constraint."""
    for sampling in (GREEDY, WARM):
        target, same = (TableModel(seed=3, n_vocab=90, n_ctx=400, end=END) for _ in range(2))
        sampler = Sampler(sampling, Table(1, 90, 0.05, 50))
        draft = ModelDrafter("draft", same, sampler, 90, target.is_end)
        generator = Generator(target, sampler, target.is_end, Fixed([Source(draft, 4)]))
        steps = list(generator.generate([1, 2], 51))
        assert sum(step.drafted for step in steps) == sum(step.accepted for step in steps) >= 40


def test_one_way_to_go_on_is_a_certain_guess() -> None:
    model = TableModel(seed=3, n_vocab=90)
    sampler = Sampler(GREEDY, Table(1, 90, 0.0, 50))
    sampler.begin([1, 2])
    proposal = ModelDrafter("draft", model, sampler, 90, model.is_end).propose([1, 2], 3, lambda _: True)
    assert list(proposal.confidence) == [1.0, 1.0, 1.0]


def test_penalties_alone_leave_a_greedy_draft_its_confidence() -> None:
    model = TableModel(seed=3, n_vocab=90)
    sampler = Sampler(replace(GREEDY, repeat_penalty=1.3))
    proposal = ModelDrafter("draft", model, sampler, 90, model.is_end).propose([1, 2], 3, lambda _: True)
    assert len(proposal.tokens) == 3
    assert not any(math.isnan(confidence) for confidence in proposal.confidence)


def test_the_constraint_goes_and_comes_between_answers() -> None:
    model = TableModel(seed=3, n_vocab=90, end=END)
    start, free = Table(1, 90, 0.05, 20), plain_text(model, Sampler(GREEDY), [1, 2], 40)
    sampler = Sampler(GREEDY, start)
    generator = Generator(model, sampler, model.is_end)

    def answer() -> list[int]:
        return [token for step in generator.generate([1, 2], 40) for token in step.tokens]

    held = answer()
    assert obeys(start, held)
    sampler.constraint = None
    assert answer() == free != held
    sampler.constraint = start
    assert answer() == held


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.lists(st.integers(0, 3), max_size=6)), max_size=60),
    st.integers(1, 4),
)
def test_states_follow_any_context(edits: list[tuple[int, list[int]]], kept: int) -> None:
    """However a context is cut and continued, the state is that of a walk from its start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constraint, "KEPT", kept)
        start = Table(1, 8, 0.9)
        followed, context = Followed(start, 2), [7, 7]
        for cut, more in edits:
            context = [*context[: max(2, len(context) - cut)], *more]
            state: Constraint | None = start
            for token in context[2:]:
                state = state and state.after(token)
            assert followed.after(context) == state


def test_few_states_are_kept_and_few_are_made() -> None:
    made = []

    class Made(Table):
        def after(self, token: int) -> Constraint | None:
            made.append(token)
            return self

    followed = Followed(Made(1, 8), 0)
    context = [i % 7 for i in range(1000)]
    for length in range(1, 1001):
        followed.after(context[:length])
        followed.after([*context[:length], 1, 2, 3])  # guesses, wrong ones among them
    assert len(made) < 5000
    assert len(followed._states) <= 2 * constraint.KEPT
