"""Counters: what is counted, by whom, and the two rates that must not be mixed up."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tables import AlwaysRight, RandomGuesses, TableModel

from localspec.engine.generate import Fixed, Generator
from localspec.engine.ledger import Ledger
from localspec.engine.sampling import Sampler
from localspec.engine.stats import WINDOW, Stats, Tally
from localspec.engine.types import Sampling, Source, Step

STEPS = [
    Step((7, 8, 9), "ngram", drafted=4, accepted=2, seconds_draft=0.25, seconds_verify=1.0, seconds_host=0.5),
    Step((7,), "none", drafted=0, accepted=0, seconds_draft=0.0, seconds_verify=0.5, seconds_host=0.25),
    Step((5,), "draft", drafted=2, accepted=0, seconds_draft=0.5, seconds_verify=1.0, seconds_host=0.0),
    Step((1, 2), "ngram", drafted=2, accepted=2, seconds_draft=0.0, seconds_verify=0.75, seconds_host=0.25),
]
"""Seven tokens of four passes; the last ends the turn inside its draft, so it has no bonus."""


def stats_of(steps: list[Step]) -> Stats:
    stats = Stats()
    for step in steps:
        stats.add(step)
    return stats


def test_counts() -> None:
    stats = stats_of(STEPS)
    assert (stats.passes, stats.tokens, stats.drafted, stats.accepted) == (4, 7, 8, 4)
    assert stats.mean_accepted_length == 7 / 4  # tokens per pass, the bonus included
    assert stats.acceptance_rate == 4 / 8
    assert stats.histogram == {1: 2, 2: 1, 3: 1}


def test_counts_per_source() -> None:
    assert stats_of(STEPS).sources == {
        "ngram": Tally(passes=2, tokens=5, drafted=6, accepted=4),
        "none": Tally(passes=1, tokens=1),
        "draft": Tally(passes=1, tokens=1, drafted=2),
    }


def test_seconds() -> None:
    stats = stats_of(STEPS)
    assert (stats.seconds_draft, stats.seconds_verify, stats.seconds_host) == (0.75, 3.25, 1.0)
    assert stats.seconds_decode == 5.0
    assert stats.tokens_per_second == 7 / 5


def test_positions_behind_a_wrong_guess_are_not_judged() -> None:
    """Drafts of 4 (2 right), 2 (none) and 2 (all): the fourth guess of the first was never looked at."""
    stats = stats_of(STEPS)
    assert stats.judged == {1: 3, 2: 2, 3: 1}
    assert stats.right == {1: 2, 2: 2}
    assert stats.acceptance_by_position == {1: 2 / 3, 2: 1.0, 3: 0.0}


def test_gain_counts_opening_a_source() -> None:
    """Six tokens at 2 s, and a plain pass that stands for itself: 0.75 s, whatever was expected of it."""
    priced = [replace(step, seconds_plain=2.0 * len(step.tokens)) for step in STEPS]
    assert stats_of(priced).gain == 12.75 / 5.0
    priced[0] = replace(priced[0], seconds_open=2.0)
    assert stats_of(priced).gain == 12.75 / 7.0
    assert stats_of(priced).tokens_per_second == 7 / 5  # of decoding only


def test_plain_decoding_gains_nothing_and_looking_for_guesses_loses() -> None:
    plain = replace(STEPS[1], seconds_plain=9.0)
    assert stats_of([plain] * 5).gain == 1.0
    assert stats_of([replace(plain, seconds_draft=0.25)] * 5).gain == 0.75
    assert stats_of([replace(plain, width=4)]).gain == 9.0 / 0.75  # a padded one is no plain pass


def test_gain_is_unknown_unless_every_pass_is_priced() -> None:
    priced = [replace(step, seconds_plain=1.0) for step in STEPS]
    assert stats_of(STEPS).gain is stats_of([*priced, STEPS[0]]).gain is Stats().gain is None


def test_shares_are_of_tokens_and_reasons_are_of_passes() -> None:
    reasons = ["", "nothing to guess from", "", "nothing to guess from"]
    stats = stats_of([replace(step, why=why) for step, why in zip(STEPS, reasons, strict=True)])
    assert list(stats.shares.items()) == [("ngram", 5 / 7), ("draft", 1 / 7), ("none", 1 / 7)]
    assert stats.why == {"nothing to guess from": 2}


def test_only_the_last_steps_are_recent() -> None:
    steps = [replace(STEPS[1], tokens=(i,)) for i in range(WINDOW + 3)]
    assert list(stats_of(steps).recent) == steps[3:]


def test_nothing_counted_yet() -> None:
    stats = Stats()
    assert (stats.shares, stats.acceptance_by_position) == ({}, {})
    assert stats.mean_accepted_length == stats.acceptance_rate == stats.tokens_per_second == 0.0
    assert Stats().histogram is not stats.histogram


def test_report_is_the_counts_as_json() -> None:
    report = json.loads(json.dumps(stats_of(STEPS).as_dict()))
    assert {key: report[key] for key in ("passes", "tokens", "drafted", "accepted")} == {
        "passes": 4, "tokens": 7, "drafted": 8, "accepted": 4,
    }  # fmt: skip
    assert report["mean_accepted_length"] == 1.75
    assert report["acceptance_rate"] == 0.5
    assert list(report["accepted_length_histogram"].items()) == [("1", 2), ("2", 1), ("3", 1)]
    assert list(report["sources"]) == ["draft", "ngram", "none"]
    assert report["sources"]["ngram"]["acceptance_rate"] == round(4 / 6, 4)
    assert report["sources"]["none"]["mean_accepted_length"] == 1.0


def test_report_of_what_guessing_brought() -> None:
    priced = [replace(s, seconds_plain=2.0 * len(s.tokens), seconds_open=0.5, why="so") for s in STEPS]
    report = json.loads(json.dumps(stats_of(priced).as_dict(Ledger(-1.5, 100))))
    assert report["acceptance_by_position"]["1"] == {"judged": 3, "accepted": 2, "rate": 0.6667}
    assert report["share_of_tokens"] == {"ngram": 0.7143, "draft": 0.1429, "none": 0.1429}
    assert (report["seconds_plain"], report["seconds_open"], report["gain"]) == (
        12.75,
        2.0,
        round(12.75 / 7, 4),
    )
    assert report["why"] == {"so": 4}
    assert report["ledger"] == {"balance": -1.5, "allowance": 5.0, "tokens": 100}
    unknown = stats_of(STEPS).as_dict()
    assert unknown["gain"] is unknown["ledger"] is None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_counts_of_a_run_agree_with_its_text(temperature: float) -> None:
    """Every pass but one that ends inside its draft emits its accepted guesses and one token more."""
    model = TableModel(end=3)
    sampler = Sampler(Sampling(temperature))
    right, chance = AlwaysRight(model, sampler), RandomGuesses(model.n_vocab)
    for sources in ([], [Source(right, 3)], [Source(chance, 2), Source(right, 1)]):
        model.rewind(0)
        model.widths.clear()
        loop = Generator(model, sampler, model.is_end, Fixed(sources))
        steps = list(loop.generate([1, 2], 50))
        stats = stats_of(steps)
        assert stats.passes == len(model.widths) == sum(stats.histogram.values())
        assert stats.tokens == sum(n * passes for n, passes in stats.histogram.items())
        assert stats.drafted == sum(model.widths) - stats.passes
        assert stats.tokens == stats.accepted + stats.passes - (len(steps[-1].tokens) == steps[-1].accepted)
        assert stats.accepted <= stats.drafted
        assert sum(stats.right.values()) == stats.accepted
        judged = sum(min(step.accepted + 1, step.drafted) for step in steps)
        assert sum(stats.judged.values()) == judged
        assert sum(tally.tokens for tally in stats.sources.values()) == stats.tokens
