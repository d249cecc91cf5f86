"""Counters over the steps of a turn or a session. Counted once, when a step is committed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from localspec.engine.types import Step


@dataclass(slots=True)
class Tally:
    """Sums over passes. `tokens` counts everything emitted, `accepted` only the guesses among it."""

    passes: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, step: Step) -> None:
        self.passes += 1
        self.tokens += len(step.tokens)
        self.drafted += step.drafted
        self.accepted += step.accepted

    @property
    def mean_accepted_length(self) -> float:
        """Tokens emitted per target pass, the bonus token included (vLLM's convention)."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens; 0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "passes": self.passes,
            "tokens": self.tokens,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "mean_accepted_length": round(self.mean_accepted_length, 4),
            "acceptance_rate": round(self.acceptance_rate, 4),
        }


@dataclass(slots=True)
class Stats(Tally):
    """The tally of all passes, the same per source, the accepted-length histogram and where time went."""

    seconds_draft: float = 0.0
    seconds_verify: float = 0.0
    seconds_host: float = 0.0
    histogram: Counter[int] = field(default_factory=Counter)
    sources: dict[str, Tally] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        Tally.add(self, step)
        self.sources.setdefault(step.source, Tally()).add(step)
        self.histogram[len(step.tokens)] += 1
        self.seconds_draft += step.seconds_draft
        self.seconds_verify += step.seconds_verify
        self.seconds_host += step.seconds_host

    @property
    def seconds_decode(self) -> float:
        return self.seconds_draft + self.seconds_verify + self.seconds_host

    @property
    def tokens_per_second(self) -> float:
        """Decode only: prefill and loading are not in it."""
        return self.tokens / self.seconds_decode if self.seconds_decode > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Counts, `accepted_length_histogram` (tokens per pass -> passes) and `sources` (name -> counts)."""
        return {
            **Tally.as_dict(self),
            "accepted_length_histogram": {str(n): self.histogram[n] for n in sorted(self.histogram)},
            "sources": {name: tally.as_dict() for name, tally in sorted(self.sources.items())},
        }
