"""`localspec bench --pairs`: how fast files are rewritten when the file is known; a table or one JSON object.

model, versions      as for the other benchmarks
pairs                how many were read, `skipped`: those that do not fit the context
rows                 a pair and clock each, and "all" of a clock: name, curve ("wall" or a cost table's
                     name), tokens emitted; speed over plain decoding with both sources (edit), with the
                     n-gram index alone (ngram), at best (oracle); ratio (edit / ngram), share (edit /
                     oracle) and gain_share ((edit - 1) / (oracle - 1))
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from localspec.app import Loaded
from localspec.bench import pairs
from localspec.bench.certificate import versions
from localspec.bench.curves import read_curves
from localspec.bench.decode import Prices
from localspec.bench.pairs import Case, Pair, Row
from localspec.bench.report import ALL
from localspec.bench.run import load
from localspec.chat.prompt import ChatTemplate
from localspec.config import Settings
from localspec.engine.schedule import Scheduler
from localspec.engine.types import Cancelled
from localspec.errors import ExitStatus, UsageError
from localspec.llama.library import CancelFlag
from localspec.ui.interrupt import on_interrupt
from localspec.ui.terminal import Terminal

BUILT_IN = "built-in"


def bench_pairs(
    files: Sequence[str], curves: str | None, wishes: Settings, terminal: Terminal, *, as_json: bool
) -> ExitStatus:
    """Rewrite the pairs of `files` on the wall clock, or on the virtual clocks of `curves`, and print."""
    found = [pair for name in files for pair in _read(name)]
    prices = read_curves(curves) if curves else None
    cancel = CancelFlag()
    with on_interrupt(cancel.set):
        try:
            with load(replace(wishes, draft="ngram", draft_len=None), terminal, cancel) as loaded:
                cases = _cases(found, loaded, terminal)
                rows = _measure(cases, prices, loaded)
                model = str(loaded.target.path)
        except Cancelled:
            return ExitStatus.INTERRUPTED
    if not rows:
        raise UsageError("no pair fits the context", "give a larger --ctx")
    if as_json:
        skipped = len(found) - len({row.name for row in rows} - {ALL})
        told = {"model": model, "versions": versions(), "pairs": len(found), "skipped": skipped}
        terminal.write(json.dumps({**told, "rows": [as_dict(row) for row in rows]}, indent=2) + "\n")
    else:
        terminal.write(markdown(rows))
    return ExitStatus.OK


def _read(name: str) -> list[Pair]:
    return pairs.built_in() if name == BUILT_IN else pairs.read_pairs(name)


def _cases(found: Sequence[Pair], loaded: Loaded, terminal: Terminal) -> list[Case]:
    target = loaded.target
    template = ChatTemplate(target.chat_template, target.vocab, terminal.note)
    try:
        return [pairs.case_of(pair, template, target.vocab) for pair in found]
    finally:
        template.close()


def _measure(cases: Sequence[Case], prices: Mapping[str, Prices] | None, loaded: Loaded) -> list[Row]:
    if prices:
        return pairs.measure(cases, prices)
    policy = loaded.generator.policy
    assert isinstance(policy, Scheduler), "an n-gram index guesses"
    return pairs.measure_on_the_wall(cases, loaded.target, policy.costs.known())


def as_dict(row: Row) -> dict[str, Any]:
    """The JSON object of a row."""
    figures = {
        "edit": row.edit,
        "ngram": row.ngram,
        "ratio": row.ratio,
        "oracle": row.oracle,
        "share": row.share,
        "gain_share": row.gain_share,
    }
    said = {name: round(value, 4) for name, value in figures.items()}
    return {"name": row.name, "curve": row.curve, "tokens": row.tokens, **said}


def markdown(rows: Sequence[Row]) -> str:
    """A table a clock; speeds are over plain decoding."""
    lines: list[str] = []
    for curve in dict.fromkeys(row.curve for row in rows):
        clock = "wall clock" if curve == pairs.WALL else f"modelled: {curve}"
        lines += [
            f"## {clock}",
            "",
            "| file | tokens | edit | ngram | edit / ngram | oracle | of the oracle |",
        ]
        lines += ["|---|--:|--:|--:|--:|--:|--:|"]
        lines += [
            f"| {row.name} | {row.tokens} | {row.edit:.2f} | {row.ngram:.2f} | {row.ratio:.2f} | "
            f"{row.oracle:.2f} | {row.share:.2f} |"
            for row in rows
            if row.curve == curve
        ]
        lines.append("")
    return "\n".join(lines)
