"""Measures what the scheduler promises and prints a line for each promise.

    .venv/bin/python scripts/schedule_gates.py --workload prompts.jsonl --curves curves.json

Parts: `wall` (never much slower than plain decoding or than the best fixed setting, faster than any one of
them on mixed work), `hostile` (nor by a source that is sure and always wrong), `oracle` (its share of what
is possible, on virtual clocks), `deep` (never much slower on a large target beside a cheap draft: a copy of
240 layers gives the prices, replays the rest), `coupled` (what drafting with the target's noise is worth) and
`overhead` (the scheduler's own time). `oracle` and `coupled` only count, the others need a quiet machine.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from make_testbed import make_testbed
from own_time import own_seconds
from self_draft import make

from localspec.bench.compare import Optimum, reach
from localspec.bench.curves import read_curves
from localspec.bench.decode import Bench, DraftModel, Prices, on_the_wall, replay, side_by_side
from localspec.bench.record import Recorder, Recording
from localspec.bench.report import ALL, AUTO, PLAIN, Ratio, Run, best_fixed, ratio, table
from localspec.bench.settings import HINDSIGHT, UNLIMITED, Parts, learnt, pooled
from localspec.bench.workloads import Prompt, built_in, read_prompts
from localspec.chat.prompt import ChatTemplate
from localspec.drafters import NAMED
from localspec.engine import oracle
from localspec.engine.cost import CALIBRATION_SECONDS, DraftCost, PassCosts, calibrate
from localspec.engine.generate import Fixed, Generator
from localspec.engine.ledger import SHARE, START
from localspec.engine.schedule import Scheduler
from localspec.engine.sources import Free
from localspec.engine.types import Policy, Proposal, Sampling
from localspec.llama.model import LlamaModel, LoadOptions
from localspec.models.find import packaged_model
from localspec.policy import FENCE

PARTS = ("wall", "hostile", "oracle", "deep", "coupled", "overhead")
FIXED = ("ngram-3", "ngram-7", "draft-2", "draft-4", "hybrid")
LEAST_OF_PLAIN = LEAST_OF_FIXED = 0.98
WORTH_JUDGING = 1.33
LEAST_OF_ORACLE, LEAST_OF_HINDSIGHT = 0.65, 0.85
COUPLED = {0.7: 1.15, 1.0: 1.3}
SECONDS_PASS, MOST_OVERHEAD = 0.004, 0.01
DRAFT_LENGTH = 4
LAYERS, DEEP_SECONDS = 240, 30.0
NOISE = 0.02
"""By which two runs of the same thing may differ here."""


def report(what: str, value: str, goal: str, held: bool) -> bool:
    print(f"{'ok  ' if held else 'MISS'} {what:<44} {value:<40} {goal}", flush=True)
    return held


def told(speed: Ratio) -> str:
    known = "" if math.isnan(speed.low) else f" ({speed.low:.2f}-{speed.high:.2f})"
    return f"{speed.value:.3f}{known}"


def never(_token: int) -> bool:
    return False


def choose(prompts: Sequence[Prompt], per_family: int) -> list[Prompt]:
    """The first prompts of each family."""
    seen: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        seen.setdefault(prompt.family, []).append(prompt)
    return [prompt for family in seen.values() for prompt in family[:per_family]]


def temperature_of(place: int, temperatures: Sequence[float]) -> float:
    """Pairs of a family's prompts take the temperatures in turn, so that both halves see all of them."""
    return temperatures[place // 2 % len(temperatures)]


def seconds_by_width(model: LlamaModel, most: float) -> dict[int, float]:
    """What passes of each width take, measured for `most` seconds."""

    def run(n: int) -> None:
        model.eval(range(1000, 1000 + n), rows=n)
        model.rewind(0)

    model.rewind(0)
    return calibrate(run, time.perf_counter, seconds=most)


def open_bench(target: LlamaModel, draft: LlamaModel) -> Bench:
    """Target and draft as `localspec bench` would have them; answers do not end by themselves."""
    known = seconds_by_width(target, CALIBRATION_SECONDS)
    share = draft.path.stat().st_size / target.path.stat().st_size
    started = time.perf_counter()
    LlamaModel(draft.path, draft.options).close()
    source = DraftModel(
        draft,
        lambda: LlamaModel(draft.path, draft.options),
        DraftCost(share * known[1], known),
        0.7,
        time.perf_counter() - started,
    )
    return Bench(target, never, known, tuple(NAMED), source, lambda t: FENCE in target.vocab.piece(t))


def record(
    bench: Bench,
    prompts: Sequence[Prompt],
    tokens: int,
    temperatures: Sequence[float],
    sampling: Sampling,
    *,
    guesses: bool = True,
) -> list[Recording]:
    """Every prompt at one of the temperatures. `guesses`: with all the draft would guess there."""
    target, draft = bench.target, bench.draft
    assert draft
    template = ChatTemplate(target.chat_template, target.vocab, print)
    model = draft.model if guesses else None
    recorder = Recorder(target, template, tokens, bench.is_end, model, greedy=guesses)
    places: dict[str, int] = {}
    found: list[Recording] = []
    for prompt in prompts:
        place = places[prompt.family] = places.get(prompt.family, -1) + 1
        found += recorder.record(prompt, replace(sampling, temperature=temperature_of(place, temperatures)))
    return found


@dataclass(frozen=True)
class Half:
    """A run, and whether it is there to choose the best fixed setting or to be compared with it."""

    run: Run
    chooses: bool


def wall_runs(
    bench: Bench, twin: Bench, recordings: Sequence[Recording], settings: Sequence[str], repeats: int
) -> list[Half]:
    """Plain decoding and the scheduler side by side, then the fixed settings; halves alternate, and in each
    both are run by either model: one of two may be a little quicker for good, by where its memory lies."""
    places: dict[str, int] = {}
    found, differing = [], 0
    for recording in recordings:
        place = places[recording.family] = places.get(recording.family, -1) + 1
        for repeat in range(repeats):
            pair = (PLAIN, AUTO) if (place // 2 + repeat) % 2 == 0 else (AUTO, PLAIN)
            measured = side_by_side([bench, twin], recording, pair)
            measured += [on_the_wall(bench, recording, name) for name in settings if name not in pair]
            differing += sum(not one.same for one in measured)
            found += [Half(one.run, (place + repeat) % 2 == 0) for one in measured]
    print(f"     {differing} of {len(found)} runs gave another text (near ties)", flush=True)
    return found


def judge_wall(name: str, settings: Sequence[str], halves: Sequence[Half]) -> bool:
    """The lines of one target."""
    runs = [half.run for half in halves]
    choosing = [half.run for half in halves if half.chooses]
    compared = [half.run for half in halves if not half.chooses]
    families = list(dict.fromkeys(run.family for run in runs))
    rows = table(choosing, families, [setting for setting in settings if setting != AUTO])
    held = True
    for family in families:
        speed = ratio(runs, AUTO, PLAIN, family)
        goal = f"at least {LEAST_OF_PLAIN}"
        held &= report(f"{name}, {family}: auto / plain", told(speed), goal, speed.value >= LEAST_OF_PLAIN)
        best, _ = best_fixed(rows, family)
        speed = ratio(compared, AUTO, best, family)
        if best != PLAIN and not math.isnan(speed.value):  # a family with one answer has nothing to compare
            what, goal = f"{name}, {family}: auto / {best}", f"at least {LEAST_OF_FIXED}"
            held &= report(what, told(speed), goal, speed.value >= LEAST_OF_FIXED)
    for setting in settings:
        if setting != AUTO:
            speed = ratio(runs, AUTO, setting)
            held &= report(f"{name}, {ALL}: auto / {setting}", told(speed), "above 1", speed.value > 1)
    return held


class Liar:
    """Is sure of the token that is not meant."""

    name = "liar"

    def begin(self, context: Sequence[int]) -> None: ...

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        return Proposal([0] * limit, [1.0] * limit)


def judge_hostile(name: str, bench: Bench, recordings: Sequence[Recording]) -> bool:
    """Plain decoding and the scheduler with nothing but a liar, by turns."""
    runs = []
    for i, recording in enumerate(recordings):
        for place in (0, 1):
            lied_to = (i + place) % 2 == 0
            liar = Scheduler(PassCosts(bench.known), [Free(Liar())], [], bench.clock)
            policy: Policy = liar if lied_to else Fixed()
            generator = Generator(bench.target, recording.sampler(), never, policy, clock=bench.clock)
            start = bench.clock()
            steps = list(generator.generate(recording.text[: recording.n_prompt], len(recording.emitted)))
            seconds = bench.clock() - start - generator.last_prefill.seconds
            passes = sum(step.drafted > 0 for step in steps)
            runs.append((lied_to, seconds, passes))
    lied, plain = (sum(seconds for who, seconds, _ in runs if who == kind) for kind in (True, False))
    tokens = sum(len(recording.emitted) for recording in recordings)
    promised = 1 + SHARE + START * len(recordings) / tokens
    tried = sum(passes for _, _, passes in runs)
    value = f"{lied / plain:.3f} (promised {promised:.3f}; {tried} passes lost)"
    goal = f"at most {promised + NOISE:.3f}"
    return report(
        f"{name}: a liar's time / plain", value, goal, lied / plain <= promised + NOISE and tried > 0
    )


@dataclass(frozen=True)
class Share:
    """Auto against the oracle on a family and a curve: speeds over plain decoding.

    `unlimited`: auto's when no loss is too much. `hindsight`: when it also begins with what it would count on
    these very texts.
    """

    auto: float
    unlimited: float
    hindsight: float
    oracle: float

    def __str__(self) -> str:
        rest = f"no ledger {self.unlimited / self.oracle:.2f}, hindsight {self.hindsight / self.oracle:.2f}"
        return f"{self.auto / self.oracle:.2f} ({self.auto:.2f} of {self.oracle:.2f}; {rest})"


def share_of(bench: Bench, recordings: Sequence[Recording], prices: Prices) -> Share:
    """Replays of one family on a virtual clock."""
    parts = Parts(bench.known, time.perf_counter, bench.free, wakes=bench.wakes)
    runs = [replay(recording, AUTO, prices, parts, never) for recording in recordings]
    counted = pooled([learnt(policy) for _, policy in runs if isinstance(policy, Scheduler)])
    free = [replay(recording, UNLIMITED, prices, parts, never)[0] for recording in recordings]
    again = [replay(recording, HINDSIGHT, prices, parts, never, counted)[0] for recording in recordings]
    lengths = [len(recording.emitted) for recording in recordings]
    reaches = [reach(recording, bench.free) for recording in recordings]
    best = sum(Optimum(r, prices, n).after(0) for r, n in zip(reaches, lengths, strict=True))
    plain = sum(oracle.plain(n, prices.curve) for n in lengths)
    auto, unlimited, hindsight = (
        sum(run.seconds for run in found) for found in ([run for run, _ in runs], free, again)
    )
    return Share(plain / auto, plain / unlimited, plain / hindsight, plain / best)


def judge_oracle(bench: Bench, recordings: Sequence[Recording], curves: dict[str, Prices]) -> bool:
    """Auto's share of the oracle's speed, a family and curve each, where there is something to gain."""
    shares: list[float] = []
    known: list[float] = []  # auto's speed as a share of what hindsight would reach
    for name, prices in curves.items():
        for family in dict.fromkeys(recording.family for recording in recordings):
            found = share_of(bench, [r for r in recordings if r.family == family], prices)
            if found.oracle > WORTH_JUDGING:
                shares.append(found.auto / found.oracle)
                known.append(found.auto / found.hindsight)
                held = shares[-1] >= LEAST_OF_ORACLE
                report(f"{name}, {family}: auto / oracle", str(found), f"at least {LEAST_OF_ORACLE}", held)
    if not shares:
        return report("auto / oracle", "nothing to gain anywhere", "", True)
    held = True
    for what, found_shares, goal in (
        ("auto / oracle", shares, LEAST_OF_ORACLE),
        ("auto / auto with hindsight", known, LEAST_OF_HINDSIGHT),
    ):
        value = f"mean {statistics.mean(found_shares):.3f}, worst {min(found_shares):.3f} of {len(shares)}"
        held &= report(what, value, f"at least {goal}", min(found_shares) >= goal)
    return held


def judge_deep(target: LlamaModel, draft: LlamaModel, recordings: Sequence[Recording], folder: Path) -> bool:
    """Auto against plain decoding, priced as if the target had many more layers that change nothing."""
    path = folder / "deep.gguf"
    make_testbed(target.path, path, LAYERS)
    with LlamaModel(path, target.options) as deep:
        known = seconds_by_width(deep, DEEP_SECONDS)
    prices = Prices.of(known, seconds_by_width(draft, CALIBRATION_SECONDS)[1])
    curve = " ".join(f"{n}:{cost:.2f}" for n, cost in prices.curve.items())
    print(f"     {LAYERS} layers: {1000 * known[1]:.1f} ms a pass, by tokens {curve}", flush=True)
    print(f"     a guess costs {prices.guess:.2f} passes")
    parts, held = Parts(prices.curve, time.perf_counter), True
    for family in dict.fromkeys(recording.family for recording in recordings):
        chosen = [recording for recording in recordings if recording.family == family]
        seconds = sum(replay(recording, AUTO, prices, parts, never)[0].seconds for recording in chosen)
        speed = sum(oracle.plain(len(recording.emitted), prices.curve) for recording in chosen) / seconds
        goal = f"at least {LEAST_OF_PLAIN}"
        held &= report(
            f"{LAYERS} layers, {family}: auto / plain", f"{speed:.3f}", goal, speed >= LEAST_OF_PLAIN
        )
    return held


def passes(right: Sequence[int], limit: int) -> int:
    """Passes of a text when each checks `limit` guesses; `right[i]`: how many in a row are right at i."""
    place = count = 0
    while place < len(right):
        place += min(limit, right[place]) + 1
        count += 1
    return count


def judge_coupled(bench: Bench, prompts: Sequence[Prompt], tokens: int) -> bool:
    """Tokens per pass with coupled and with greedy guesses; the text is the same, since both are matched."""
    held = True
    for temperature, least in COUPLED.items():
        sampling = Sampling(temperature=temperature, top_k=40, top_p=0.95, min_p=0.0, seed=1)
        recordings = record(bench, prompts, tokens, (temperature,), sampling)
        emitted = sum(len(recording.emitted) for recording in recordings)
        per_pass = []
        for kinds in ([r.guesses for r in recordings], [r.greedy for r in recordings]):
            pairs = zip(recordings, kinds, strict=True)
            rights = [reach(replace(recording, guesses=kind), ())["draft"] for recording, kind in pairs]
            per_pass.append(emitted / sum(passes(right, DRAFT_LENGTH) for right in rights))
        coupled, greedy = per_pass
        value = f"{coupled / greedy:.2f} ({coupled:.2f} against {greedy:.2f} tokens a pass)"
        held &= report(
            f"coupled / greedy, T={temperature:g}", value, f"at least {least}", coupled >= least * greedy
        )
    return held


def judge_overhead(recordings: Sequence[Recording], curves: dict[str, Prices]) -> bool:
    """Deciding, learning and the ledger, as a share of a short pass."""
    held = True
    for name, prices in curves.items():
        decoding = 0.0
        for recording in recordings:  # so that guesses are known, too
            parts = Parts(prices.curve, time.perf_counter)
            decoding += SECONDS_PASS * replay(recording, AUTO, prices, parts, never)[0].seconds
        seconds = [s for recording in recordings for s in own_seconds(recording, prices)]
        share = sum(seconds) / decoding
        value = f"{100 * share:.2f} % ({1e6 * statistics.median(seconds):.0f} us a step)"
        goal = f"at most {100 * MOST_OVERHEAD:.0f} % at {1000 * SECONDS_PASS:.0f} ms a pass"
        held &= report(f"{name}: scheduler's own time a step", value, goal, share <= MOST_OVERHEAD)
    return held


def judge_pair(
    kind: str, target: LlamaModel, draft: LlamaModel, args: argparse.Namespace, folder: Path
) -> bool:
    """Everything that is asked of one target."""
    prompts = choose([*(read_prompts(args.workload) if args.workload else []), *built_in()], args.per_family)
    bench = open_bench(target, draft)
    cost = " ".join(f"{n}:{seconds / bench.known[1]:.2f}" for n, seconds in bench.known.items())
    print(f"     {kind}: {1000 * bench.known[1]:.1f} ms a pass, by tokens {cost}", flush=True)
    held, first = True, kind == args.targets[0]
    recordings: list[Recording] = []
    if "hostile" in args.parts:
        few = choose(built_in(), 1)
        held &= judge_hostile(kind, bench, record(bench, few, args.tokens, (0.0,), Sampling(), guesses=False))
    priced = first and bool({"oracle", "overhead", "deep"} & {*args.parts})
    if priced or "wall" in args.parts:
        recordings = record(bench, prompts, args.tokens, args.temperatures, Sampling(seed=1), guesses=priced)
    if "wall" in args.parts:
        settings = (PLAIN, *args.settings, AUTO)
        with LlamaModel(target.path, target.options) as other:
            twin = replace(bench, target=other)
            halves = wall_runs(bench, twin, recordings, settings, args.repeats)
        held &= judge_wall(kind, settings, halves)
    if first:  # texts and guesses hardly depend on the kind of weights
        curves = read_curves(args.curves) if args.curves else {"here": Prices.of(bench.known, 0.4)}
        if "oracle" in args.parts:
            held &= judge_oracle(bench, recordings, curves)
        if "deep" in args.parts:
            held &= judge_deep(target, draft, recordings, folder)
        if "overhead" in args.parts:
            held &= judge_overhead(recordings[: args.overhead], curves)
        if "coupled" in args.parts:
            few = choose(built_in(), args.per_family)
            held &= judge_coupled(bench, few, args.tokens)
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--workload", help="prompts besides the built-in ones, JSON lines")
    parser.add_argument("--curves", help="cost tables of virtual clocks")
    parser.add_argument("--targets", nargs="+", default=["f16", "q8_0"])
    parser.add_argument("--draft", default="q4_0")
    parser.add_argument("--settings", nargs="*", default=list(FIXED), help="fixed ones to compare with")
    parser.add_argument("--per-family", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.8])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--overhead", type=int, default=8, help="answers that the overhead is measured on")
    args = parser.parse_args()
    source = packaged_model()
    assert source is not None, "install the demo extra: scripts/test does"
    options = LoadOptions(n_ctx=args.ctx, threads=args.threads)
    started, held = time.perf_counter(), True
    with tempfile.TemporaryDirectory() as folder:
        draft_path = make(source, args.draft, Path(folder))
        for kind in args.targets:
            target_path = make(source, kind, Path(folder))
            with LlamaModel(target_path, options) as target, LlamaModel(draft_path, options) as draft:
                held &= judge_pair(kind, target, draft, args, Path(folder))
    print(f"     took {(time.perf_counter() - started) / 60:.1f} minutes")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
