"""Pictures of a benchmark: as text for terminals, and the same panels as one PNG.

Pure functions from numbers to text of at most `columns` cells a line, without colour; numbers that are not
finite are left out. Knows nothing of runs; matplotlib is the extra `bench`, imported for a PNG only.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from rich.cells import cell_len, set_cell_size

from localspec.engine.generate import WIDEST_PASS
from localspec.errors import UsageError
from localspec.models.pairs import factor_at
from localspec.ui.terminal import sanitise

ACCEPTANCES = tuple(percent / 100 for percent in range(50, 100, 5))

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SHADES = " ░▒▓█"
_ROWS = 13
_ABSURD = 1e6
_NOTHING = "nothing measured"


@dataclass(frozen=True, slots=True)
class PassCost:
    """`curves`: name -> positions of a pass -> its cost in any unit, 1 position among them."""

    curves: Mapping[str, Mapping[int, float]]

    def relative(self) -> dict[str, dict[int, float]]:
        """Costs in passes over one position, widths ascending; curves without that one are left out."""
        known = {name: _relative(curve) for name, curve in self.curves.items()}
        return {name: curve for name, curve in known.items() if curve}


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """`curve`: positions of a pass -> its cost; `cost_guess`: that of one guess, in the same unit."""

    curve: Mapping[int, float]
    cost_guess: float

    def factors(self) -> dict[float, dict[int, float]]:
        """Acceptance -> draft length -> speed over plain decoding, for each length that a listed pass holds.

        (1 - a^(k+1)) / (1 - a) tokens cost k guesses and the cheapest pass that holds k + 1 positions
        (`models.pairs.factor_at`).
        """
        curve = _relative(self.curve)
        if len(curve) < 2 or not math.isfinite(self.cost_guess):
            return {}
        guess = max(0.0, self.cost_guess) / self.curve[1]
        lengths = range(1, min(max(curve), WIDEST_PASS))
        return {a: {k: factor_at(k, a, guess, curve) for k in lengths} for a in ACCEPTANCES}


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar and a text behind it for each of `values`. A whole bar is `full`, by default the largest."""

    title: str
    values: Mapping[str, tuple[float, str]]
    full: float | None = None

    def known(self) -> dict[str, tuple[float, str]]:
        return {name: (v, text) for name, (v, text) in self.values.items() if math.isfinite(v) and v >= 0}


Panel = PassCost | SpeedUp | Bars


def share_bars(seconds: Mapping[str, float]) -> Bars:
    """Where time went: name of a part -> seconds."""
    good = {name: s for name, s in seconds.items() if math.isfinite(s) and s >= 0}
    total = sum(good.values()) or 1.0
    values = {name: (s / total, f"{100 * s / total:.1f} %") for name, s in good.items()}
    return Bars("Share of time", values, full=1.0)


def histogram_bars(counts: Mapping[int, int]) -> Bars:
    """Tokens emitted by a pass -> number of such passes; those between that never came are shown empty."""
    total = sum(counts.values()) or 1
    lengths = sorted(counts)
    if counts and max(counts) - min(counts) < WIDEST_PASS:
        lengths = list(range(min(counts), max(counts) + 1))
    values = {str(n): (float(c := counts.get(n, 0)), f"{c} ({100 * c / total:.1f} %)") for n in lengths}
    return Bars("Passes by tokens emitted", values)


def acceptance_bars(rates: Mapping[int, float]) -> Bars:
    """Position in the draft, from 1 -> share of the guesses checked there that were accepted."""
    values = {
        str(position): (rates[position], f"{100 * rates[position]:.1f} %") for position in sorted(rates)
    }
    return Bars("Acceptance by position", values, full=1.0)


def pass_cost(curves: Mapping[str, Mapping[int, float]], columns: int) -> str:
    """What a pass over n positions costs, in passes over one, beside n single passes; both axes logarithmic.

    Measured widths are letters, `*` where several curves meet; what lies below the slashes is what a pass
    over guesses saves.
    """
    relative = PassCost(curves).relative()
    title = "Cost of one pass over n positions, in single passes"
    if not relative:
        return _lines([title, _NOTHING], columns)
    widest = max(2, *(max(curve) for curve in relative.values()))
    letters = {name: ascii_uppercase[i % 26] for i, name in enumerate(relative)}
    legend = [f"{letters[name]}  {_name(name)}: {_widest(curve)}" for name, curve in relative.items()]
    grid = _grid(relative, letters, widest, max(8, min(columns - 6, 90)))
    return _lines([title, *grid, "/  n single passes", *legend], columns)


def speed_up(curve: Mapping[int, float], cost_guess: float, columns: int) -> str:
    """Speed over plain decoding by acceptance and draft length, the best length of a row in brackets.

    `curve`: positions of a pass -> its cost; `cost_guess` in the same unit. No shade: slower than plain.
    Where there is no room for all lengths, those that are best somewhere stay, then the shortest.
    """
    factors = SpeedUp(curve, cost_guess).factors()
    title = "Speed-up by acceptance (rows) and draft length"
    if not factors:
        return _lines([title, _NOTHING], columns)
    best = {a: max(row, key=row.__getitem__) for a, row in factors.items()}
    lengths = _lengths(list(next(iter(factors.values()))), set(best.values()), max(1, (columns - 4) // 8))
    lines = [title, "    " + "".join(f"{k:>6}  " for k in lengths)]
    for a, row in factors.items():
        cells = (_heat(row[k], best[a] == k and row[k] > 1) for k in lengths)
        lines.append(f"{a:.2f}" + "".join(cells))
    return _lines([*lines, "[best]  from 1.0 ░  from 1.5 ▒  from 2 ▓  from 3 █"], columns)


def share(seconds: Mapping[str, float], columns: int) -> str:
    """`share_bars` as text."""
    return _bars(share_bars(seconds), columns)


def histogram(counts: Mapping[int, int], columns: int) -> str:
    """`histogram_bars` as text."""
    return _bars(histogram_bars(counts), columns)


def acceptance(rates: Mapping[int, float], columns: int) -> str:
    """`acceptance_bars` as text."""
    return _bars(acceptance_bars(rates), columns)


def _bars(bars: Bars, columns: int) -> str:
    known = bars.known()
    if not known:
        return _lines([bars.title, _NOTHING], columns)
    full = bars.full or max(value for value, _ in known.values()) or 1.0
    left = min(max(cell_len(_name(name)) for name in known), max(1, columns // 3))
    right = max(len(text) for _, text in known.values())
    room = max(1, min(columns - left - right - 2, 60))
    lines = [bars.title]
    for name, (value, text) in known.items():
        label = _name(name)
        label = " " * (left - cell_len(label)) + label if label.isdigit() else set_cell_size(label, left)
        lines.append(f"{label} {set_cell_size(_bar(value / full, room), room)} {text:>{right}}")
    return _lines(lines, columns)


def _bar(part: float, room: int) -> str:
    """A bar of `room` cells at most, in eighths; something is seen of everything above 0."""
    eighths = min(8 * room, max(round(8 * room * part), 1 if part > 0 else 0))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _grid(
    curves: Mapping[str, Mapping[int, float]], letters: Mapping[str, str], widest: int, room: int
) -> list[str]:
    """The chart's lines with both axes, `room` cells wide without the left one."""
    top = max(2.0, *(cost for curve in curves.values() for cost in curve.values()))
    top = 2.0 ** math.ceil(math.log2(top))
    cells = [[" "] * room for _ in range(_ROWS)]

    def x(n: float) -> int:
        return round((room - 1) * math.log2(n) / math.log2(widest))

    def y(cost: float) -> int:
        return round((_ROWS - 1) * (1 - math.log2(max(1.0, cost)) / math.log2(top)))

    for column in range(room):
        if (n := widest ** (column / (room - 1))) <= top:
            cells[y(n)][column] = "/"
    for curve in curves.values():
        for (a, cost_a), (b, cost_b) in pairwise(curve.items()):
            for column in range(x(a), x(b)):
                part = (column - x(a)) / (x(b) - x(a))
                cells[y(cost_a ** (1 - part) * cost_b**part)][column] = "·"
    for name, curve in curves.items():
        for n, cost in curve.items():
            old = cells[y(cost)][x(n)]
            cells[y(cost)][x(n)] = letters[name] if old in f" ·/{letters[name]}" else "*"
    ticks = {y(2.0**i): f"{2**i}" for i in range(int(math.log2(top)) + 1)}
    lines = [
        f"{ticks.get(i, ''):>4} {'┤' if i in ticks else '│'}{''.join(row)}" for i, row in enumerate(cells)
    ]
    return [*lines, *_axis({x(n): str(n) for n in _powers(widest)}, room)]


def _axis(ticks: Mapping[int, str], room: int) -> list[str]:
    """The line below a chart and the numbers below it, each centred where there is room for it."""
    rule, numbers = ["─"] * room, [" "] * room
    for column, text in ticks.items():
        start = max(0, min(room - len(text), column - len(text) // 2))
        if all(c == " " for c in numbers[max(0, start - 1) : start + len(text) + 1]):
            rule[column] = "┴" if column else "─"
            numbers[start : start + len(text)] = text
    return ["     └" + "".join(rule), "   n  " + "".join(numbers).rstrip()]


def _powers(widest: int) -> list[int]:
    """Powers of 2 up to `widest`, and that itself, which comes first: it keeps its place."""
    return [1, widest, *(2**i for i in range(1, widest.bit_length()) if 2**i < widest)]


def _widest(curve: Mapping[int, float]) -> str:
    n, cost = list(curve.items())[-1]
    return f"{n} {'position costs' if n == 1 else 'positions cost'} {cost:.2f} single passes"


def _lengths(lengths: list[int], wanted: set[int], room: int) -> list[int]:
    """At most `room` of `lengths`: the wanted ones, then the shortest."""
    order = sorted(lengths, key=lambda k: (k not in wanted, k))
    return sorted(order[:room])


def _heat(factor: float, best: bool) -> str:
    """Eight cells."""
    shade = _SHADES[sum(factor >= limit for limit in (1.0, 1.5, 2.0, 3.0))]
    number = f"{factor:.2f}" if factor < 9.995 else f"{factor:.1f}"
    return f" {shade}[{number}]" if best else f" {shade} {number} "


def _relative(curve: Mapping[int, float]) -> dict[int, float]:
    """Costs in passes over one position, widths ascending; nothing without a cost of that."""
    one = curve.get(1, math.nan)
    if not (math.isfinite(one) and one > 0):
        return {}
    relative = {n: curve[n] / one for n in sorted(curve) if n >= 1}
    return {n: cost for n, cost in relative.items() if 0 < cost < _ABSURD}


def _name(text: str) -> str:
    return sanitise(" ".join(text.split())) or "-"


def _lines(lines: list[str], columns: int) -> str:
    """Lines of at most `columns` cells, each with its newline."""
    room = max(1, columns)
    cut = (line if cell_len(line) <= room else set_cell_size(line, room - 1) + "…" for line in lines)
    return "".join(line.rstrip() + "\n" for line in cut)


def png(path: str | Path, *panels: Panel) -> None:
    """Write `panels`, two beside each other, as one picture. Raises UsageError when it cannot."""
    figures, backend = _matplotlib("figure"), _matplotlib("backends.backend_agg")
    across, down = min(2, max(1, len(panels))), max(1, (len(panels) + 1) // 2)
    figure = figures.Figure(figsize=(6.4 * across, 4.4 * down), layout="constrained")
    backend.FigureCanvasAgg(figure)
    for place, panel in enumerate(panels, 1):
        axes = figure.add_subplot(down, across, place)
        if isinstance(panel, PassCost):
            _draw_cost(axes, panel)
        elif isinstance(panel, SpeedUp):
            _draw_speed_up(axes, panel)
        else:
            _draw_bars(axes, panel)
    picture = BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name in letters that the font lacks is drawn as boxes
        figure.savefig(picture, format="png", dpi=120)
    try:
        Path(path).write_bytes(picture.getvalue())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write {path}: {error}", "give a file in a folder of yours") from error


def _matplotlib(part: str) -> Any:
    """A part of it, which not every installation has."""
    try:
        return import_module(f"matplotlib.{part}")
    except ImportError as error:
        raise UsageError("a PNG needs matplotlib", "pip install 'localspec[bench]'") from error


def _draw_cost(axes: Any, panel: PassCost) -> None:
    curves = panel.relative()
    top = max((cost for curve in curves.values() for cost in curve.values()), default=2.0)
    widest = max((n for curve in curves.values() for n in curve), default=2)
    axes.plot([1, min(top, widest)], [1, min(top, widest)], color="grey", linestyle="--")
    for curve in curves.values():
        axes.plot(list(curve), list(curve.values()), marker="o", markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    legend = axes.legend(axes.lines, ["n single passes", *map(_name, curves)])
    for text in legend.get_texts():
        text.set_parse_math(False)  # names may hold dollar signs
    axes.set(title="Cost of one pass over n positions", xlabel="n", ylabel="single passes")


def _draw_speed_up(axes: Any, panel: SpeedUp) -> None:
    factors = panel.factors()
    axes.set(title="Speed-up expected", xlabel="draft length", ylabel="acceptance")
    if not factors:
        return
    lengths = list(next(iter(factors.values())))
    rows = [list(row.values()) for row in factors.values()]
    slowest, fastest = min(0.5, *map(min, rows)), max(2.0, *map(max, rows))
    norm = _matplotlib("colors").TwoSlopeNorm(1.0, slowest, fastest)
    image = axes.pcolormesh(lengths, list(factors), rows, cmap="RdYlGn", shading="nearest", norm=norm)
    axes.figure.colorbar(image, ax=axes)
    for a, row in factors.items():
        best = max(row, key=row.__getitem__)
        axes.text(best, a, f"{row[best]:.2f}", ha="center", va="center", fontsize=7)


def _draw_bars(axes: Any, panel: Bars) -> None:
    known = panel.known()
    values = [value for value, _ in known.values()]
    drawn = axes.barh(range(len(values)), values)
    axes.bar_label(drawn, [text for _, text in known.values()], padding=3, fontsize=8)
    axes.set_yticks(range(len(values)), [_name(name) for name in known], parse_math=False)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * (panel.full or max(values, default=1.0) or 1.0))
    axes.set_xticks([])
    axes.set_title(panel.title)
