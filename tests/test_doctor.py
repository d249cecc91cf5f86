"""What the doctor knows of passes from earlier sessions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from localspec import doctor
from localspec.doctor import MOST_WAITS, Waits
from localspec.learned import Learned

FLAT = {1: 1.0, 2: 1.1, 4: 1.2, 8: 1.3, 16: 1.31}
SAWTOOTH = {1: 1.0, 7: 1.6, 8: 1.25, 16: 2.2}
STEEP = {1: 1.0, 2: 1.9, 4: 3.0}


def learn(name: str, costs: dict[str, dict[int, float]], seconds: int) -> Path:
    """A file of an earlier session that ended at `seconds`."""
    learned = Learned.of(name)
    learned.costs = costs
    learned.save()
    os.utime(learned.path, (seconds, seconds))
    return learned.path


@pytest.mark.parametrize(
    ("costs", "waits", "words"),
    [
        (FLAT, Waits("here", 8, 16), "memory up to 8 tokens, then arithmetic"),
        (SAWTOOTH, Waits("here", 8, 16), "memory up to 8 tokens, then arithmetic"),
        (STEEP, Waits("here", 1, 4), "arithmetic: each guess costs"),
        ({1: 1.0, 4: 1.1}, Waits("here", 4, 4), "memory up to 4 tokens at least: guesses cost little"),
        ({1: 1.0}, Waits("here", 1, 1), "unknown: only passes over one token were measured"),
    ],
)
def test_what_passes_wait_for(costs: dict[int, float], waits: Waits, words: str) -> None:
    learn("a", {"here": costs}, 1)
    assert doctor.learned_waits() == [waits]
    assert f"{'passes wait for':<18} {words} (here)" in said()


def said() -> list[str]:
    report = doctor.examine()
    assert report.as_dict()["waits"] == tuple(
        {"conditions": w.conditions, "width": w.width, "widest": w.widest} for w in report.waits
    )
    return list(doctor.lines(report, []))


def test_nothing_is_known_before_a_model_has_run() -> None:
    assert f"{'passes wait for':<18} unknown until a model has run here" in said()
    assert f"{'sources':<18} ngram, self, a model" in said()


def test_the_latest_sessions_come_first_and_few_are_told() -> None:
    for i in range(MOST_WAITS + 2):
        learn(f"model{i}", {f"device {i}": FLAT}, seconds=i)
    assert [waits.conditions for waits in doctor.learned_waits()] == ["device 4", "device 3", "device 2"]


def test_damaged_files_are_nothing_learnt() -> None:
    learn("good", {"here": STEEP}, 1)
    learn("bad", {}, 2).write_bytes(b"\xff{")
    (Learned.of("good").path.parent / "a folder.json").mkdir()
    assert doctor.learned_waits() == [Waits("here", 1, 4)]
