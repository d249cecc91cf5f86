"""Makes the policy of a run: the scheduler with its sources and what was learnt of them, or fixed lengths."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.config import Settings
from localspec.drafters import NAMED, LazyDrafter, ModelDrafter
from localspec.engine.chances import Chances
from localspec.engine.cost import CALIBRATION_SECONDS, LADDER, DraftCost, PassCosts, calibrate
from localspec.engine.generate import Fixed
from localspec.engine.proven import can_prove, prove, seconds_to_prove
from localspec.engine.schedule import Scheduler
from localspec.engine.sources import TABLES, Costly, Free, tables
from localspec.engine.types import Drafter, Model, Policy, Source
from localspec.errors import UsageError
from localspec.learned import Learned

AUTO, SELF = "auto", "self"
FENCE = b"```"


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft model that may be loaded. `name`: what its counts are kept under; `share`: what a token of it
    reads of what one of the target reads; `right`: how often it is expected to guess right; `kept`: the
    tokens that its cache will hold once it is loaded."""

    name: str
    load: Callable[[], ModelDrafter]
    seconds_to_load: float
    share: float
    right: float
    kept: Callable[[], Sequence[int]] = tuple


@dataclass(frozen=True, slots=True)
class Measured:
    """What passes cost here. `fresh`: seconds it took to measure, 0 if it was known."""

    costs: PassCosts
    fresh: float


def fixed(names: Sequence[str], draft: DraftModel | None, length: int) -> Policy:
    """The sources named, each always guessing `length` tokens."""
    sources = []
    for name in names:
        if name in NAMED:
            sources.append(Source(NAMED[name](), length))
        elif draft:
            sources.append(Source(draft.load(), length))
    return Fixed(tuple(sources))


def scheduler(
    settings: Settings,
    names: Sequence[str],
    draft: DraftModel | None,
    costs: PassCosts,
    learned: Learned,
    piece: Callable[[int], bytes],
    on_failure: Callable[[Exception], None],
    *,
    others: Sequence[Drafter] = (),
) -> Scheduler:
    """The scheduler over the sources named and `draft`, with what earlier sessions counted.

    `others`: sources besides those that need no model either.
    """
    drafters = [*(NAMED[name]() for name in names if name in NAMED), *others]
    free = [
        Free(drafter, Chances(learned.counts.get(count_key(settings, drafter.name), ())))
        for drafter in drafters
    ]
    costly = []
    if draft:
        known = costs.known()
        cost = DraftCost(draft.share * known[1], known)
        lazy = LazyDrafter("draft", draft.load, draft.seconds_to_load, on_failure, draft.kept)
        saved = {kind: learned.counts.get(count_key(settings, draft.name, kind), ()) for kind in TABLES}
        costly.append(Costly(lazy, cost, tables(saved), draft.right))
    drawn = settings.accept == "rejection" and settings.temp > 0
    return Scheduler(
        costs, free, costly, time.perf_counter, drawn=drawn, wakes=lambda token: FENCE in piece(token)
    )


def count_key(settings: Settings, *names: str) -> str:
    """What a source's counts are kept under: greedy choices are easier to guess than drawn ones."""
    return " ".join([*names, "greedy" if settings.temp == 0 else "sampled"])


def measure(
    model: Model,
    conditions: str,
    learned: Learned,
    widths: Sequence[int] = LADDER,
    share_cached: float = 0.0,
) -> Measured:
    """What passes of `model` cost under `conditions`: as remembered, or measured now in its empty cache.

    `share_cached`: what a token in the cache adds to a plain pass, as a share of it.
    """
    known = learned.costs.get(conditions)
    if known:
        return Measured(PassCosts(known, share_cached * known[1], widths), 0.0)
    start = time.perf_counter()

    def run(n: int) -> None:
        model.eval([(7 + 13 * i) % model.n_vocab for i in range(n)], rows=n)
        model.rewind(0)

    possible = [n for n in widths if n <= model.n_ctx]
    found = calibrate(run, time.perf_counter, possible)
    learned.costs[conditions] = found
    left = CALIBRATION_SECONDS - (time.perf_counter() - start)
    if learned.proof(conditions) is None and seconds_to_prove(found) <= left and can_prove(model):
        learned.keep_proof(conditions, prove(model))
    costs = PassCosts(found, share_cached * found[1], widths)
    return Measured(costs, time.perf_counter() - start)


def remember(
    policy: Scheduler, conditions: str, draft: DraftModel | None, settings: Settings, learned: Learned
) -> None:
    """Keep what the session learnt for the next one."""
    learned.costs[conditions] = policy.costs.remembered()
    for source in policy.free:
        learned.counts[count_key(settings, source.drafter.name)] = source.chances.counts()
    for costly in policy.costly if draft else ():
        assert draft is not None
        for kind, table in costly.tables.items():
            learned.counts[count_key(settings, f"{draft.name} {kind}")] = table.counts()
    learned.save()


def draft_names(text: str) -> list[str]:
    """The sources `--draft` allows, in order; [] for `none`. Raises UsageError for anything contradictory."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if text.strip().isdigit():
        raise UsageError(f"--draft {text} names no source", f"did you mean --draft-len {text.strip()}?")
    alone = [name for name in names if name in (AUTO, "none")]
    if not names or (alone and len(names) > 1) or len(set(names)) < len(names):
        known = ", ".join([*NAMED, SELF])
        raise UsageError(
            f"--draft {text!r}", f"give auto, none, or a list of different sources: {known}, a model"
        )
    if len([name for name in names if name not in NAMED]) > 1:
        raise UsageError("--draft names several models", "one draft model at most")
    return [] if names == ["none"] else names


def draft_model(text: str) -> str | None:
    """The model that `--draft` names, if it names one."""
    return next((name for name in draft_names(text) if name not in (*NAMED, AUTO, SELF)), None)
