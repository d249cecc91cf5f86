"""Pictures: never wider than asked, the right numbers in the right places, nothing that breaks them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from localspec.errors import UsageError
from localspec.ui import plots
from localspec.ui.terminal import sanitise

CURVE = {1: 0.02, 2: 0.03, 4: 0.04, 8: 0.08, 16: 0.1}

numbers = st.floats(allow_nan=True, allow_infinity=True) | st.floats(0.001, 1000)
curves = st.dictionaries(st.integers(-1, 600), numbers, max_size=8)
names = st.text(max_size=30)


def assert_fits(text: str, columns: int) -> None:
    assert text.endswith("\n")
    for line in text.splitlines():
        assert cell_len(line) <= columns
        assert line == line.rstrip()
        assert line == sanitise(line)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(names, curves, max_size=4), curves, numbers, st.integers(1, 130))
def test_costs_fit_whatever_comes(
    many: dict[str, dict[int, float]], curve: dict[int, float], guess: float, columns: int
) -> None:
    assert_fits(plots.pass_cost(many, columns), columns)
    assert_fits(plots.speed_up(curve, guess, columns), columns)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(names, numbers, max_size=5),
    st.dictionaries(st.integers(0, 10**9), st.integers(0, 10**9), max_size=5),
    st.dictionaries(st.integers(1, 64), numbers, max_size=5),
    st.integers(1, 130),
)
def test_bars_fit_whatever_comes(
    seconds: dict[str, float], counts: dict[int, int], rates: dict[int, float], columns: int
) -> None:
    assert_fits(plots.share(seconds, columns), columns)
    assert_fits(plots.histogram(counts, columns), columns)
    assert_fits(plots.acceptance(rates, columns), columns)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plots.pass_cost({}, 60),
        lambda: plots.pass_cost({"no single pass": {2: 1.0}}, 60),
        lambda: plots.speed_up({}, 0.1, 60),
        lambda: plots.speed_up({1: 1.0}, 0.1, 60),
        lambda: plots.speed_up(CURVE, math.nan, 60),
        lambda: plots.share({}, 60),
        lambda: plots.histogram({}, 60),
        lambda: plots.acceptance({}, 60),
    ],
)
def test_nothing_measured(draw: Callable[[], str]) -> None:
    assert draw().splitlines()[1:] == ["nothing measured"]


def test_pass_cost_draws_each_width_where_it_belongs() -> None:
    """64 cells for 1, 2, 4, 8 positions, 13 rows for as many passes: n single passes is the diagonal."""
    text = plots.pass_cost({"x": {1: 5.0, 2: 10.0, 4: 10.0, 8: 40.0}}, 6 + 64)
    rows = text.splitlines()[1:14]
    marks = {(12 - y, x - 6) for y, row in enumerate(rows) for x, c in enumerate(row) if c == "A"}
    assert marks == {(0, 0), (4, 21), (4, 42), (12, 63)}
    assert rows[12].startswith("   1 ┤A")
    assert [row[:6] for row in rows if "┤" in row] == ["   8 ┤", "   4 ┤", "   2 ┤", "   1 ┤"]
    assert rows[4][6 + 42] == "/"
    assert text.splitlines()[15].split() == ["n", "1", "2", "4", "8"]
    assert "A  x: 8 positions cost 8.00 single passes" in text


def test_curves_that_meet() -> None:
    text = plots.pass_cost({"x": {1: 1.0, 8: 2.0}, "y": {1: 3.0, 8: 12.0}}, 60)
    rows = text.splitlines()[1:14]
    assert [c for row in rows for c in row if c in "AB*"] == ["B", "A", "*"]


def test_speed_up_by_hand() -> None:
    """A pass that holds 3 positions is that over 4: (1 + a + a^2) * 0.02 / (2 * 0.01 + 0.04)."""
    lines = plots.speed_up(CURVE, 0.01, 200).splitlines()
    assert lines[1].split() == [str(k) for k in range(1, 16)]
    cells = {line[:4]: line[4:].replace("[", " ").replace("]", " ").split() for line in lines[2:12]}
    assert list(cells) == ["0.50", "0.55", "0.60", "0.65", "0.70", "0.75", "0.80", "0.85", "0.90", "0.95"]
    by_length = [cell for cell in cells["0.80"] if cell not in "░▒▓█"]
    assert by_length[1] == f"{2.44 * 0.02 / 0.06:.2f}"
    assert by_length[2] == f"{2.952 * 0.02 / 0.07:.2f}"
    factors = plots.SpeedUp(CURVE, 0.01).factors()
    assert factors[0.8][2] == pytest.approx(2.44 * 0.02 / 0.06)


def test_speed_up_marks_the_best_and_what_is_worth_it() -> None:
    lines = plots.speed_up({1: 1.0, 2: 1.0, 3: 1.0, 4: 5.0}, 0.0, 60).splitlines()
    assert lines[2] == "0.50 ▒ 1.50  ▒[1.75]   0.38"
    costly = plots.speed_up({1: 1.0, 2: 5.0}, 0.0, 60).splitlines()
    assert costly[11] == "0.95   0.39"  # plain decoding is best: nothing in brackets


def test_speed_up_keeps_the_best_lengths_where_room_is_short() -> None:
    wide = dict.fromkeys(range(1, 33), 1.0)
    header = plots.speed_up(wide, 0.0, 44).splitlines()[1]
    assert header.split() == ["1", "2", "3", "4", "31"]


def test_share() -> None:
    assert plots.share({"target": 6.0, "draft": 2.0, "host": 0.0}, 38).splitlines() == [
        "Share of time",
        "target " + 18 * "█" + "       75.0 %",
        "draft  " + 6 * "█" + "                   25.0 %",
        "host                             0.0 %",
    ]


def test_histogram_shows_gaps_and_the_smallest_bar() -> None:
    lines = plots.histogram({1: 990, 4: 10}, 40).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3", "4"]
    assert "█" * 20 in lines[1]
    assert lines[3].split() == ["3", "0", "(0.0", "%)"]
    assert lines[4].split() == ["4", "▎", "10", "(1.0", "%)"]
    assert len(plots.histogram({1: 1, 10**9: 1}, 40).splitlines()) == 3


def test_acceptance_is_of_the_whole() -> None:
    lines = plots.acceptance({2: 0.5, 1: 1.0}, 30).splitlines()
    assert [line.count("█") for line in lines[1:]] == [20, 10]


PANELS = (
    plots.PassCost({"$x_{": CURVE, "_hidden 漢": {1: 1.0, 3: 1.5}}),
    plots.SpeedUp(CURVE, 0.01),
    plots.share_bars({"$": 1.0, "host": 0.0}),
    plots.histogram_bars({1: 5, 3: 2}),
    plots.acceptance_bars({1: 0.8, 2: math.nan}),
)
EMPTY = (plots.PassCost({}), plots.SpeedUp({}, 0.0), plots.share_bars({}), plots.histogram_bars({}))


@pytest.mark.parametrize("panels", [PANELS, EMPTY, PANELS[:1], ()])
def test_png(tmp_path: Path, panels: tuple[plots.Panel, ...]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "bench.png"
    plots.png(path, *panels)
    picture = path.read_bytes()
    assert picture.startswith(b"\x89PNG")
    width = int.from_bytes(picture[16:20])
    assert width == (1536 if len(panels) > 1 else 768)


def test_png_to_nowhere(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(UsageError, match="cannot write"):
        plots.png(tmp_path / "missing" / "bench.png", *PANELS[:1])


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match="matplotlib") as caught:
        plots.png(tmp_path / "bench.png", *PANELS)
    assert "localspec[bench]" in caught.value.hint
    assert not list(tmp_path.iterdir())
