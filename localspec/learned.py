"""What earlier sessions measured and counted: pass costs, how often guesses were right. One file a target.

It can all be made again, so a missing, damaged or foreign file is simply nothing learnt. Costs belong to
everything a pass depends on (device, build, threads, cache type), counts to the draft and whether choices
are greedy.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localspec import config
from localspec.engine.chances import Counts, saved_counts
from localspec.engine.cost import LADDER
from localspec.engine.proven import Proof

MOST_BYTES = 1 << 20
"""A larger file is not ours."""
DEAREST = 4.0
"""No pass over n tokens costs more than n times this many single ones: what says so is damaged."""
LEAST_SECONDS, MOST_SECONDS = 1e-6, 1e4
"""No pass takes less time, or more."""
_WIDTHS = {str(n): n for n in LADDER}
SHALLOW = " (empty cache)"
"""Marks the conditions under which widths were proven with nothing in the cache."""


@dataclass(slots=True)
class Learned:
    """The tables of one target. `costs`: conditions -> width -> seconds; `counts`: source -> counts of bins;
    `exact`: conditions -> widths proven to compute the same as single passes, see `proof`."""

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

    def proof(self, conditions: str) -> Proof | None:
        """What was proven under `conditions`, None if nothing was tried."""
        deep, shallow = self.exact.get(conditions), self.exact.get(conditions + SHALLOW)
        return Proof(tuple(deep), tuple(shallow)) if deep and shallow else None

    def keep_proof(self, conditions: str, proof: Proof) -> None:
        self.exact[conditions], self.exact[conditions + SHALLOW] = list(proof.deep), list(proof.shallow)

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
        except OSError:
            return
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(raw, file)
            os.replace(name, self.path)
        except OSError:
            with suppress(OSError):
                os.unlink(name)


def _read(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file():  # nor a pipe, which would be waited for
            return {}
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        raw = json.loads(text) if len(text) <= MOST_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _costs(raw: object) -> dict[int, float]:
    """Width -> seconds, {} unless there is a plain pass; entries that cannot be are left out."""
    if not isinstance(raw, dict):
        return {}
    found = {width: float(t) for n, t in raw.items() if (width := _WIDTHS.get(n)) and _positive(t)}
    plain = found.get(1)
    if plain is None:
        return {}
    return {n: t for n, t in found.items() if 0.5 * plain <= t <= DEAREST * n * plain}


def _positive(number: Any) -> bool:
    return type(number) in (int, float) and LEAST_SECONDS <= number <= MOST_SECONDS


def _widths(raw: object) -> bool:
    return isinstance(raw, list) and raw[:1] == [1] and all(type(n) is int and n in LADDER for n in raw)
