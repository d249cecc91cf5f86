"""Ratios by hand and by brute force, their intervals, and the table made of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from localspec.bench.report import Ratio, Run, best_fixed, markdown, ratio, table

SEED = 11


def run(prompt: str, setting: str, seconds: float, tokens: int = 100, **facts: Any) -> Run:
    given = {"family": "chat", "seconds_price": 0.0, "passes": tokens, "drafted": 0, "accepted": 0, **facts}
    return Run(prompt=prompt, setting=setting, tokens=tokens, seconds=seconds, **given)


def many(n: int, factor: float, noise: float, seed: int = SEED, family: str = "chat") -> list[Run]:
    """`n` prompts; "draft" is faster by about `factor`, more or less so from prompt to prompt."""
    rng = np.random.default_rng(seed)
    seconds = rng.uniform(1, 20, n)
    factors = factor * np.exp(noise * rng.standard_normal(n))
    plain = [run(f"p{i}", "none", s, round(20 * s), family=family) for i, s in enumerate(seconds)]
    pairs = zip(plain, factors, strict=True)
    return plain + [replace(r, setting="draft", seconds=r.seconds / f) for r, f in pairs]


def test_time_is_pooled() -> None:
    runs = [run("a", "none", 10), run("a", "draft", 5), run("b", "none", 30), run("b", "draft", 30)]
    assert ratio(runs, "draft").value == pytest.approx(40 / 35)  # not the mean of 2 and 1


def test_tokens_count_when_answers_differ() -> None:
    runs = [run("a", "none", 10, tokens=100), run("a", "draft", 10, tokens=150)]
    assert ratio(runs, "draft").value == pytest.approx(1.5)


def test_the_price_counts_on_both_sides() -> None:
    runs = [run("a", "none", 10), run("a", "draft", 4, seconds_price=1.0)]
    assert ratio(runs, "draft").value == pytest.approx(2.0)
    assert ratio(runs, "none", "draft").value == pytest.approx(0.5)


def test_only_prompts_measured_under_both() -> None:
    runs = [run("a", "none", 10), run("a", "draft", 5), run("b", "none", 1000), run("c", "draft", 1000)]
    assert ratio(runs, "draft").value == pytest.approx(2.0)


def test_the_same_prompt_name_in_two_families_is_two_prompts() -> None:
    runs = [run("a", "none", 10), run("a", "draft", 5, family="code")]
    assert math.isnan(ratio(runs, "draft").value)


def test_family() -> None:
    runs = [
        *(run("a", s, t) for s, t in (("none", 10), ("draft", 5))),
        *(run("b", s, t, family="code") for s, t in (("none", 9), ("draft", 3))),
    ]
    values = [ratio(runs, "draft", family=family).value for family in ("chat", "code", None)]
    assert values == pytest.approx([2, 3, 19 / 8])


def test_repeated_measurements_do_not_weigh_more() -> None:
    """An ABBA with a run missing: prompt b was measured thrice on one side and once on the other."""
    runs = [
        *(run("a", "none", s) for s in (9, 11)),
        *(run("a", "draft", s) for s in (4, 6)),
        *(run("b", "none", s) for s in (20, 30, 40)),
        run("b", "draft", 25),
    ]
    assert ratio(runs, "draft").value == pytest.approx(40 / 30)


def test_nothing_measured() -> None:
    empty = [
        run("a", "none", 10),
        run("a", "draft", 0.0),
        run("b", "none", 1),
        run("b", "draft", 1, tokens=0),
    ]
    for runs in ([], empty):
        assert all(math.isnan(x) for x in (ratio(runs, "draft").value, ratio(runs, "draft").low))


def test_one_prompt_has_no_interval() -> None:
    found = ratio([run("a", "none", 10), run("a", "draft", 5)], "draft")
    assert found.value == 2.0
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_the_interval_is_that_of_a_plain_bootstrap() -> None:
    runs = many(12, 1.6, 0.2)
    sides = [(runs[i].seconds, runs[i + 12].seconds) for i in range(12)]
    rng = np.random.default_rng(5)
    drawn = []
    for _ in range(4000):
        pairs = [sides[i] for i in rng.integers(12, size=12)]
        drawn.append(sum(p for p, _ in pairs) / sum(d for _, d in pairs))
    found = ratio(runs, "draft", draws=4000)
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(drawn, (2.5, 97.5))), rel=0.01)
    assert found.low < found.value < found.high


def test_the_interval_is_paired() -> None:
    """Answers of very different lengths, always exactly twice as fast: there is nothing uncertain in it."""
    found = ratio(many(10, 2.0, 0.0), "draft")
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Truth: the ratio that noise 0.15 gives on very many prompts. 95 % less what 20 prompts cost."""
    truth = ratio(many(20_000, 1.5, 0.15), "draft", draws=0).value
    found = [ratio(many(20, 1.5, 0.15, seed=s), "draft", draws=400) for s in range(200)]
    held = sum(r.low <= truth <= r.high for r in found)
    assert 174 <= held <= 198


def test_reproducible() -> None:
    runs = many(8, 1.3, 0.2)
    assert ratio(runs, "draft") == ratio(runs, "draft") != ratio(runs, "draft", seed=1)


RUNS = [
    run("a", "none", 10),
    run("a", "draft", 5, passes=40, drafted=80, accepted=60),
    run("a", "auto", 4, passes=30, drafted=100, accepted=70),
    run("b", "none", 10),
    run("b", "draft", 10, passes=60, drafted=20, accepted=0),
    run("b", "auto", 10, passes=100),
    run("c", "none", 10, family="code"),
    run("c", "draft", 20, family="code", passes=90),
]
SETTINGS = ("none", "draft", "auto")


def test_table() -> None:
    rows = table(RUNS, ("chat", "code"), SETTINGS)
    names = [(row["family"], row["setting"]) for row in rows]
    assert names == [(family, setting) for family in ("chat", "code", "all") for setting in SETTINGS]
    found = dict(zip(names, rows, strict=True))
    draft = found["chat", "draft"]
    assert draft["ratio"] == pytest.approx(20 / 15)
    assert (draft["prompts"], draft["tokens_per_pass"], draft["acceptance_rate"]) == (2, 2.0, 0.6)
    assert draft["low"] <= draft["ratio"] <= draft["high"]
    assert found["all", "draft"]["ratio"] == pytest.approx(30 / 35)
    assert found["chat", "none"]["ratio"] == 1.0
    assert found["chat", "none"]["acceptance_rate"] is None
    assert found["code", "draft"]["low"] is None  # one prompt
    assert found["code", "auto"] == {
        **dict.fromkeys(found["code", "auto"], None), "family": "code", "setting": "auto", "prompts": 0,
    }  # fmt: skip
    json.dumps(rows, allow_nan=False)


def test_families_left_out_are_not_in_the_pool() -> None:
    rows = table(RUNS, ("code",), ("draft",))
    assert [(row["family"], row["ratio"]) for row in rows] == [("code", 0.5), ("all", 0.5)]


def test_best_fixed() -> None:
    rows = table(RUNS, ("chat", "code"), SETTINGS)
    assert best_fixed(rows, "chat") == ("draft", pytest.approx(20 / 15))  # auto is faster, but not fixed
    assert best_fixed(rows, "code") == ("none", 1.0)
    assert best_fixed([], "chat") == ("none", 1.0)


def test_markdown() -> None:
    rows = [
        {"family": "chat", "setting": "none", "ratio": 1.0, "low": 1.0, "high": 1.0},
        {"family": "chat", "setting": "k4", "ratio": 1.618, "low": 1.549, "high": 1.701},
        {"family": "chat", "setting": "auto", "ratio": 1.7, "low": 1.6, "high": 1.8},
        {"family": "a|b", "setting": "none", "ratio": 1.0, "low": 1.0, "high": 1.0},
        {"family": "a|b", "setting": "k4", "ratio": 0.9, "low": None, "high": None},
        {"family": "a|b", "setting": "auto", "ratio": None, "low": None, "high": None},
    ]
    assert markdown(rows) == (
        "| family | none | k4 | auto |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| chat | 1.00 | **1.62 (1.55-1.70)** | 1.70 (1.60-1.80) |\n"
        "| a\\|b | **1.00** | 0.90 | - |\n"
    )


def test_markdown_of_nothing() -> None:
    assert markdown(table([], ("chat",), ("none",))).splitlines()[2:] == ["| chat | - |", "| all | - |"]
    assert markdown([]) == "| family |\n| --- |\n"


def test_ten_thousand_prompts_are_fast_enough() -> None:
    found = ratio(many(10_000, 1.5, 0.2), "draft")
    assert isinstance(found, Ratio)
    assert found.high - found.low < 0.02
