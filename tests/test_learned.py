"""What is kept between sessions: it comes back as it was, and whatever else is in the file does no harm."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from localspec import config
from localspec.engine.chances import BINS
from localspec.engine.cost import PassCosts
from localspec.engine.proven import Proof
from localspec.learned import MOST_BYTES, Learned

NAME = "0123456789abcdef" * 4
COUNTS = [[float(i), 2.0 * i] for i in range(BINS)]


def file() -> Path:
    return config.cache_folder() / "learned" / f"{NAME[:32]}.json"


def write(text: str | bytes) -> Learned:
    file().parent.mkdir(parents=True, exist_ok=True)
    file().write_bytes(text if isinstance(text, bytes) else text.encode())
    return Learned.of(NAME)


def is_empty(learned: Learned) -> bool:
    return (learned.costs, learned.counts, learned.exact) == ({}, {}, {})


def filled() -> Learned:
    learned = Learned.of(NAME)
    learned.costs = {"cpu": {1: 0.01, 2: 0.0125}, "gpu": {1: 0.001}}
    learned.counts = {"ngram greedy": COUNTS}
    learned.keep_proof("cpu", Proof((1, 2), (1, 2, 3)))
    return learned


def test_round_trip() -> None:
    filled().save()
    again = Learned.of(NAME)
    assert (again.costs, again.counts, again.exact) == (
        filled().costs,
        {"ngram greedy": COUNTS},
        filled().exact,
    )
    assert again.proof("cpu") == Proof((1, 2), (1, 2, 3))
    assert again.proof("gpu") is None
    assert os.listdir(file().parent) == [file().name], "nothing but the file is left"
    assert is_empty(Learned.of("another" * 10))


def test_half_a_proof_is_none() -> None:
    learned = Learned.of(NAME)
    learned.exact = {"cpu": [1, 2]}
    assert learned.proof("cpu") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "3",
        '"costs"',
        b"\xff\xfe\x00",
        b"\0" * 100,
        "[" * 200_000,
        '{"costs":' * 100_000,
        "9" * 10_000,
        '{"costs": [], "counts": 3, "exact": "x"}',
        '{"costs": {"cpu": 1}, "counts": {"a": [[1]]}, "exact": {"cpu": 1}}',
        json.dumps({"costs": {"cpu": {"1": 0.01}}}) + " " * MOST_BYTES,  # a larger file is not ours
    ],
)
def test_what_is_no_file_of_ours_teaches_nothing(text: str | bytes) -> None:
    assert is_empty(write(text))


def test_a_folder_in_its_place_teaches_nothing_and_stays() -> None:
    file().mkdir(parents=True)
    assert is_empty(Learned.of(NAME))
    filled().save()
    assert os.listdir(file().parent) == [file().name], "what could not be kept is not left behind"


@pytest.mark.skipif(os.name == "nt", reason="no named pipes")
def test_a_pipe_in_its_place_is_not_waited_for() -> None:
    file().parent.mkdir(parents=True)
    os.mkfifo(file())
    assert is_empty(Learned.of(NAME))


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ({"1": 0.01, "2": 0.02}, {1: 0.01, 2: 0.02}),
        ({"2": 0.02}, {}),  # no plain pass
        ({"1": 0.01, "2": 0.004, "4": 0.17, "8": 0.32}, {1: 0.01, 8: 0.32}),  # too cheap, too dear, just not
        ({"1": 0.01, "9": 0.02, "-2": 0.02, "2.0": 0.02, "x": 0.02, "٢": 0.02}, {1: 0.01}),
        ({"1": 0.01, "1" * 5000: 0.02}, {1: 0.01}),
        ({"1": 0.01, "2": "0.02", "3": None, "4": [0.02], "5": True}, {1: 0.01}),
        ({"1": 0}, {}),
        ({"1": -0.01}, {}),
        ({"1": float("nan")}, {}),
        ({"1": float("inf")}, {}),
        ({"1": 10**400}, {}),
        ({"1": True}, {}),
        ({"1": 1e300}, {}),
        ({"1": 1e-320, "2": 1e-320}, {}),
        ([0.01], {}),
    ],
)
def test_costs_that_cannot_be_are_dropped(raw: Any, kept: dict[int, float]) -> None:
    learned = write(json.dumps({"costs": {"cpu": raw, "gpu": {"1": 0.5}}}))
    assert learned.costs == ({"cpu": kept} if kept else {}) | {"gpu": {1: 0.5}}
    for costs in learned.costs.values():
        PassCosts(costs)


@pytest.mark.parametrize(
    "widths", [[], [2, 4], [1, 9], [1, "2"], [1, 2.0], [1, True], [1, -2], [1, None], {"1": 1}, 1, [[1]]]
)
def test_widths_that_cannot_be_are_dropped(widths: Any) -> None:
    assert write(json.dumps({"exact": {"cpu": widths, "gpu": [1, 2]}})).exact == {"gpu": [1, 2]}


@pytest.mark.parametrize(
    "counts",
    [
        COUNTS[:-1],
        [*COUNTS[:-1], [1.0]],
        [*COUNTS[:-1], [-1.0, 2.0]],
        [*COUNTS[:-1], [1.0, float("nan")]],
        [*COUNTS[:-1], [1.0, 1e12]],
        [*COUNTS[:-1], [1.0, "2"]],
        [*COUNTS[:-1], [1.0, 10**400]],
        {"0": [1, 2]},
    ],
)
def test_counts_that_cannot_be_are_dropped(counts: Any) -> None:
    assert write(json.dumps({"counts": {"bad": counts, "good": COUNTS}})).counts == {"good": COUNTS}


def test_a_folder_that_cannot_be_written_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the folder's place is taken by a file."""
    taken = tmp_path / "taken"
    taken.write_text("")
    monkeypatch.setenv("LOCALSPEC_HOME", str(taken))
    learned = filled()
    learned.save()
    assert taken.read_text() == ""
    assert is_empty(Learned.of(NAME))


def test_writers_at_the_same_time_leave_a_whole_file() -> None:
    """Readers meanwhile see nothing or one writer's tables, never a part or a mixture."""

    def save(seconds: float) -> None:
        learned = Learned.of(NAME)
        learned.costs = {f"{i}": {1: seconds} for i in range(300)}
        for _ in range(10):
            learned.save()

    writers = [threading.Thread(target=save, args=(0.25 * (i + 1),)) for i in range(4)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        costs = Learned.of(NAME).costs
        assert len(costs) in (0, 300)
        assert len({widths[1] for widths in costs.values()}) <= 1
    for writer in writers:
        writer.join()
    assert len(Learned.of(NAME).costs) == 300
    assert os.listdir(file().parent) == [file().name]
