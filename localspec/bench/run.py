"""`localspec bench`: how fast a model decodes under each setting, against plain decoding and the possible.

Each prompt is answered once, plainly; then every setting decodes that answer, which no guess can change, in
ABBA order and from a fresh state; `--curves` does so on virtual clocks too. `--json` prints one object:

    model, draft         files, draft null without one
    versions             of localspec and llama-cpp-python
    seed, tokens, repeats, threads, kv_type, n_ctx
    settings             their names; "none" is plain decoding
    prompts              recorded answers; `skipped`: prompts that left no room in the context
    pass_costs           tokens of a pass -> seconds
    seconds_guess        of the draft, or null
    waits                {"for": "memory" or "arithmetic", "width": passes up to so many tokens cost at most
                         1.3 single ones, "cost": that many tokens in single passes}
    tables               one a clock and temperature:
      clock              "wall" or "modelled"; `curve`: the name of the cost table, null on the wall
      temperature
      runs, differing    how many were made, and how many gave another text: near ties, on the wall only
      rows               a family and setting each, "all" pooled last: family, setting, prompts, ratio (speed
                         over plain decoding; what opening a draft takes counts), low, high (95 %),
                         tokens_per_pass, acceptance_rate; null where nothing is known
      best_fixed         family -> [setting, ratio]
      scores             a family each: family; auto, oracle (speeds over plain decoding); auto_over_oracle;
                         gain_share ((auto - 1) / (oracle - 1), null where the oracle gains less than 5 %);
                         perfect_share (of the speed with a drafter that is always right and free); alone
                         (source -> the oracle with that one only); lost (shares of auto's time on the
                         virtual clock, whose first three add up to all that the oracle saves: silent, nothing
                         guessed; source, another one should have; length, too few or too many guesses;
                         and of these cold_start, which counts from other prompts would have saved, and
                         ledger, which no bound on losses would have)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, cast

from localspec.app import Loaded, open_target
from localspec.bench import picture, settings
from localspec.bench.certificate import versions
from localspec.bench.curves import Waits, read_curves, waits
from localspec.bench.decode import Bench, DraftModel, Measured, Prices
from localspec.bench.outcomes import Outcome, outcomes_of
from localspec.bench.record import Recorder, Recording
from localspec.bench.report import AUTO, PLAIN, markdown
from localspec.bench.workloads import Prompt, built_in, read_forced, read_prompts
from localspec.chat.opening import find_draft, find_model, hearing
from localspec.chat.prompt import ChatTemplate
from localspec.config import Settings
from localspec.drafters import LazyDrafter
from localspec.engine.schedule import Scheduler
from localspec.engine.types import Cancelled
from localspec.errors import ExitStatus, UsageError
from localspec.llama.library import CancelFlag
from localspec.llama.model import LlamaModel
from localspec.ui.interrupt import on_interrupt
from localspec.ui.terminal import Terminal

_GREEDY = "@greedy"


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured. `temps`, `names`: None for the usual ones; `greedy`: a draft guesses greedily too."""

    prompts: str | None = None
    force: str | None = None
    families: tuple[str, ...] = ()
    temps: tuple[float, ...] | None = None
    tokens: int = 200
    per_family: int | None = None
    repeats: int = 1
    names: tuple[str, ...] | None = None
    curves: str | None = None
    greedy: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found. `facts`: the keys of the JSON object that only describe the run."""

    facts: Mapping[str, Any]
    known: Mapping[int, float]
    prices: Prices
    waits: Waits
    outcomes: Sequence[Outcome]

    def as_dict(self) -> dict[str, Any]:
        guess = self.prices.guess * self.known[1]
        return {
            **self.facts,
            "pass_costs": {str(n): seconds for n, seconds in self.known.items()},
            "seconds_guess": guess or None,
            "waits": {"for": self.waits.what, "width": self.waits.width, "cost": self.waits.cost},
            "tables": [outcome.as_dict() for outcome in self.outcomes],
        }


def bench(
    options: Options, wishes: Settings, terminal: Terminal, *, as_json: bool, png: str | None
) -> ExitStatus:
    """Measure and print. Ctrl-C ends it without a result."""
    names = [name.strip() for name in wishes.draft.split(",")]
    greedy = any(name.endswith(_GREEDY) for name in names)
    draft = ",".join(name.removesuffix(_GREEDY) for name in names)
    wishes = replace(wishes, draft=draft, draft_len=None, accept="coupled", seed=wishes.seed or 0)
    options = replace(options, greedy=greedy)
    prompts, curves = _prompts(options), read_curves(options.curves) if options.curves else {}
    cancel = CancelFlag()
    with on_interrupt(cancel.set):
        try:
            with load(wishes, terminal, cancel) as loaded:
                found = measure(make_bench(loaded), loaded, prompts, curves, options, terminal)
        except Cancelled:
            return ExitStatus.INTERRUPTED
    terminal.progress("")
    if as_json:
        text = json.dumps(found.as_dict(), ensure_ascii=False, indent=2, allow_nan=False)
        terminal.write(text + "\n")
    else:
        terminal.write(_text(found))
        if terminal.out_tty:
            terminal.write("\n" + picture.text(found.prices, _shown(found), terminal.columns))
    if png:
        picture.png(png, found.prices, _shown(found))
    return ExitStatus.OK


def _prompts(options: Options) -> list[Prompt]:
    if options.prompts and options.force:
        raise UsageError("--prompts and --force", "give one of them")
    if options.force:
        found = read_forced(options.force)
    elif options.prompts:
        found = read_prompts(options.prompts)
    else:
        found = [prompt for family in options.families or (None,) for prompt in built_in(family)]
    chosen: list[Prompt] = []
    for prompt in found:
        before = sum(other.family == prompt.family for other in chosen)
        wanted = not options.families or prompt.family in options.families
        if wanted and (options.per_family is None or before < options.per_family):
            chosen.append(prompt)
    if not chosen:
        raise UsageError("no prompt is left", "check --family and --per-family")
    return chosen


def load(wishes: Settings, terminal: Terminal, cancel: CancelFlag) -> Loaded:
    """The model and its guessers, as chat would have them."""
    path, draft = find_model(wishes, terminal), find_draft(wishes, terminal)
    return open_target(wishes, path, draft, cancel=cancel, hear=hearing(terminal))


def make_bench(loaded: Loaded) -> Bench:
    """What chat would run, taken apart: its costs, its sources, and the draft, now loaded."""
    policy, target = loaded.generator.policy, loaded.target
    if not isinstance(policy, Scheduler):
        raise UsageError(
            "nothing guesses for this model, so there is nothing to compare", "give a --draft that can"
        )
    draft = None
    for costly in policy.costly:
        if isinstance(lazy := costly.drafter, LazyDrafter):
            model = cast(LlamaModel, lazy.load().model)
            cost = copy(costly.cost)
            draft = DraftModel(model, _again(model), cost, costly.prior, lazy.seconds_expected)
    free = tuple(source.drafter.name for source in policy.free)
    return Bench(target, target.vocab.is_end, policy.costs.known(), free, draft, policy.wakes)


def _again(model: LlamaModel) -> Callable[[], LlamaModel]:
    return lambda: LlamaModel(model.path, model.options, cancel=model.cancel)


def measure(
    bench: Bench,
    loaded: Loaded,
    prompts: Sequence[Prompt],
    curves: Mapping[str, Prices],
    options: Options,
    terminal: Terminal,
) -> Report:
    """Record every prompt at every temperature and decode it under every setting, on every clock."""
    has_draft = bench.draft is not None
    usual = settings.defaults(bench.free, draft=has_draft, greedy=options.greedy)
    names = list(dict.fromkeys((PLAIN, *(options.names or usual))))
    settings.check(names, bench.free, draft=has_draft)
    target, sampling = bench.target, loaded.generator.sampler.sampling
    wants_greedy = any(name.startswith(settings.GREEDY) for name in names)
    recorder = Recorder(
        target,
        ChatTemplate(target.chat_template, target.vocab, terminal.note),
        options.tokens,
        bench.is_end,
        bench.draft.model if bench.draft else None,
        wants_greedy,
    )
    temps = options.temps or ((0.0,) if options.force else (0.0, 0.8))
    recordings: list[Recording] = []
    skipped = 0
    for i, prompt in enumerate(prompts):
        terminal.progress(f"recording prompt {i + 1} of {len(prompts)}")
        made = [r for t in temps for r in recorder.record(prompt, replace(sampling, temperature=t))]
        skipped += not made
        recordings += made
    if not recordings:
        raise UsageError("no prompt leaves room in the context", "give a larger --ctx")
    prices = Prices.of(bench.known, bench.seconds_guess(recordings[0]))
    outcomes = outcomes_of(bench, recordings, names, prices, curves, options.repeats, terminal.progress)
    facts = {
        "model": str(target.path),
        "draft": str(bench.draft.model.path) if bench.draft else None,
        "versions": versions(),
        "seed": sampling.seed,
        "tokens": options.tokens,
        "repeats": options.repeats,
        "threads": target.options.threads,
        "kv_type": target.options.kv_type,
        "n_ctx": target.n_ctx,
        "settings": list(names),
        "prompts": len(recordings),
        "skipped": skipped,
    }
    return Report(facts, bench.known, prices, waits(bench.known), outcomes)


def _shown(found: Report) -> list[Measured]:
    """The scheduler's runs on the wall, for the pictures."""
    return [m for o in found.outcomes if o.curve is None for m in o.measured if m.setting == AUTO]


def _text(found: Report) -> str:
    parts = [found.waits.sentence]
    for outcome in found.outcomes:
        clock = "wall clock" if outcome.curve is None else f"modelled: {outcome.curve}"
        parts.append(f"## Temperature {outcome.temperature:g}, {clock}\n\n{markdown(outcome.rows)}")
        parts.append(picture.score_table(outcome.scores))
        differing = sum(not measured.same for measured in outcome.measured)
        if differing:
            parts.append(f"{differing} of {len(outcome.measured)} runs gave another text (near ties)\n")
    parts.append(f"Speeds are over plain decoding, with the range of 95 %. {picture.LEGEND}")
    return "\n".join(part if part.endswith("\n") else part + "\n" for part in parts)
