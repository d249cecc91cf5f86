"""What earlier sessions measured and counted: pass costs, how often guesses were right. One file a target.

It can all be made again, so a missing, damaged or foreign file is simply nothing learnt. Costs belong to
everything a pass depends on (device, build, threads, cache type), counts to the draft and whether choices
are greedy.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localspec import config
from localspec.engine.chances import Counts, saved_counts
from localspec.engine.cost import LADDER

MOST_BYTES = 1 << 20
"""A larger file is not ours."""
DEAREST = 4.0
"""No pass over n tokens costs more than n times this many single ones: what says so is damaged."""


@dataclass(slots=True)
class Learned:
    """The tables of one target. `costs`: conditions -> width -> seconds; `counts`: source -> counts of bins;
    `exact`: conditions -> widths proven to compute the same as single passes."""

    path: Path
    costs: dict[str, dict[int, float]] = field(default_factory=dict)
    counts: dict[str, Counts] = field(default_factory=dict)
    exact: dict[str, list[int]] = field(default_factory=dict)

    @staticmethod
    def of(fingerprint: str) -> Learned:
        """Everything known of the target with this fingerprint."""
        learned = Learned(config.cache_folder() / "learned" / f"{fingerprint[:32]}.json")
        raw = _read(learned.path)
        costs, exact = raw.get("costs"), raw.get("exact")
        if isinstance(costs, dict):
            learned.costs = {str(k): found for k, v in costs.items() if (found := _costs(v))}
        if isinstance(exact, dict):
            learned.exact = {str(k): v for k, v in exact.items() if _widths(v)}
        learned.counts = {
            name: [[float(x) for x in pair] for pair in value]
            for name, value in saved_counts(raw.get("counts")).items()
        }
        return learned

    def save(self) -> None:
        """Replace the file whole; a folder that cannot be written only means that nothing is kept."""
        raw = {
            "costs": {k: {str(n): round(t, 9) for n, t in v.items()} for k, v in self.costs.items()},
            "counts": self.counts,
            "exact": self.exact,
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".part")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(raw, file)
            os.replace(name, self.path)
        except OSError:
            return


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _costs(raw: object) -> dict[int, float]:
    """Width -> seconds, {} unless there is a plain pass; entries that cannot be are left out."""
    if not isinstance(raw, dict):
        return {}
    found = {
        int(n): float(t)
        for n, t in raw.items()
        if isinstance(n, str) and n.isdecimal() and int(n) in LADDER and _positive(t)
    }
    plain = found.get(1)
    if plain is None:
        return {}
    return {n: t for n, t in found.items() if 0.5 * plain <= t <= DEAREST * n * plain}


def _positive(number: object) -> bool:
    return isinstance(number, int | float) and math.isfinite(number) and number > 0


def _widths(raw: object) -> bool:
    return isinstance(raw, list) and all(isinstance(n, int) and n in LADDER for n in raw)
