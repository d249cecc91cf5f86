"""The runs of a benchmark on every clock, and the tables that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.bench import compare
from localspec.bench.compare import Optimum
from localspec.bench.decode import Bench, Measured, Prices, in_turn, on_the_wall, others, replays, tables_of
from localspec.bench.record import Recording
from localspec.bench.report import AUTO, best_fixed, table
from localspec.bench.settings import NOTHING, UNLIMITED, WARM, Parts

JUDGED = (AUTO, WARM, UNLIMITED)
"""The schedulers: what is compared with the oracle, and no fixed setting."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Tables on one clock at one temperature, as the module's JSON has them."""

    clock: str
    curve: str | None
    temperature: float
    measured: Sequence[Measured]
    rows: Sequence[dict[str, Any]]
    scores: Sequence[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        families = dict.fromkeys(row["family"] for row in self.rows)
        return {
            "clock": self.clock,
            "curve": self.curve,
            "temperature": self.temperature,
            "runs": len(self.measured),
            "differing": sum(not measured.same for measured in self.measured),
            "rows": list(self.rows),
            "best_fixed": {family: list(best_fixed(_fixed(self.rows), family)) for family in families},
            "scores": list(self.scores),
        }


def outcomes_of(
    bench: Bench,
    recordings: Sequence[Recording],
    names: Sequence[str],
    prices: Prices,
    curves: Mapping[str, Prices],
    repeats: int,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[Outcome]:
    """The tables of the wall clock and of every curve, one a temperature."""
    prior = bench.draft.prior if bench.draft else 0.7
    parts = Parts(bench.known, bench.clock, bench.free, prior=prior, wakes=bench.wakes)
    on_progress("replaying on a virtual clock")
    reaches = [compare.reach(recording, bench.free) for recording in recordings]
    judged: dict[str | None, Mapping[str, Sequence[Measured]]] = {
        None: replays(recordings, JUDGED, prices, parts, bench.is_end)
    }
    real = wall_runs(bench, recordings, names, prices, parts, repeats, on_progress)
    found = []
    clocks: list[tuple[str | None, Prices]] = [(None, prices), *curves.items()]
    for name, cost in clocks:
        wall = name is None
        if not wall:
            on_progress(f"replaying on {name}")
            judged[name] = replays(recordings, [*names, *JUDGED], cost, parts, bench.is_end)
        for temperature in dict.fromkeys(recording.temperature for recording in recordings):
            here = [i for i, r in enumerate(recordings) if r.temperature == temperature]
            some = {setting: [runs[i] for i in here] for setting, runs in judged[name].items()}
            chosen = [some[setting] for setting in names if setting in some]
            runs = [m for m in real if m.recording.temperature == temperature]
            measured = runs if wall else [m for group in chosen for m in group]
            optima = [Optimum(reaches[i], cost, len(recordings[i].emitted)) for i in here]
            found.append(_outcome(name, temperature, measured, names, optima, some))
    return found


def wall_runs(
    bench: Bench,
    recordings: Sequence[Recording],
    names: Sequence[str],
    prices: Prices,
    parts: Parts,
    repeats: int,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[Measured]:
    """Every recording under every setting with the real models. `auto-warm` has learnt in replays."""
    tables = tables_of(recordings, prices, parts, bench.is_end) if WARM in names else []
    found = []
    for i, recording in enumerate(recordings):
        known = others(tables, recordings, i) if tables else NOTHING
        for setting in in_turn(names, repeats):
            on_progress(f"answer {i + 1} of {len(recordings)} ({recording.family}), {setting}")
            found.append(on_the_wall(bench, recording, setting, known))
    return found


def _outcome(
    curve: str | None,
    temperature: float,
    measured: Sequence[Measured],
    names: Sequence[str],
    optima: Sequence[Optimum],
    judged: Mapping[str, Sequence[Measured]],
) -> Outcome:
    families = list(dict.fromkeys(m.recording.family for m in measured))
    rows = table([m.run for m in measured], families, names)
    speeds = {row["family"]: row["ratio"] for row in rows if row["setting"] == AUTO} if curve is None else {}
    scores = compare.scores(optima, judged, families, speeds)
    return Outcome("wall" if curve is None else "modelled", curve, temperature, measured, rows, scores)


def _fixed(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["setting"] not in JUDGED]
