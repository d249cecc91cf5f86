"""The certificate: equal texts, near ties and defects are told apart, and wrong laws are noticed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from tables import AlwaysRight, TableModel, hostile, plain_text

from localspec.bench.certificate import About, Certificate, Comparison, Difference
from localspec.bench.laws import ChiSquare, chi_square, chi_square_tail, record_laws
from localspec.bench.verify import Padded, compare, run
from localspec.drafters import NgramDrafter
from localspec.drafters.model import ModelDrafter
from localspec.engine import accept
from localspec.engine.exactness import RowChange
from localspec.engine.generate import Fixed, Generator
from localspec.engine.sampling import RandomDice, Sampler
from localspec.engine.stats import Tally
from localspec.engine.types import Dist, Drafter, Logits, Model, Sampling, Source
from localspec.llama.model import LlamaModel, LoadOptions

PROMPT = [1, 2, 3]
ABOUT = About("m.gguf", "abc", {"system": "Linux"}, {"threads": 1}, {"localspec": "1"})
GREEDY = Sampling(temperature=0.0)
WARM = Sampling(seed=4)


def guessing(
    model: Model,
    sampler: Sampler,
    is_end: Callable[[int], bool],
    drafter: Drafter,
    dice: accept.Dice | None = None,
) -> Generator:
    """A generator that lets `drafter` guess six tokens at every step."""
    return Generator(model, sampler, is_end, Fixed([Source(drafter, 6)]), dice or RandomDice(0))


def tokens(generator: Generator, length: int = 60) -> Callable[[list[int]], list[int]]:
    return lambda prompt: [token for step in generator.generate(prompt, length) for token in step.tokens]


def table(**options: Any) -> TableModel:
    return TableModel(**{"seed": 1, "n_vocab": 30, "n_ctx": 900, "order": 2, **options})


@dataclass
class Wobbly(TableModel):
    """A table whose passes of more than one token are off by up to `error` in every logit."""

    error: float = 0.1

    def eval(self, tokens: Sequence[int], rows: int = 1) -> Logits:
        logits = TableModel.eval(self, tokens, rows)
        if rows and len(tokens) > 1:
            noise = np.random.default_rng([len(tokens), len(self.tokens)])
            logits += noise.uniform(-self.error, self.error, logits.shape).astype(np.float32)
        return logits


@pytest.mark.parametrize("sampling", [GREEDY, WARM, replace(WARM, repeat_penalty=1.3)])
def test_compare_equal_texts(sampling: Sampling) -> None:
    model, sampler = table(end=5), Sampler(sampling)
    for drafter in hostile(model, sampler):
        generate = tokens(guessing(model, sampler, model.is_end, drafter))
        found = compare(model, sampler, model.is_end, PROMPT, 60, generate)
        plain = plain_text(model, sampler, PROMPT, 60)
        assert found == Comparison(1, sampling, len(plain), None, None, 0.0), drafter.name
        assert found.verdict == "identical"


def test_compare_at_the_end_of_the_context() -> None:
    """Padding takes room from the control: that it stops sooner is no difference."""
    model, sampler = table(n_ctx=40), Sampler(WARM)
    generate = tokens(guessing(model, sampler, model.is_end, AlwaysRight(model, sampler)))
    found = compare(model, sampler, model.is_end, PROMPT, 60, generate, control_width=8)
    assert (found.tokens, found.speculative, found.control) == (38, None, None)


def test_compare_calls_a_small_gap_a_tie_and_a_large_one_a_defect() -> None:
    ties = control = 0
    for seed in range(20):
        model, sampler = Wobbly(seed=seed, n_vocab=30, n_ctx=900, order=2), Sampler(replace(WARM, seed=seed))
        exact = TableModel(seed=seed, n_vocab=30, order=2)
        generate = tokens(guessing(model, sampler, model.is_end, AlwaysRight(exact, sampler)))
        found = compare(model, sampler, model.is_end, PROMPT, 60, generate, tolerance=0.21)
        control += found.control is not None
        if found.speculative:
            ties += 1
            assert 0 < found.speculative.gap <= 0.2, "errors of 0.1 cannot bridge more"
            assert found.verdict == "near tie"
            assert replace(found, tolerance=found.speculative.gap / 2).verdict == "DEFECT"
            assert replace(found, tolerance=0.0).verdict == "DEFECT"
    assert ties > 3
    assert control > 3


def test_compare_sees_a_wrong_token_and_a_lost_one() -> None:
    model, sampler = table(), Sampler(GREEDY)
    plain = plain_text(model, sampler, PROMPT, 20)
    worst = int(model.row([*PROMPT, *plain[:7]]).argmin())
    wrong = compare(model, sampler, model.is_end, PROMPT, 20, lambda _: [*plain[:7], worst], tolerance=1.0)
    assert wrong.speculative is not None
    assert wrong.speculative.place == 7
    assert wrong.speculative.gap > 2.0
    assert wrong.verdict == "DEFECT"
    lost = compare(model, sampler, model.is_end, PROMPT, 20, lambda _: plain[:-1], tolerance=1.0)
    assert lost.speculative == Difference(19, float("inf"))
    assert lost.verdict == "DEFECT"


def test_padded_passes_are_wide_and_say_the_same() -> None:
    model, sampler = table(), Sampler(WARM)
    text = tokens(Generator(Padded(model, 4), sampler, model.is_end))(PROMPT)
    assert set(model.widths) == {4}
    assert text == plain_text(model, sampler, PROMPT, 60)
    assert list(model.tokens) == [*PROMPT, *text][:-1]


def certify(target: TableModel, make: Callable[[Sampler, bool], Generator], **options: Any) -> Certificate:
    return run(target, make, [PROMPT, [7, 8, 9, 7]], [GREEDY, WARM], 40, ABOUT, **options)


def test_run_of_a_sound_program() -> None:
    target = table(end=5)

    def make(sampler: Sampler, speculative: bool) -> Generator:
        if not speculative:
            return Generator(target, sampler, target.is_end)
        return guessing(target, sampler, target.is_end, NgramDrafter())

    said: list[str] = []
    found = certify(target, make, widths=[48], on_progress=said.append)
    assert found.verdict == "identical"
    assert [(c.prompt, c.sampling) for c in found.comparisons] == [
        (number, sampling) for sampling in (GREEDY, WARM) for number in (1, 2)
    ]
    assert found.work.drafted > 0
    assert 48 in found.changes
    assert {2, 48} <= set(found.changes) <= {*range(2, 8), 48}, "the widths of passes that were made"
    assert len(said) == 5
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert data["verdict"] == "identical"
    assert data["model"] == "m.gguf"
    assert data["versions"] == {"localspec": "1"}
    assert data["probe"]["2"]["changed"] == 0
    assert data["comparisons"][3]["temperature"] == WARM.temperature
    text = "\n".join(found.lines())
    assert "4 of 4 identical" in text
    assert found.lines()[-1] == "verdict   identical"


def test_run_of_a_broken_program() -> None:
    """A generator that samples with another seed as soon as it guesses."""
    target = table()

    def make(sampler: Sampler, speculative: bool) -> Generator:
        other = Sampler(replace(sampler.sampling, seed=sampler.sampling.seed + speculative))
        return guessing(target, other, target.is_end, NgramDrafter())

    found = certify(target, make)
    assert found.verdict == "DEFECT"
    assert found.lines()[-1] == "verdict   DEFECT"
    assert any("temperature 0.8, seed 4: token" in defect for defect in found.defects)
    assert "temperature 0," not in str(found.defects), "greedy text needs no seed"
    json.dumps(found.as_dict(), allow_nan=False)


def test_run_measures_its_tolerance() -> None:
    target = Wobbly(seed=1, n_vocab=30, n_ctx=900, order=2, error=0.05)

    def make(sampler: Sampler, speculative: bool) -> Generator:
        drafter = AlwaysRight(table(), sampler)
        return guessing(target, sampler, target.is_end, drafter) if speculative else plain(sampler)

    def plain(sampler: Sampler) -> Generator:
        return Generator(target, sampler, target.is_end)

    found = certify(target, make)
    assert all(change.changed for change in found.changes.values())
    assert {0.05 < c.tolerance <= 0.15 for c in found.comparisons} == {True}


def test_no_guess_proves_nothing() -> None:
    target = table()
    found = certify(target, lambda sampler, _: Generator(target, sampler, target.is_end))
    assert any("shows nothing" in line for line in found.lines())


def certificate(gaps: Sequence[tuple[float | None, float | None]], p: float = 0.5) -> Certificate:
    """Of comparisons with these gaps from the speculative and the control run."""

    def difference(gap: float | None) -> Difference | None:
        return None if gap is None else Difference(3, gap)

    comparisons = [Comparison(1, WARM, 9, difference(a), difference(b), 0.04) for a, b in gaps]
    changes = {2: RowChange(2, 0, 0.0, 0.0, 0, 600), 4: RowChange(4, 3, 0.02, 0.01, 0, 600)}
    return Certificate(ABOUT, changes, tuple(comparisons), (ChiSquare(9.0, 9, p, 2000),), Tally(1, 1, 1, 1))


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ([(None, None), (None, 0.01)], "identical"),
        ([(0.012, None), (None, None)], "identical but for near ties (1, largest gap 0.012)"),
        ([(0.012, 0.03), (0.02, 0.01)], "identical but for near ties (2, largest gap 0.02)"),
        ([(0.012, 0.03), (0.02, None)], "DEFECT"),
        ([(0.05, 0.05), (None, 0.05)], "DEFECT"),
        ([(float("inf"), None)], "DEFECT"),
    ],
)
def test_verdict(gaps: list[tuple[float | None, float | None]], verdict: str) -> None:
    found = certificate(gaps)
    assert found.verdict == verdict
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["exact_widths"] == [1, 2]
    assert "kernels   exact at widths 2; not at 4 (a logit changes by up to 0.02)" in found.lines()


def test_a_wrong_law_is_a_defect() -> None:
    assert certificate([], p=1e-3).verdict == "same law"
    assert certificate([], p=1e-6).verdict == "DEFECT"


@pytest.mark.parametrize(
    ("statistic", "degrees", "p"),
    [(3.841, 1, 0.05), (18.307, 10, 0.05), (29.588, 10, 0.001), (124.342, 100, 0.05), (9.342, 10, 0.5)],
)
def test_chi_square_tail_against_tables(statistic: float, degrees: int, p: float) -> None:
    assert chi_square_tail(statistic, degrees) == pytest.approx(p, abs=0.004, rel=0.1)


def test_chi_square_tail_at_the_ends() -> None:
    assert chi_square_tail(0.0, 0) == 1.0
    assert chi_square_tail(0.0, 5) == pytest.approx(1.0, abs=1e-3)
    assert chi_square_tail(float("inf"), 3) == 0.0


def warm_laws() -> tuple[list[Dist], list[Dist]]:
    """Recorded behind a prompt from a draft that is near its target, but not very."""
    target = table(spread=1.0)
    draft = table(seed=2, near=target, spread=1.0)
    sampler = Sampler(WARM)
    drafter = ModelDrafter("draft", draft, sampler, 30, target.is_end, RandomDice(1))
    found = record_laws(target, sampler, drafter, PROMPT, 3)
    assert found is not None
    return found


def never(_: int) -> bool:
    return False


def test_recorded_laws_are_those_of_the_models() -> None:
    guess, target = warm_laws()
    assert (len(guess), len(target)) == (3, 4)
    expected = Sampler(WARM).dist(table(spread=1.0).row(PROMPT), PROMPT)
    assert (target[0].ids == expected.ids).all()
    assert (target[0].probs == expected.probs).all()


def test_nothing_to_record() -> None:
    target, sampler = table(), Sampler(WARM)
    assert record_laws(target, sampler, AlwaysRight(target, sampler), PROMPT, 3) is None
    drafter = ModelDrafter("draft", table(), sampler, 30, target.is_end, RandomDice(1))
    assert record_laws(table(n_ctx=3), sampler, drafter, PROMPT, 3) is None


def test_chi_square_of_block_verification() -> None:
    guess, target = warm_laws()
    ends = int(guess[0].ids[0])  # some drafts end at once
    for is_end in (never, lambda token: token == ends):
        tests = [chi_square(guess, target, is_end, RandomDice(seed), 1000) for seed in range(10)]
        assert min(test.p for test in tests) > 1e-3
        assert max(test.p for test in tests) > 0.3
        assert {test.draws for test in tests} == {1000}


def test_chi_square_notices_a_wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    guess, target = warm_laws()
    monkeypatch.setattr(accept, "block", lambda draft, *_: accept.Verdict(list(draft), len(draft)))
    found = chi_square(guess, target, never, RandomDice(0))
    assert found.p < 1e-6
    monkeypatch.setattr(accept, "block", lambda *_: accept.Verdict([29_999], 0))
    impossible = chi_square(guess, target, never, RandomDice(0))
    assert (impossible.p, impossible.statistic) == (0.0, float("inf"))
    json.dumps(impossible.as_dict(), allow_nan=False)


@pytest.mark.parametrize("broken", [False, True])
def test_run_in_rejection_mode(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    """Greedy texts are compared, warm laws tested; a residual that is the target's own law is noticed."""
    target = table(spread=1.0)
    draft = table(seed=2, near=target, spread=1.0)
    dice = RandomDice(7)
    if broken:
        monkeypatch.setattr(accept, "residual", lambda target, *_: target)

    def make_drafter(sampler: Sampler) -> ModelDrafter:
        drawn = dice if sampler.sampling.temperature else None
        return ModelDrafter("draft", draft, sampler, 30, target.is_end, drawn)

    def make(sampler: Sampler, speculative: bool) -> Generator:
        if not speculative:
            return Generator(target, sampler, target.is_end)
        return guessing(target, sampler, target.is_end, make_drafter(sampler), dice)

    found = certify(target, make, make_drafter=make_drafter)
    assert [c.sampling for c in found.comparisons] == [GREEDY, GREEDY]
    assert len(found.laws) == 6
    assert found.verdict == ("DEFECT" if broken else "identical")
    assert any("change the law" in defect for defect in found.defects) is broken
    assert any(line.startswith("laws      6 tests of 2000 draws") for line in found.lines())


@pytest.mark.parametrize(("kind", "exact"), [("Q8_0", True), ("F32", False)])
def test_run_on_llama_cpp(tmp_path: Path, kind: str, exact: bool) -> None:
    path = tiny.write_llama(tmp_path / "f32.gguf", end_bias=-20.0)
    options = LoadOptions(n_ctx=1024, threads=1, kv_type="f32", flash_attn="off")
    if exact:
        path = tiny.quantize(path, tmp_path / "q8_0.gguf", kind)
        options = LoadOptions(n_ctx=1024, threads=1, flash_attn="on")
    with LlamaModel(path, options) as target:
        prompt = target.vocab.tokenize("the cat and the dog and the cat and", special=False)

        def make(sampler: Sampler, speculative: bool) -> Generator:
            if not speculative:
                return Generator(target, sampler, never)
            return guessing(target, sampler, never, NgramDrafter())

        found = run(target, make, [prompt], [GREEDY, WARM], 80, ABOUT)
        assert found.verdict.startswith("identical")
        assert [c.tokens for c in found.comparisons] == [80, 80]
        assert {c.tolerance == 0.0 for c in found.comparisons} == {exact}
        assert found.work.accepted > 0
