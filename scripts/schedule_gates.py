"""Measures what the scheduler promises and prints a line for each promise.

    .venv/bin/python scripts/schedule_gates.py --workload prompts.jsonl --curves curves.json

Parts: `wall` (never much slower than plain decoding or than the best fixed setting, faster than any one of
them on mixed work), `oracle` (its share of what is possible, on virtual clocks), `coupled` (what drafting
with the target's noise is worth) and `overhead` (the scheduler's own time). `wall` and `overhead` need a
quiet machine; the other two only count.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from own_time import own_seconds
from self_draft import make

from localspec.bench.compare import Optimum, reach
from localspec.bench.curves import read_curves
from localspec.bench.decode import Bench, DraftModel, Prices, on_the_wall, replay
from localspec.bench.record import Recorder, Recording
from localspec.bench.report import ALL, AUTO, PLAIN, Ratio, Run, best_fixed, ratio, table
from localspec.bench.settings import Parts
from localspec.bench.workloads import Prompt, built_in, read_prompts
from localspec.chat.prompt import ChatTemplate
from localspec.drafters import NAMED
from localspec.engine import oracle
from localspec.engine.cost import DraftCost, calibrate
from localspec.engine.types import Sampling
from localspec.llama.model import LlamaModel, LoadOptions
from localspec.models.find import packaged_model
from localspec.policy import FENCE

PARTS = ("wall", "oracle", "coupled", "overhead")
FIXED = ("ngram-3", "ngram-7", "draft-2", "draft-4", "hybrid")
LEAST_OF_PLAIN = LEAST_OF_FIXED = 0.98
WORTH_JUDGING = 1.33
LEAST_OF_ORACLE = 0.65
COUPLED = {0.7: 1.15, 1.0: 1.3}
SECONDS_PASS, MOST_OVERHEAD = 0.004, 0.01
DRAFT_LENGTH = 4


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


def open_bench(target: LlamaModel, draft: LlamaModel) -> Bench:
    """Target and draft as `localspec bench` would have them; answers do not end by themselves."""

    def run(n: int) -> None:
        target.eval(range(1000, 1000 + n), rows=n)
        target.rewind(0)

    target.rewind(0)
    known = calibrate(run, time.perf_counter)
    share = draft.path.stat().st_size / target.path.stat().st_size
    guess = share * known[1]
    read = guess * min(1.0, known.get(2, 2 * known[1]) / known[1] - 1)
    started = time.perf_counter()
    LlamaModel(draft.path, draft.options).close()
    source = DraftModel(
        draft,
        lambda: LlamaModel(draft.path, draft.options),
        DraftCost(guess, max(0.0, read)),
        0.7,
        time.perf_counter() - started,
    )
    return Bench(target, never, known, tuple(NAMED), source, lambda t: FENCE in target.vocab.piece(t))


def record(
    bench: Bench, prompts: Sequence[Prompt], tokens: int, temperatures: Sequence[float], sampling: Sampling
) -> list[Recording]:
    """Every prompt at one of the temperatures."""
    target, draft = bench.target, bench.draft
    assert draft
    template = ChatTemplate(target.chat_template, target.vocab, print)
    recorder = Recorder(target, template, tokens, bench.is_end, draft.model, greedy=True)
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
    bench: Bench, recordings: Sequence[Recording], settings: Sequence[str], repeats: int
) -> list[Half]:
    """Settings forwards on one recording and repeat, backwards on the next; the halves alternate likewise."""
    places: dict[str, int] = {}
    found, differing = [], 0
    for number, recording in enumerate(recordings):
        place = places[recording.family] = places.get(recording.family, -1) + 1
        for repeat in range(repeats):
            forwards = (number + repeat) % 2 == 0
            for setting in settings if forwards else reversed(settings):
                measured = on_the_wall(bench, recording, setting)
                differing += not measured.same
                found.append(Half(measured.run, (place + repeat) % 2 == 0))
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
        if not math.isnan(speed.value):  # a family with one answer has nothing to compare
            what, goal = f"{name}, {family}: auto / {best}", f"at least {LEAST_OF_FIXED}"
            held &= report(what, told(speed), goal, speed.value >= LEAST_OF_FIXED)
    for setting in settings:
        if setting != AUTO:
            speed = ratio(runs, AUTO, setting)
            held &= report(f"{name}, {ALL}: auto / {setting}", told(speed), "above 1", speed.value > 1)
    return held


def judge_oracle(bench: Bench, recordings: Sequence[Recording], curves: dict[str, Prices]) -> bool:
    """Auto's share of the oracle's speed, a family and curve each, where there is something to gain."""
    reaches = [reach(recording, bench.free) for recording in recordings]
    parts = Parts(bench.known, time.perf_counter, bench.free, wakes=bench.wakes)
    shares = []
    for name, prices in curves.items():
        for family in dict.fromkeys(recording.family for recording in recordings):
            auto = best = plain = 0.0
            for recording, right in zip(recordings, reaches, strict=True):
                if recording.family == family:
                    n_tokens = len(recording.emitted)
                    auto += replay(recording, AUTO, prices, parts, never)[0].seconds
                    best += Optimum(right, prices, n_tokens).after(0)
                    plain += oracle.plain(n_tokens, prices.curve)
            if plain / best > WORTH_JUDGING:
                shares.append(best / auto)
                value = f"{best / auto:.2f} (auto {plain / auto:.2f}, oracle {plain / best:.2f})"
                held = best / auto >= LEAST_OF_ORACLE
                report(f"{name}, {family}: auto / oracle", value, f"at least {LEAST_OF_ORACLE}", held)
    if not shares:
        return report("auto / oracle", "nothing to gain anywhere", "", True)
    value = f"mean {statistics.mean(shares):.3f}, worst {min(shares):.3f} of {len(shares)}"
    return report("auto / oracle", value, f"at least {LEAST_OF_ORACLE}", min(shares) >= LEAST_OF_ORACLE)


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


def judge_pair(kind: str, target: LlamaModel, draft: LlamaModel, args: argparse.Namespace) -> bool:
    """Everything that is asked of one target."""
    prompts = choose([*(read_prompts(args.workload) if args.workload else []), *built_in()], args.per_family)
    bench = open_bench(target, draft)
    cost = " ".join(f"{n}:{seconds / bench.known[1]:.2f}" for n, seconds in bench.known.items())
    print(f"     {kind}: {1000 * bench.known[1]:.1f} ms a pass, by tokens {cost}", flush=True)
    held, first = True, kind == args.targets[0]
    recordings: list[Recording] = []
    if "wall" in args.parts or (first and {"oracle", "overhead"} & {*args.parts}):
        recordings = record(bench, prompts, args.tokens, args.temperatures, Sampling(seed=1))
    if "wall" in args.parts:
        settings = (PLAIN, *args.settings, AUTO)
        held &= judge_wall(kind, settings, wall_runs(bench, recordings, settings, args.repeats))
    if first:  # texts and guesses hardly depend on the kind of weights
        curves = read_curves(args.curves) if args.curves else {"here": Prices.of(bench.known, 0.4)}
        if "oracle" in args.parts:
            held &= judge_oracle(bench, recordings, curves)
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
                held &= judge_pair(kind, target, draft, args)
    print(f"     took {(time.perf_counter() - started) / 60:.1f} minutes")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
