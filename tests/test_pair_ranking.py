"""What a draft is expected to bring: against published tables, brute force and measured copies."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec import config
from localspec.models.pairs import (
    WORTH_OFFERING,
    Candidate,
    Expectation,
    copy_acceptance,
    draft_acceptance,
    expected_factor,
    factor_at,
    rank_drafts,
    self_draft_offer,
    self_draft_path,
    self_drafts,
    typical_widths,
)

FLAT = {n: 1 + 0.03 * (n - 1) for n in range(1, 17)}
"""A GPU that reads weights: wider passes cost next to nothing."""
CPU_Q8_0 = {1: 1.0, 2: 3.04, 3: 3.85, 4: 4.34, 5: 5.41, 8: 5.68, 16: 7.14}
MEASURED_ON_135M = [
    (5.14, 0.0, 0.72),
    (5.35, 0.0, 0.76),
    (5.35, 0.8, 0.67),
    (5.46, 0.0, 0.85),
    (5.96, 0.0, 0.87),
    (5.14, 0.8, 0.63),
    (5.46, 0.8, 0.77),
    (5.96, 0.8, 0.84),
]
"""Real bits of a copy, temperature, share of an F16 target's tokens it guessed (24 Spec-Bench prompts)."""


class Words:
    """A vocabulary of one text an id."""

    kind, bos, eos, adds_bos, adds_eos = 2, 1, 2, False, False

    def __init__(self, n_tokens: int, changed: dict[int, str] | None = None) -> None:
        self.n_tokens = n_tokens
        self.changed = changed or {}

    def text(self, token: int) -> str:
        return self.changed.get(token, f"word{token}")


@pytest.mark.parametrize(
    ("cost", "slope", "alpha", "draft_len", "factor"),
    [
        # By hand: best length and factor with T(n) = 1 + slope (n - 1)
        (0.0, 0.10, 0.5, 2, 1.46),
        (0.0, 0.25, 0.9, 6, 2.09),
        (0.05, 0.03, 0.8, 6, 2.67),
        (0.12, 0.03, 0.6, 2, 1.51),
        (0.12, 0.10, 0.7, 3, 1.53),
        (0.25, 0.10, 0.9, 4, 1.71),
        (0.375, 0.10, 0.5, 1, 1.02),
        (0.375, 0.25, 0.8, 1, 1.11),
        (0.375, 0.25, 0.5, 0, 1.0),
        (0.375, 0.25, 0.6, 0, 1.0),
    ],
)
def test_published_optima(cost: float, slope: float, alpha: float, draft_len: int, factor: float) -> None:
    widths = {n: 1 + slope * (n - 1) for n in range(1, 34)}
    found = expected_factor(alpha, cost, widths)
    assert found.draft_len == draft_len
    assert found.factor == pytest.approx(factor, abs=0.006)


@given(alpha=st.floats(0, 1), draft_len=st.integers(1, 6), catch_up=st.floats(0, 2))
def test_factor_is_that_of_all_outcomes(alpha: float, draft_len: int, catch_up: float) -> None:
    """Every pattern of right and wrong guesses, with its probability, tokens and cost."""
    tokens = seconds = 0.0
    for right in itertools.product([True, False], repeat=draft_len):
        chance = alpha ** sum(right) * (1 - alpha) ** (draft_len - sum(right))
        accepted = next((i for i, ok in enumerate(right) if not ok), draft_len)
        tokens += chance * (accepted + 1)
        seconds += chance * (0.2 * draft_len + FLAT[draft_len + 1] + (catch_up if all(right) else 0))
    assert factor_at(draft_len, alpha, 0.2, FLAT, catch_up) == pytest.approx(tokens / seconds)


def test_a_cheaper_wider_pass_is_used() -> None:
    sawtooth = {1: 1.0, 2: 1.3, 3: 2.0, 4: 1.4}
    assert factor_at(2, 0.9, 0.1, sawtooth) == pytest.approx((1 + 0.9 + 0.81) / (0.2 + 1.4))
    assert expected_factor(0.9, 0.1, sawtooth).draft_len == 3
    assert expected_factor(0.6, 0.25, sawtooth).draft_len == 1


def test_only_ratios_of_widths_count() -> None:
    in_milliseconds = {n: 7.0 * cost for n, cost in FLAT.items()}
    assert expected_factor(0.8, 0.2, FLAT).factor == pytest.approx(
        factor_at(expected_factor(0.8, 0.2, FLAT).draft_len, 0.8, 7 * 0.2, in_milliseconds)
    )


def test_nothing_to_gain() -> None:
    assert expected_factor(0.99, 0.1, {1: 1.0}) == Expectation(0, 1.0)
    assert expected_factor(0.0, 0.0, FLAT) == Expectation(0, 1.0)
    assert expected_factor(1.0, 1.0, FLAT) == Expectation(0, 1.0)


@given(
    better=st.floats(0, 0.98),
    gain=st.floats(0, 0.02),
    cost=st.floats(0, 1),
    saving=st.floats(0, 0.5),
)
def test_a_better_or_cheaper_draft_never_gains_less(
    better: float, gain: float, cost: float, saving: float
) -> None:
    factor = expected_factor(better, cost, FLAT).factor
    assert expected_factor(better + gain, cost, FLAT).factor >= factor - 1e-12
    assert expected_factor(better, cost * saving, FLAT).factor >= factor - 1e-12
    assert factor >= 1


@pytest.mark.parametrize(("bits", "temperature", "measured"), MEASURED_ON_135M)
def test_acceptance_of_small_copies_is_as_measured(bits: float, temperature: float, measured: float) -> None:
    assert copy_acceptance(bits, 134_515_008, temperature) == pytest.approx(measured, abs=0.06)


@pytest.mark.parametrize(("bits", "published"), [(3.17, 0.711), (4.89, 0.919), (6.57, 0.960), (8.5, 0.977)])
def test_acceptance_of_8b_copies_is_as_published(bits: float, published: float) -> None:
    """Llama 3 8B, "same top p" of Q2_K, Q4_K_M, Q6_K and Q8_0 (llama.cpp, tools/perplexity/README.md)."""
    assert copy_acceptance(bits, 8_030_000_000, 0.0) == pytest.approx(published, abs=0.02)


@given(bits=st.floats(1.5, 16), n=st.integers(10**7, 10**12), temperature=st.floats(0, 100))
def test_acceptance_is_a_chance_that_grows_with_bits_and_size(
    bits: float, n: int, temperature: float
) -> None:
    chance = copy_acceptance(bits, n, temperature)
    assert 0 <= chance < 1
    assert copy_acceptance(bits + 0.5, n, temperature) >= chance
    assert copy_acceptance(bits, 2 * n, temperature) >= chance
    assert copy_acceptance(bits, n, temperature + 0.5) <= chance


BITS_8B = {"q4_0": 4.64, "q3_k": 3.65, "q2_k": 3.17}


def test_self_draft_is_offered_where_it_wins() -> None:
    """What users see: F16 gains most, Q8_0 some, a 4-bit target nothing."""
    f16, q8_0, q4_k = (self_draft_offer(bits, 8_030_000_000, BITS_8B, FLAT) for bits in (16.0, 8.5, 4.89))
    assert f16 is not None
    assert q8_0 is not None
    assert q4_k is None
    assert f16.expected.factor > q8_0.expected.factor > WORTH_OFFERING
    assert f16.kind == "q4_0"
    assert f16.acceptance == copy_acceptance(4.64, 8_030_000_000, 0.8)
    assert f16.expected == expected_factor(f16.acceptance, 4.64 / 16, FLAT)


def test_self_draft_is_not_offered_where_wide_passes_are_dear() -> None:
    assert self_draft_offer(8.5, 8_030_000_000, BITS_8B, CPU_Q8_0) is None


def test_self_draft_goes_by_measured_costs() -> None:
    """On a CPU a copy's pass is dearer than its bytes tell."""
    dear = {"q4_0": 0.9, "q3_k": 0.3, "q2_k": 0.9}
    offer = self_draft_offer(16.0, 8_030_000_000, BITS_8B, FLAT, costs=dear)
    assert offer is not None
    assert offer.kind == "q3_k"
    assert self_draft_offer(16.0, 8_030_000_000, BITS_8B, FLAT, costs=dict.fromkeys(BITS_8B, 0.9)) is None


def test_self_draft_of_a_small_model_goes_by_its_real_bits() -> None:
    """The 135M model: a "Q2_K" copy has 5.1 bits and errs a fifth of the time."""
    assert self_draft_offer(5.74, 134_515_008, {"q2_k": 5.14, "q4_0": 5.35}, FLAT) is None
    offer = self_draft_offer(16.0, 134_515_008, {"q2_k": 5.14, "q4_0": 5.35}, FLAT)
    assert offer is not None
    assert 1.1 < offer.expected.factor < 1.6


def test_no_copies_no_offer() -> None:
    assert self_draft_offer(16.0, 8_030_000_000, {}, FLAT, least=0.0) is None


def test_self_draft_asked_for_is_the_one_that_loses_least() -> None:
    worst_first = dict(reversed(BITS_8B.items()))
    offer = self_draft_offer(8.5, 8_030_000_000, worst_first, CPU_Q8_0, least=0.0)
    assert offer is not None
    assert offer.expected == Expectation(0, 1.0)
    assert offer.kind == "q4_0"


@pytest.mark.parametrize(
    ("kind", "bits", "wide"),
    [("cpu", 16.0, 2.03), ("cpu", 8.5, 4.34), ("cpu", 4.5, 2.78), ("gpu", 4.5, 1.12), ("igpu", 4.5, 1.7)],
)
def test_typical_widths(kind: str, bits: float, wide: float) -> None:
    widths = typical_widths(kind, bits)
    assert widths[1] == 1
    assert widths[4] == wide


def test_drafts_are_ranked_by_fit_then_gain_then_size() -> None:
    target = Candidate("8b", 8_030_000_000, 8_500_000_000, Words(1000))
    better = Candidate("1b", 1_240_000_000, 800_000_000, Words(1000))
    worse = Candidate("3b", 3_200_000_000, 3_400_000_000, Words(1001))
    useless = Candidate("8b-too", 8_030_000_000, 8_500_000_000, Words(1000))
    smaller = Candidate("z-7b", 7_000_000_000, 8_400_000_000, Words(1000))
    dull = Candidate("1m", 1_000_000, 600_000_000, Words(1000))
    unknown = Candidate("remote", 1_240_000_000, 700_000_000)
    other = Candidate("other", 1_240_000_000, 700_000_000, Words(1000, {7: "seven"}))
    head = Candidate("head", 1_240_000_000, 600_000_000, Words(1000), unfit="the head of another model")
    ranked = rank_drafts(target, [head, other, unknown, useless, smaller, worse, dull, better], FLAT)
    assert [p.candidate.name for p in ranked] == [
        "1b",
        "1m",
        "3b",
        "z-7b",
        "8b-too",
        "remote",
        "head",
        "other",
    ]
    assert [p.fits for p in ranked] == [True] * 5 + [None] + [False] * 2
    best, *_, unsure, no_model, foreign = ranked
    assert best.why == f"reads 9 % of the target's bytes a token, about {best.expected.factor:.1f}x expected"
    assert best.expected == expected_factor(draft_acceptance(1.24 / 8.03, 0.8), 8 / 85, FLAT)
    assert unsure.why.startswith("vocabulary unknown, reads 8 %")
    assert unsure.expected.factor > 1
    assert no_model.why == "the head of another model"
    assert foreign.why == "another vocabulary: id 7 is 'word7' against 'seven'"
    assert foreign.expected == no_model.expected == Expectation(0, 1.0)


def test_a_target_of_unknown_vocabulary_proves_nothing() -> None:
    target = Candidate("remote", 8_030_000_000, 8_500_000_000)
    (pairing,) = rank_drafts(target, [Candidate("1b", 1_240_000_000, 800_000_000, Words(9))], FLAT)
    assert pairing.fits is None


@pytest.mark.parametrize(
    ("ratio", "alpha"), [(1 / 1370, 0.61), (2 / 137, 0.75), (0.08 / 11, 0.65), (0.8 / 11, 0.74)]
)
def test_acceptance_of_smaller_models_is_near_the_published(ratio: float, alpha: float) -> None:
    assert draft_acceptance(ratio, 0.0) == pytest.approx(alpha, abs=0.06)
    assert draft_acceptance(ratio, 1.0) < draft_acceptance(ratio, 0.0)


def test_copies_are_found_by_content_not_by_name(tmp_path: Path) -> None:
    key, other = "0123456789abcdef" * 4, "fedcba9876543210" * 4
    path = self_draft_path(tmp_path, Path("/models/Qwen3-8B-Q8_0[1].gguf"), key, "q4_0")
    assert path.name == "Qwen3-8B-Q8_0[1].0123456789abcdef.q4_0.gguf"
    renamed = self_draft_path(tmp_path, Path("/elsewhere/my.gguf"), key, "q2_k")
    unfinished = renamed.with_name(renamed.name + ".part")
    for file in (path, unfinished, self_draft_path(tmp_path, Path("a.gguf"), other, "q4_0")):
        file.touch()
    assert self_drafts(tmp_path, key) == sorted([path, unfinished])
    assert self_drafts(tmp_path / "missing", key) == []


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    assert config.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("LOCALSPEC_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert config.cache_folder() == tmp_path / "xdg" / "localspec"
