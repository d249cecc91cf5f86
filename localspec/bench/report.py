"""From measured answers to ratios with intervals, a table, and the best fixed setting of a family.

Pure arithmetic on `Run`s: knows no models, files or terminals. A ratio is one of pooled times: prompts with
long answers weigh more, as they do for whoever waits for them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALL = "all"
"""The row that pools all families."""

PLAIN = "none"
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Run:
    """One answer, measured. A `prompt` is one of its `family`; the same three names may come repeatedly.

    `seconds`: decoding. `seconds_price`: what the setting cost besides, such as loading and prefilling a
    draft model; it counts in every ratio. `passes` of the target gave `tokens`; of `drafted` guesses
    `accepted` stayed. `cold`: nothing was learned or kept from answers before; nothing here looks at it.
    """

    family: str
    prompt: str
    setting: str
    tokens: int
    seconds: float
    seconds_price: float
    passes: int
    drafted: int
    accepted: int
    cold: bool = True


@dataclass(frozen=True, slots=True)
class Ratio:
    """Speed over the baseline's with its 95 % interval; NaN where nothing can be said."""

    value: float
    low: float
    high: float


def ratio(
    runs: Iterable[Run],
    setting: str,
    baseline: str = PLAIN,
    family: str | None = None,
    *,
    draws: int = 1000,
    seed: int = 0,
) -> Ratio:
    """Tokens per second of `setting` over those of `baseline`, on the prompts measured under both.

    Runs of one prompt and setting are averaged first, so that a prompt weighs the same on both sides however
    often it was measured. The interval is the percentile bootstrap over prompts, both sides drawn together
    (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13), which
    is too narrow for few prompts: it holds the truth in 92 % of cases on 20 of them, in 75 % on 4 (measured).
    No common prompt: all NaN; one: no interval.
    """
    sides = _paired([run for run in runs if family in (None, run.family)], setting, baseline)
    n = len(sides)
    if n == 0:
        return Ratio(math.nan, math.nan, math.nan)
    value = float(_pooled(sides.sum(axis=0)))
    if n == 1 or draws < 1:
        return Ratio(value, math.nan, math.nan)
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws)
    low, high = np.percentile(_pooled(weights @ sides), (2.5, 97.5))
    return Ratio(value, float(low), float(high))


def _paired(runs: Sequence[Run], setting: str, baseline: str) -> NDArray[np.float64]:
    """Shape (prompts, 4): mean tokens and seconds under `setting`, then under `baseline`."""
    cells: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = defaultdict(dict)
    for run in runs:
        seconds = run.seconds + run.seconds_price
        if run.tokens > 0 and seconds > 0:  # else there was nothing to measure
            cells[run.family, run.prompt].setdefault(run.setting, []).append((run.tokens, seconds))
    both = [cell for cell in cells.values() if setting in cell and baseline in cell]
    rows = [[*np.mean(cell[setting], axis=0), *np.mean(cell[baseline], axis=0)] for cell in both]
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


def _pooled(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shape (..., 4) -> (...)."""
    tokens, seconds, tokens_base, seconds_base = np.moveaxis(sums, -1, 0)
    return np.asarray((tokens / seconds) / (tokens_base / seconds_base))


def table(runs: Iterable[Run], families: Sequence[str], settings: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each of `families` and each of `settings`, then the rows of "all", these families pooled.

    Keys: family, setting, prompts, ratio, low, high (over plain decoding), tokens_per_pass, acceptance_rate
    (accepted over drafted). None where nothing is known, so that it can be written as JSON.
    """
    known = [run for run in runs if run.family in families]
    return [
        _row(family, setting, [run for run in known if family in (ALL, run.family)])
        for family in (*families, ALL)
        for setting in settings
    ]


def _row(family: str, setting: str, runs: Sequence[Run]) -> dict[str, Any]:
    own = [run for run in runs if run.setting == setting]
    speed = ratio(runs, setting)
    return {
        "family": family,
        "setting": setting,
        "prompts": len({(run.family, run.prompt) for run in own}),
        "ratio": _known(speed.value),
        "low": _known(speed.low),
        "high": _known(speed.high),
        "tokens_per_pass": _share(sum(run.tokens for run in own), sum(run.passes for run in own)),
        "acceptance_rate": _share(sum(run.accepted for run in own), sum(run.drafted for run in own)),
    }


def _known(number: float) -> float | None:
    return None if math.isnan(number) else number


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def best_fixed(rows: Iterable[dict[str, Any]], family: str) -> tuple[str, float]:
    """The fastest setting of `family` that is the same for every pass, and its ratio: what "auto" must reach.

    ("none", 1.0) unless another is faster.
    """
    best = (PLAIN, 1.0)
    for row in rows:
        if row["family"] == family and _is_fixed(row["setting"]) and row["ratio"] is not None:
            best = max(best, (row["setting"], row["ratio"]), key=lambda pair: pair[1])
    return best


def _is_fixed(setting: str) -> bool:
    return setting != PLAIN and not setting.startswith(AUTO)


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Families as rows, settings as columns, cells like "1.62 (1.55-1.70)"; the best fixed one bold."""
    families = list(dict.fromkeys(row["family"] for row in rows))
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    cells = {(row["family"], row["setting"]): _cell(row) for row in rows}
    lines = [_line(["family", *map(_escape, settings)]), _line(["---", *["---:"] * len(settings)])]
    for family in families:
        best, _ = best_fixed(rows, family)
        texts = (cells.get((family, setting), "-") for setting in settings)
        bold = (
            f"**{text}**" if setting == best and text != "-" else text
            for setting, text in zip(settings, texts, strict=True)
        )
        lines.append(_line([_escape(family), *bold]))
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, Any]) -> str:
    if row["ratio"] is None:
        return "-"
    value = f"{row['ratio']:.2f}"
    if row["low"] is None or row["setting"] == PLAIN:  # plain over plain has no spread to show
        return value
    return f"{value} ({row['low']:.2f}-{row['high']:.2f})"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(name: str) -> str:
    for character in "\\|*`<[":
        name = name.replace(character, "\\" + character)
    return name
