"""The settings a benchmark compares, by name, and the policy that each of them is.

`none` guesses nothing; `NAME-K` always guesses K tokens with one source (`draft` is the draft model, `greedy`
the same with its likeliest tokens); `hybrid` takes guesses of the first named source and lets the draft fill
them up; `auto` is the scheduler with nothing learnt, `auto-warm` with what it learns on the other prompts,
`auto-unlimited` without the ledger, `auto-hindsight` with what it learns on these very texts and without the
ledger. Knows sources and policies; where time comes from is in `Parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field

from localspec.bench.report import AUTO, PLAIN
from localspec.drafters import NAMED
from localspec.engine.chances import Chances
from localspec.engine.cost import DraftCost, PassCosts
from localspec.engine.generate import Fixed
from localspec.engine.ledger import Ledger
from localspec.engine.schedule import Scheduler
from localspec.engine.sources import Costly, Free
from localspec.engine.sources import tables as draft_tables
from localspec.engine.types import Policy, Sequential, Source
from localspec.errors import UsageError

DRAFT, GREEDY, HYBRID = "draft", "greedy", "hybrid"
WARM, UNLIMITED, HINDSIGHT = "auto-warm", "auto-unlimited", "auto-hindsight"
LONGEST = 47
_LENGTHS_FREE, _LENGTHS_DRAFT, _LENGTH_GREEDY = (3, 7, 15), (2, 4), 4
_HYBRID_FREE, _HYBRID_TOTAL = 2, 4
_MANY_TOKENS = 10**9
"""Emitted before, for a ledger that then bears any loss."""


Table = Sequence[Sequence[float]]
"""As `Chances.counts` gives it, or empty."""


@dataclass(frozen=True, slots=True)
class Tables:
    """What schedulers have counted: by free source, and of the draft by what is counted (`Costly.tables`)."""

    free: Mapping[str, Table]
    draft: Mapping[str, Table] = field(default_factory=dict)


NOTHING = Tables({})


@dataclass(frozen=True, slots=True)
class Parts:
    """What policies are made of, all of it on one clock.

    `known`: seconds of a pass by width. `ready(greedy)`: a draft that has read the prompt; `lazy()`: one the
    scheduler opens when it likes; both None without a draft. `cost`, `prior`: what is expected of it.
    """

    known: Mapping[int, float]
    clock: Callable[[], float]
    free: Sequence[str] = tuple(NAMED)
    ready: Callable[[bool], Sequential] | None = None
    lazy: Callable[[], Sequential] | None = None
    cost: DraftCost | None = None
    prior: float = 0.7
    wakes: Callable[[int], bool] = lambda _: False


def defaults(free: Sequence[str], *, draft: bool, greedy: bool) -> list[str]:
    """The settings compared unless the user names some, plain decoding first."""
    names = [PLAIN, *(f"{name}-{k}" for name in free for k in _LENGTHS_FREE)]
    if draft:
        names += [f"{DRAFT}-{k}" for k in _LENGTHS_DRAFT] + [HYBRID] * bool(free)
    if draft and greedy:
        names.append(f"{GREEDY}-{_LENGTH_GREEDY}")
    return [*names, AUTO, WARM]


def check(names: Sequence[str], free: Sequence[str], *, draft: bool) -> None:
    """Raises UsageError for a setting that does not exist or lacks its source."""
    known = ", ".join(defaults(free, draft=draft, greedy=draft))
    for name in names:
        source, _, length = name.rpartition("-")
        plain = name in (PLAIN, AUTO, WARM, UNLIMITED) or (name == HYBRID and draft and free)
        sources = [*free, *([DRAFT, GREEDY] if draft else [])]
        fixed = source in sources and length.isdecimal() and 1 <= int(length) <= LONGEST
        if not (plain or fixed):
            raise UsageError(f"no setting {name!r} with these sources", f"for example {known}")


def make(name: str, parts: Parts, tables: Tables = NOTHING) -> Policy:
    """The policy called `name`, fresh. `tables`: what `auto-warm` and `auto-hindsight` start with."""
    room = max(parts.known) - 1  # a wider pass has no price
    if name == PLAIN:
        return Fixed()
    if name in (AUTO, WARM, UNLIMITED, HINDSIGHT):
        ledger = Ledger(tokens=_MANY_TOKENS) if name in (UNLIMITED, HINDSIGHT) else Ledger()
        return _scheduler(parts, tables if name in (WARM, HINDSIGHT) else NOTHING, ledger)
    if name == HYBRID:
        assert parts.ready is not None
        first = Source(NAMED[parts.free[0]](), min(_HYBRID_FREE, room))
        return Fixed((first, Source(parts.ready(False), min(_HYBRID_TOTAL, room))), extend=True)
    source, _, length = name.rpartition("-")
    if source in NAMED:
        return Fixed((Source(NAMED[source](), min(int(length), room)),))
    assert parts.ready is not None
    return Fixed((Source(parts.ready(source == GREEDY), min(int(length), room)),))


def _scheduler(parts: Parts, tables: Tables, ledger: Ledger) -> Scheduler:
    free = [Free(NAMED[name](), Chances(tables.free.get(name, ()))) for name in parts.free]
    costly = []
    if parts.lazy and parts.cost:
        counted = draft_tables(tables.draft)
        costly.append(Costly(parts.lazy(), copy(parts.cost), counted, parts.prior))
    costs = PassCosts(parts.known, widths=tuple(parts.known))
    return Scheduler(costs, free, costly, parts.clock, wakes=parts.wakes, ledger=ledger)


def learnt(policy: Scheduler) -> Tables:
    """What a scheduler counted."""
    free = {source.drafter.name: source.chances.counts() for source in policy.free}
    if not policy.costly:
        return Tables(free)
    counted = policy.costly[0].tables
    return Tables(free, {name: chances.counts() for name, chances in counted.items()})


def pooled(tables: Sequence[Tables]) -> Tables:
    """The counts of several runs together; nothing of none."""
    if not tables:
        return NOTHING
    first = tables[0]
    free = {name: _sum([table.free[name] for table in tables]) for name in first.free}
    draft = {name: _sum([table.draft[name] for table in tables]) for name in first.draft}
    return Tables(free, draft)


def _sum(counts: Sequence[Table]) -> Table:
    """Of [right, trials] pairs, bin by bin."""
    return [
        [sum(pair[0] for pair in bins), sum(pair[1] for pair in bins)] for bins in zip(*counts, strict=True)
    ]
