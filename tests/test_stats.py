"""Counters: what is counted, by whom, and the two rates that must not be mixed up."""

from __future__ import annotations

import json

import pytest
from tables import AlwaysRight, RandomGuesses, TableModel

from localspec.engine.generate import Fixed, Generator
from localspec.engine.sampling import Sampler
from localspec.engine.stats import Stats, Tally
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


def test_nothing_counted_yet() -> None:
    stats = Stats()
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
        assert sum(tally.tokens for tally in stats.sources.values()) == stats.tokens
