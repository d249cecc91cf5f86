"""Cost tables of machines: read from a file, and what one says about a machine."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.bench.decode import Prices
from localspec.engine.generate import WIDEST_PASS
from localspec.errors import UsageError, reason

STILL_MEMORY = 1.3
"""A pass that costs no more than this many single ones waits for the weights, not for the arithmetic."""
_BYTES_FILE = 1 << 22
_HINT = 'it holds {"NAME": {"T": {"1": 1.0, "2": 1.1}, "draft": 0.1}}'


@dataclass(frozen=True, slots=True)
class Waits:
    """What a machine waits for. `width`: the widest pass that costs at most STILL_MEMORY single ones; `cost`:
    what it costs; `what`: "memory" if that is more than one token."""

    width: int
    cost: float
    dearer: tuple[int, float] | None

    @property
    def what(self) -> str:
        return "memory" if self.width > 1 else "arithmetic"

    @property
    def sentence(self) -> str:
        over = f"{self.dearer[0]} tokens cost {self.dearer[1]:.2f} single passes" if self.dearer else ""
        if self.width == 1:
            return f"This machine waits for arithmetic: {over or 'no wider pass was measured'}."
        known = f"a pass over {self.width} tokens costs {self.cost:.2f} single ones"
        beyond = f"; beyond that for arithmetic ({over})" if over else ", and nothing wider was measured"
        return f"This machine waits for memory up to {self.width} tokens ({known}){beyond}."


def waits(known: Mapping[int, float]) -> Waits:
    """From seconds by width, 1 among them."""
    width = max(n for n, seconds in known.items() if seconds <= STILL_MEMORY * known[1])
    wider = next((n for n in sorted(known) if n > width), None)
    dearer = (wider, known[wider] / known[1]) if wider else None
    return Waits(width, known[width] / known[1], dearer)


def read_curves(path: str) -> dict[str, Prices]:
    """Prices by name; names that begin with "_" are remarks. Raises UsageError for any other kind of file."""
    try:
        with Path(path).open("rb") as file:
            raw = json.loads(file.read(_BYTES_FILE))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read {path}: {reason(error)}", _HINT) from error
    named = raw.items() if isinstance(raw, dict) else ()
    found = {name: _prices(item, f"{path}: {name}") for name, item in named if not name.startswith("_")}
    if not found:
        raise UsageError(f"{path} holds no curve", _HINT)
    return found


def _prices(item: Any, where: str) -> Prices:
    table, draft = (item.get("T"), item.get("draft")) if isinstance(item, dict) else (None, None)
    if not isinstance(table, dict) or draft is None:
        raise UsageError(f"{where} lacks T or draft", _HINT)
    if not _is_cost(draft):
        raise UsageError(f"{where}: draft is no cost", _HINT)
    widths = {int(n): cost for n, cost in table.items() if n.isdecimal() and _is_cost(cost)}
    right = len(widths) == len(table) and min(widths, default=0) == 1 and max(widths) <= WIDEST_PASS
    if not right or min(widths.values()) <= 0:
        raise UsageError(f"{where}: T must map widths from 1 to {WIDEST_PASS} to costs above 0", _HINT)
    return Prices({n: widths[n] / widths[1] for n in sorted(widths)}, draft)


def _is_cost(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
