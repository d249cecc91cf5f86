"""A benchmark's scores as a table, and its measurements as pictures on the terminal and in a PNG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.bench.decode import Measured, Prices
from localspec.ui import plots

LEGEND = """\
gain: auto's, as a share of the oracle's. Of perfect: of the speed with guesses that are always right and
cost nothing. Lost, in percent of auto's time: silent, nothing was guessed where that would have paid; source,
another one should have; length, too few guesses or too many. Of these, cold_start: what counts from other
prompts would have saved; ledger: what no bound on losses would have.
"""
_CAUSES = ("silent", "source", "length", "cold_start", "ledger")


def score_table(scores: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: how near `auto` came to the oracle, and what it lost on the way in percent of its time."""
    head = ["family", "auto", "oracle", "auto/oracle", "gain", "of perfect", *_CAUSES]
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    for score in scores:
        gain = score["gain_share"]
        cells = [f"{score[key]:.2f}" for key in ("auto", "oracle", "auto_over_oracle")]
        cells.append("-" if gain is None else f"{100 * gain:.0f} %")
        cells.append(f"{100 * score['perfect_share']:.0f} %")
        cells += [f"{100 * score['lost'][cause]:.1f} %" for cause in _CAUSES]
        lines.append(_line([score["family"].replace("|", "\\|"), *cells]))
    return "\n".join(lines) + "\n"


def text(prices: Prices, measured: Sequence[Measured], columns: int) -> str:
    """All panels for a terminal of `columns` cells. `measured`: the scheduler's runs."""
    parts = [plots.pass_cost({"this machine": prices.curve}, columns)]
    if prices.guess:
        parts.append(plots.speed_up(prices.curve, prices.guess, columns))
    if measured:
        parts.append(plots.share(_seconds(measured), columns))
        parts.append(plots.histogram(_lengths(measured), columns))
        parts.append(plots.acceptance(_rates(measured), columns))
    return "\n".join(parts)


def png(path: str, prices: Prices, measured: Sequence[Measured]) -> None:
    """The same panels as one picture. Raises UsageError when it cannot be written."""
    panels: list[plots.Panel] = [plots.PassCost({"this machine": prices.curve})]
    if prices.guess:
        panels.append(plots.SpeedUp(prices.curve, prices.guess))
    if measured:
        panels.append(plots.share_bars(_seconds(measured)))
        panels.append(plots.histogram_bars(_lengths(measured)))
        panels.append(plots.acceptance_bars(_rates(measured)))
    plots.png(path, *panels)


def _seconds(measured: Sequence[Measured]) -> dict[str, float]:
    steps = [step for m in measured for step in m.steps]
    return {
        "draft": sum(step.seconds_draft for step in steps),
        "verify": sum(step.seconds_verify for step in steps),
        "host": sum(step.seconds_host for step in steps),
        "open a draft": sum(m.seconds_price for m in measured),
    }


def _lengths(measured: Sequence[Measured]) -> Counter[int]:
    return Counter(len(step.tokens) for m in measured for step in m.steps)


def _rates(measured: Sequence[Measured]) -> dict[int, float]:
    """By position in the draft: of the guesses all before which were right, how many were right."""
    checked: Counter[int] = Counter()
    right: Counter[int] = Counter()
    for m in measured:
        for step in m.steps:
            checked.update(range(1, min(step.drafted, step.accepted + 1) + 1))
            right.update(range(1, step.accepted + 1))
    return {position: right[position] / checked[position] for position in checked}


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
