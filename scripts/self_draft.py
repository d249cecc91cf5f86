"""Compares what localspec expects of a self-draft with what it brings, on copies of the packaged 135M model.

    .venv/bin/python scripts/self_draft.py [--targets f16 q8_0 q4_1] [--drafts q4_0 q3_k q2_k]

For each pair and temperature: acceptance over a few prompts; then rounds, each of which measures the costs of
the passes (interleaved, medians), expects a factor of fixed draft lengths from both, and measures the real
one: the same prompts decoded plainly and with each length, interleaved, from fresh caches. Printed are
medians of the rounds. "by table" is the same from `pairs`' acceptance table instead of the measured
acceptance: what a user is told before a copy exists. One thread.

Wants a quiet machine; on a busy one --cpu-time leaves out the time that other processes ran, though not what
they cost in caches and bandwidth.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.drafters import ModelDrafter
from localspec.engine.generate import Fixed, Generator
from localspec.engine.sampling import Sampler
from localspec.engine.types import Sampling, Source, Step
from localspec.llama.library import api
from localspec.llama.model import LlamaModel, LoadOptions
from localspec.llama.quantize import FTYPES, planned_size, quantize
from localspec.models.find import packaged_model
from localspec.models.pairs import copy_acceptance, factor_at

Clock = Callable[[], float]

LENGTHS = (1, 2, 4)
PARAMETERS = 134_515_008
QUESTIONS = (
    "Explain in a few sentences why the sky is blue and sunsets are red.",
    "Write a Python function that returns the longest word of a text, with a docstring.",
    "Tom has 12 apples, gives a third to Ann and buys 5 more. How many has he now? Think step by step.",
    "Write the beginning of a story about a lighthouse keeper who finds a letter.",
)


@dataclass(frozen=True)
class Costs:
    """Passes of the target by width, a guess, and reading one token more, in passes of one token."""

    widths: dict[int, float]
    guess: float
    catch_up: float

    def factor(self, draft_len: int, alpha: float) -> float:
        only = {1: 1.0, draft_len + 1: self.widths[draft_len + 1]}  # the engine does not pad
        return factor_at(draft_len, alpha, self.guess, only, self.catch_up)


class Pair:
    """A target and its copy, with the prompts they are measured on."""

    def __init__(
        self, target: LlamaModel, draft: LlamaModel, temperature: float, tokens: int, clock: Clock
    ) -> None:
        self.target, self.draft, self.clock = target, draft, clock
        self.temperature, self.tokens = temperature, tokens
        template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
        self.prompts = [target.vocab.tokenize(template.format(q), special=True) for q in QUESTIONS]

    def decode(self, prompt: Sequence[int], draft_len: int, seed: int) -> list[Step]:
        """The steps of one answer from fresh caches; reading the prompt is in none of them."""
        sampler = Sampler(Sampling(temperature=self.temperature, seed=seed))
        drafter = ModelDrafter("draft", self.draft, sampler, self.target.n_vocab, self.target.vocab.is_end)
        sources = (Source(drafter, draft_len),) if draft_len else ()
        for model in (self.target, self.draft):
            model.rewind(0)
            model.eval(prompt[:-1], rows=0)
        generator = Generator(
            self.target, sampler, self.target.vocab.is_end, Fixed(sources), clock=self.clock
        )
        return list(generator.generate(prompt, self.tokens))

    def costs(self, repeats: int = 7) -> Costs:
        """Passes at the length the answers have half-way, all widths of both models in turn.

        Timed is the second of two alike: in a run, too, a model's passes are alike.
        """
        context = [*self.prompts[0], *range(1000, 1000 + self.tokens // 2)]
        jobs = [(self.target, n, n) for n in range(1, max(LENGTHS) + 2)]
        jobs += [(self.draft, 1, 1), (self.draft, 2, 1)]
        seconds: list[list[float]] = [[] for _ in jobs]
        for model in (self.target, self.draft):
            model.rewind(0)
            model.eval(context, rows=0)
        for _ in range(repeats):
            for (model, n, rows), found in zip(jobs, seconds, strict=True):
                for _ in range(2):
                    start = self.clock()
                    model.eval(range(2000, 2000 + n), rows=rows)
                    elapsed = self.clock() - start
                    model.rewind(len(context))
                found.append(elapsed)
        *target, one, two = (statistics.median(found) for found in seconds)
        widths = {n: cost / target[0] for n, cost in enumerate(target, 1)}
        return Costs(widths, one / target[0], (two - one) / target[0])

    def acceptance(self) -> float:
        """Accepted over judged guesses at the longest length; those behind a wrong one are not judged."""
        steps = [s for i, p in enumerate(self.prompts) for s in self.decode(p, max(LENGTHS), 1000 + i)]
        accepted = sum(step.accepted for step in steps)
        return accepted / (accepted + sum(step.accepted < step.drafted for step in steps))

    def factors(self) -> dict[int, float]:
        """Plain seconds a token over those with each draft length."""
        seconds, tokens = dict.fromkeys((0, *LENGTHS), 0.0), dict.fromkeys((0, *LENGTHS), 0)
        for i, prompt in enumerate(self.prompts):
            for k in seconds:
                for step in self.decode(prompt, k, i):
                    seconds[k] += step.seconds_draft + step.seconds_verify + step.seconds_host
                    tokens[k] += len(step.tokens)
        return {k: seconds[0] / tokens[0] * tokens[k] / seconds[k] for k in LENGTHS}


def report(name: str, pair: Pair, bits: float, rounds: int) -> list[float]:
    """Print a pair's lines; the errors of the expectations from measured acceptance."""
    load = os.getloadavg()[0]
    alpha, table = pair.acceptance(), copy_acceptance(bits, PARAMETERS, pair.temperature)
    found = [(pair.costs(), pair.factors()) for _ in range(rounds)]
    costs = [costs for costs, _ in found]
    widths = " ".join(f"{statistics.median(c.widths[n] for c in costs):.2f}" for n in costs[0].widths)
    print(
        f"\n{name}, T={pair.temperature:g}: acceptance {alpha:.3f} (by table {table:.3f}), a guess costs "
        f"{statistics.median(c.guess for c in costs):.2f}, T(n)/T(1) {widths}, "
        f"load {load:.1f} to {os.getloadavg()[0]:.1f}"
    )
    errors = []
    for k in LENGTHS:
        real = [factors[k] for _, factors in found]
        expected = statistics.median(c.factor(k, alpha) for c in costs)
        error, by_table = (
            statistics.median(c.factor(k, a) / factors[k] - 1 for c, factors in found) for a in (alpha, table)
        )
        errors.append(error)
        print(
            f"  length {k}: expected {expected:.2f}, real {statistics.median(real):.2f} "
            f"({min(real):.2f}-{max(real):.2f}), "
            f"error {100 * error:+.1f} %; by table {100 * by_table:+.1f} %",
            flush=True,
        )
    return errors


def make(source: Path, kind: str, folder: Path) -> Path:
    """A copy of the packaged model; "q4_1" is the model itself, "f16" one that `quantize` has no use for."""
    path = folder / f"{kind}.gguf"
    if kind == "q4_1":
        return source
    if kind in FTYPES:
        return quantize(source, path, kind, threads=1)
    params = api.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = api.LLAMA_FTYPE_MOSTLY_F16, True
    assert api.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(params)) == 0
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", nargs="+", default=["f16", "q8_0", "q4_1"])
    parser.add_argument("--drafts", nargs="+", default=["q4_0", "q3_k", "q2_k"])
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--cpu-time", action="store_true", help="count CPU time: for a busy machine")
    args = parser.parse_args()
    source = packaged_model()
    assert source is not None, "install the demo extra: scripts/test does"
    options = LoadOptions(n_ctx=512, threads=1)
    clock = time.process_time if args.cpu_time else time.perf_counter
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.targets:
            target_path = make(source, kind, Path(folder))
            for draft_kind in args.drafts:
                bits = planned_size(source, draft_kind).bits
                draft_path = make(source, draft_kind, Path(folder))
                with LlamaModel(target_path, options) as target, LlamaModel(draft_path, options) as draft:
                    for temperature in args.temperatures:
                        pair = Pair(target, draft, temperature, args.tokens, clock)
                        name = f"{kind} <- {draft_kind} ({bits:.2f} bits)"
                        errors += report(name, pair, bits, args.rounds)
    worst = max(map(abs, errors))
    print(f"\n{'ok  ' if worst <= 0.15 else 'MISS'} largest error {100 * worst:.1f} %, at most 15 %")


if __name__ == "__main__":
    main()
