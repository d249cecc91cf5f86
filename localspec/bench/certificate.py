"""What a verification found, as JSON and as a few lines of text: judges what `verify` measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

from localspec.bench.laws import ChiSquare
from localspec.engine.exactness import RowChange, proven
from localspec.engine.stats import Tally
from localspec.engine.types import Sampling

IDENTICAL, NEAR_TIE, DEFECT = "identical", "near tie", "DEFECT"
LEAST_P = 1e-4
"""A law whose test gives less than this, divided by the number of tests, is called wrong."""


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("localspec", "llama-cpp-python")}


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two texts part, and how near a tie it was in logits (`exactness.gap`).

    Infinite where one text stops and the other goes on, which no tie explains.
    """

    place: int
    gap: float

    def as_dict(self) -> dict[str, Any]:
        return {"place": self.place, "gap": self.gap if math.isfinite(self.gap) else None}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt under one sampling: `tokens` of plain text, and where the others part from it, if they do.

    `prompt` numbers the prompt, `control` is plain decoding at another width. A gap within `tolerance` is a
    near tie; with tolerance 0 nothing is.
    """

    prompt: int
    sampling: Sampling
    tokens: int
    speculative: Difference | None
    control: Difference | None
    tolerance: float

    @property
    def verdict(self) -> str:
        if self.speculative is None:
            return IDENTICAL
        return NEAR_TIE if self.speculative.gap < self.tolerance else DEFECT

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "temperature": self.sampling.temperature,
            "seed": self.sampling.seed,
            "tokens": self.tokens,
            "verdict": self.verdict,
            "difference": self.speculative.as_dict() if self.speculative else None,
            "control_difference": self.control.as_dict() if self.control else None,
        }


@dataclass(frozen=True, slots=True)
class About:
    """What was verified, as the caller knows it: strings and numbers that go into JSON as they are.

    `machine`: system, cpu, devices. `settings`: temperature, seed, threads, kv_type, flash_attn, draft.
    """

    model: str
    fingerprint: str
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    versions: Mapping[str, str] = field(default_factory=versions)


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was found. `changes`: the probe, by width; `work`: passes and guesses of the speculative runs."""

    about: About
    changes: Mapping[int, RowChange]
    comparisons: tuple[Comparison, ...]
    laws: tuple[ChiSquare, ...]
    work: Tally

    @property
    def ties(self) -> tuple[float, ...]:
        """The gaps of all differences."""
        return tuple(c.speculative.gap for c in self.comparisons if c.speculative)

    @property
    def defects(self) -> tuple[str, ...]:
        """Why the verdict is DEFECT; none if it is not."""
        found = [
            f"prompt {c.prompt}, temperature {c.sampling.temperature:g}, seed {c.sampling.seed}: "
            f"token {c.speculative.place} differs at a gap of {c.speculative.gap:.3g}, "
            f"and {c.tolerance:.3g} is the limit"
            for c in self.comparisons
            if c.speculative and c.verdict == DEFECT
        ]
        control = sum(c.control is not None for c in self.comparisons)
        if len(self.ties) > max(control, 1):
            found.append(f"{len(self.ties)} texts differ, and {control} from plain decoding at another width")
        found += [
            f"guesses change the law of the next token: chi-square {law.statistic:.1f} "
            f"with {law.degrees} degrees of freedom, p = {law.p:.1g}"
            for law in self.laws
            if law.p < LEAST_P / len(self.laws)
        ]
        return tuple(found)

    @property
    def verdict(self) -> str:
        if self.defects:
            return DEFECT
        if self.ties:
            return f"identical but for near ties ({len(self.ties)}, largest gap {max(self.ties):.2g})"
        return IDENTICAL if self.comparisons else "same law"

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.about),
            "verdict": self.verdict,
            "defects": list(self.defects),
            "exact_widths": list(proven(self.changes)),
            "probe": {str(n): change.as_dict() for n, change in self.changes.items()},
            "comparisons": [comparison.as_dict() for comparison in self.comparisons],
            "laws": [law.as_dict() for law in self.laws],
            "speculation": self.work.as_dict(),
        }

    def lines(self) -> list[str]:
        """The same in a few lines of text, the verdict last."""
        about, work = self.about, self.work
        texts, tokens = len(self.comparisons), sum(c.tokens for c in self.comparisons)
        same = sum(c.verdict == IDENTICAL for c in self.comparisons)
        control = sum(c.control is None for c in self.comparisons)
        lines = [
            f"model     {about.model} ({about.fingerprint})",
            "software  " + ", ".join(f"{name} {number}" for name, number in about.versions.items()),
            "machine   " + _pairs(about.machine),
            "settings  " + _pairs(about.settings),
            "kernels   " + _probe_line(self.changes),
        ]
        if texts:
            lines.append(
                f"texts     {same} of {texts} identical ({tokens} tokens); plain at another width {control}"
            )
        if self.laws:
            least = min(law.p for law in self.laws)
            lines.append(
                f"laws      {len(self.laws)} tests of {self.laws[0].draws} draws, smallest p {least:.2g}"
            )
        guessed = f"{work.drafted} guesses, {work.accepted} kept, {work.passes} passes"
        lines.append("guessing  " + (guessed if work.drafted else "no guess was made, so this shows nothing"))
        lines += [f"defect    {defect}" for defect in self.defects]
        return [*lines, f"verdict   {self.verdict}"]


def _pairs(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _probe_line(changes: Mapping[int, RowChange]) -> str:
    exact = [n for n in proven(changes) if n > 1]
    inexact = {n: change for n, change in changes.items() if change.changed}
    parts = [f"exact at widths {', '.join(map(str, exact))}"] if exact else []
    if inexact:
        largest = max(change.largest for change in inexact.values())
        parts.append(f"not at {', '.join(map(str, inexact))} (a logit changes by up to {largest:.2g})")
    return "; ".join(parts) or "nothing to compare: no pass over several tokens was made, or none has room"
