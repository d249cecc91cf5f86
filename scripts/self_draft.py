"""Compares what localspec expects of a self-draft with what it brings, on copies of the packaged 135M model.

    .venv/bin/python scripts/self_draft.py [--targets f16 q8_0 q4_1] [--drafts q4_0 q3_k q2_k]

For each pair and temperature: costs of the passes (interleaved, medians), acceptance over a few prompts, from
both the expected factor of fixed draft lengths, and the real factor: the same prompts decoded plainly and
with each length, interleaved, fresh caches, medians of the rounds. "by table" is the same from `pairs`'
acceptance table instead of the measured one: what a user is told before a copy exists. One thread.

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
from localspec.engine.generate import Generator
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
    """Medians in seconds: passes of the target by width, and of the draft over one and two tokens."""

    target: dict[int, float]
    draft: dict[int, float]

    def widths(self) -> dict[int, float]:
        return {n: seconds / self.target[1] for n, seconds in self.target.items()}

    @property
    def guess(self) -> float:
        return self.draft[1] / self.target[1]

    @property
    def catch_up(self) -> float:
        return (self.draft[2] - self.draft[1]) / self.target[1]


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
        generator = Generator(self.target, sampler, self.target.vocab.is_end, sources, clock=self.clock)
        return list(generator.generate(prompt, self.tokens))

    def costs(self, repeats: int) -> Costs:
        """Passes at the length the answers have half-way, all widths of both models in turn."""
        context = [*self.prompts[0], *range(1000, 1000 + self.tokens // 2)]
        jobs = [(self.target, n) for n in range(1, max(LENGTHS) + 2)] + [(self.draft, 1), (self.draft, 2)]
        seconds: dict[tuple[bool, int], list[float]] = {}
        for model in (self.target, self.draft):
            model.rewind(0)
            model.eval(context, rows=0)
        for _ in range(repeats):
            for model, n in jobs:
                start = self.clock()
                model.eval(range(2000, 2000 + n), rows=n)
                seconds.setdefault((model is self.target, n), []).append(self.clock() - start)
                model.rewind(len(context))
        medians = {job: statistics.median(values) for job, values in seconds.items()}
        return Costs(
            *({n: s for (is_target, n), s in medians.items() if is_target is kind} for kind in (True, False))
        )

    def acceptance(self) -> float:
        """Accepted over judged guesses at the longest length; those behind a wrong one are not judged."""
        steps = [s for i, p in enumerate(self.prompts) for s in self.decode(p, max(LENGTHS), 1000 + i)]
        accepted = sum(step.accepted for step in steps)
        return accepted / (accepted + sum(step.accepted < step.drafted for step in steps))

    def factors(self, rounds: int) -> dict[int, list[float]]:
        """Plain seconds a token over those with each draft length, one ratio a round."""
        found: dict[int, list[float]] = {k: [] for k in LENGTHS}
        for _ in range(rounds):
            seconds, tokens = dict.fromkeys((0, *LENGTHS), 0.0), dict.fromkeys((0, *LENGTHS), 0)
            for i, prompt in enumerate(self.prompts):
                for k in (0, *LENGTHS):
                    for step in self.decode(prompt, k, i):
                        seconds[k] += step.seconds_draft + step.seconds_verify + step.seconds_host
                        tokens[k] += len(step.tokens)
            for k in LENGTHS:
                found[k].append(seconds[0] / tokens[0] * tokens[k] / seconds[k])
        return found


def report(name: str, pair: Pair, bits: float, rounds: int) -> float:
    """Print a pair's lines; the largest error of the expectation from measured acceptance."""
    before = os.getloadavg()[0]
    costs, alpha = pair.costs(4 * rounds + 5), pair.acceptance()
    factors = pair.factors(rounds)
    table = copy_acceptance(bits, PARAMETERS, pair.temperature)
    widths = costs.widths()
    print(
        f"\n{name}, T={pair.temperature:g}: acceptance {alpha:.3f} (by table {table:.3f}), a guess costs "
        f"{costs.guess:.2f}, T(n)/T(1) {' '.join(f'{w:.2f}' for w in widths.values())}, "
        f"load {before:.1f} to {os.getloadavg()[0]:.1f}"
    )
    errors = []
    for k in LENGTHS:
        only = {1: 1.0, k + 1: widths[k + 1]}  # the engine does not pad
        expected, by_table = (factor_at(k, a, costs.guess, only, costs.catch_up) for a in (alpha, table))
        real = statistics.median(factors[k])
        errors.append(abs(expected / real - 1))
        spread = f"{min(factors[k]):.2f}-{max(factors[k]):.2f}"
        print(
            f"  length {k}: expected {expected:.2f}, real {real:.2f} ({spread}), "
            f"error {100 * (expected / real - 1):+.1f} %; "
            f"by table {by_table:.2f}, {100 * (by_table / real - 1):+.1f} %",
            flush=True,
        )
    return max(errors)


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
                        errors.append(report(name, pair, bits, args.rounds))
    held = max(errors) <= 0.15
    print(f"\n{'ok  ' if held else 'MISS'} largest error {100 * max(errors):.1f} %, at most 15 %")


if __name__ == "__main__":
    main()
