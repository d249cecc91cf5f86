"""Speculation changes nothing: every source, and every hostile one, gives the text of plain decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import tiny
from conftest import EXACT
from tables import AlwaysEnd, Empty, RandomGuesses, Repeats, TableModel, certain, hostile, plain_text
from virtual import READS_FREE, Timed

from localspec.bench.replay import VirtualClock
from localspec.bench.verify import Padded
from localspec.drafters import NAMED, ModelDrafter
from localspec.engine.cost import LADDER, DraftCost, PassCosts
from localspec.engine.exactness import divergence, first_difference
from localspec.engine.generate import Fixed, Generator
from localspec.engine.sampling import Sampler
from localspec.engine.schedule import Costly, Free, Scheduler
from localspec.engine.types import Drafter, Model, Policy, Proposal, Sampling, Sequential, Source
from localspec.llama.model import LlamaModel, LoadOptions

TEMPERATURES = (0.0, 0.3, 0.8, 1.5)
SEEDS = range(5)
LENGTH = 200
QUANTISED = LoadOptions(n_ctx=2048, threads=1, flash_attn="on")
"""One thread, flash attention, F16 cache: bit-identical at every width below 64 for Q4_0, Q4_1 and Q8_0
weights; a pass over 64 tokens computes attention in tiles."""


def never(_token: int) -> bool:
    return False


@dataclass
class Recited:
    """Guesses from a known text: right, all wrong (`shift`), or past the limit (`extra`)."""

    name: str
    text: Sequence[int]
    n_prompt: int
    n_vocab: int
    shift: int = 0
    extra: int = 0

    def begin(self, context: Sequence[int]) -> None: ...

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        place = len(context) - self.n_prompt
        tokens = self.text[place : place + limit + self.extra]
        return certain([(token + self.shift) % self.n_vocab for token in tokens])


def named_sources() -> list[Source]:
    """Every source of the registry, at several lengths."""
    return [Source(make(), length) for make in NAMED.values() for length in (1, 7, 31)]


def hostile_sources(plain: Sequence[int], prompt: Sequence[int], n_vocab: int, end: int) -> list[Source]:
    drafters: list[Drafter] = [
        Recited("always right", plain, len(prompt), n_vocab),
        Recited("always wrong", plain, len(prompt), n_vocab, shift=1),
        Recited("too long", plain, len(prompt), n_vocab, extra=9),
        AlwaysEnd(end),
        Empty(),
        Repeats(),
        RandomGuesses(n_vocab),
    ]
    return [Source(drafter, limit=6) for drafter in drafters]


EAGER = {n: 1.0 + 0.001 * (n - 1) for n in LADDER if n < 64}
"""Costs of passes that let the scheduler guess as much as it can."""
PADDING = {n: 1.0 + 0.02 * n + (0.5 if n % 4 else 0.0) for n in LADDER if n < 64}
"""Costs that let it pad: a pass over 3 tokens is dearer than one over 4."""


PERFECT = ("always-right", "too-long", "always right", "too long")


def scheduler(
    curve: Mapping[int, float], draft: Drafter, others: Sequence[Drafter], clock: VirtualClock
) -> Scheduler:
    """One that knows nothing yet, with every source of the registry, `others` and a draft model."""
    free = [Free(drafter) for drafter in (*(make() for make in NAMED.values()), *others)]
    costly = Costly(cast(Sequential, draft), DraftCost(0.001, READS_FREE))
    return Scheduler(
        PassCosts(curve, widths=tuple(curve)), free, [costly], clock, wakes=lambda token: token % 7 == 0
    )


def decode_scheduled(
    model: Model,
    sampler: Sampler,
    prompt: list[int],
    draft: Drafter,
    others: Sequence[Drafter],
    is_end: Callable[[int], bool],
    length: int = LENGTH,
) -> Iterator[tuple[str, list[int]]]:
    """(name, text) with the scheduler: where guesses cost nothing, and where passes are padded and no source
    is right so often that it leaves nothing to the others."""
    for name, curve in (("eager", EAGER), ("padding", PADDING)):
        clock = VirtualClock()
        if name == "padding":
            others = [drafter for drafter in others if drafter.name not in PERFECT]
        policy = scheduler(curve, draft, others, clock)
        yield name, decode(Timed(model, clock, curve), sampler, prompt, policy, is_end, length, clock)


def decode(
    model: Model,
    sampler: Sampler,
    prompt: list[int],
    policy: Policy | Sequence[Source],
    is_end: Callable[[int], bool],
    length: int = LENGTH,
    clock: Callable[[], float] = time.perf_counter,
) -> list[int]:
    model.rewind(0)
    policy = policy if isinstance(policy, Scheduler) else Fixed(cast(Sequence[Source], policy))
    generator = Generator(model, sampler, is_end, policy, clock=clock)
    text = [token for step in generator.generate(prompt, length) for token in step.tokens]
    in_cache = [*prompt, *text][:-1]
    assert list(model.tokens) == in_cache, "the cache ends exactly at the turn's end"
    return text


def samplers(**chain: float) -> Iterator[Sampler]:
    for temperature in TEMPERATURES:
        for seed in SEEDS:
            yield Sampler(Sampling(temperature=temperature, seed=seed, **chain))


@pytest.mark.parametrize("end_bias", [-30.0, 0.0])
@pytest.mark.parametrize("repeat_penalty", [1.0, 1.3])
def test_table_model_every_source(end_bias: float, repeat_penalty: float) -> None:
    target = TableModel(seed=1, n_vocab=40, n_ctx=250, order=3, end=5, end_bias=end_bias)
    for sampler in samplers(repeat_penalty=repeat_penalty):
        prompt = [1, 2, 3, 1, 2, 3, 1, 2]
        plain = plain_text(target, sampler, prompt, LENGTH)
        draft = TableModel(seed=2, n_vocab=40, n_ctx=250, order=3, near=target, spread=0.7, end=5)
        drafter = ModelDrafter("draft", draft, sampler, 40, target.is_end)
        sources = [
            *named_sources(),
            *(Source(drafter, length) for length in (4, 3)),
            *(Source(d, 6) for d in hostile(target, sampler)),
        ]
        for source in sources:
            text = decode(target, sampler, prompt, [source], target.is_end)
            assert text == plain, source.drafter.name
        others = hostile(target, sampler)
        for name, text in decode_scheduled(target, sampler, prompt, drafter, others, target.is_end):
            assert text == plain, name


@pytest.mark.parametrize("curve", [EAGER, PADDING, None], ids=["eager", "padding", "fixed"])
def test_sources_together_and_changing_turns(curve: Mapping[int, float] | None) -> None:
    """Several sources together, over a conversation whose context is cut back and goes elsewhere."""
    target = TableModel(seed=3, n_vocab=30, n_ctx=400, order=2, end=5, end_bias=-2.0)
    sampler = Sampler(Sampling(temperature=0.8, seed=4))
    draft = TableModel(seed=5, n_vocab=30, n_ctx=400, order=2, near=target, spread=0.5)
    drafter, clock = ModelDrafter("draft", draft, sampler, 30, target.is_end), VirtualClock()
    fixed = Fixed([Source(NAMED["ngram"](), 31), Source(drafter, 3)])
    policy = scheduler(curve, drafter, hostile(target, sampler)[1:], clock) if curve else fixed
    generator = Generator(Timed(target, clock, curve or EAGER), sampler, target.is_end, policy, clock=clock)
    context = [1, 2, 3]
    for keep, new in ((3, [7]), (9, [8, 8]), (2, [9]), (30, [4]), (30, [4])):
        context = [*context[:keep], *new]
        text = [token for step in generator.generate(context, 60) for token in step.tokens]
        assert text == plain_text(target, sampler, context, 60)
        context += text


@pytest.fixture(scope="module")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("lossless")
    f32 = tiny.write_llama(folder / "f32.gguf", end_bias=-20.0)
    return {
        "F32": f32,
        "Q8_0": tiny.quantize(f32, folder / "q8_0.gguf", "Q8_0"),
        "Q4_0": tiny.quantize(f32, folder / "q4_0.gguf", "Q4_0"),
    }


def compare_all(
    target: LlamaModel, draft: LlamaModel, prompt: list[int], sampler: Sampler, length: int = LENGTH
) -> Iterator[tuple[str, list[int], list[int]]]:
    """(source, plain text, text with it): the registry, the draft model, hostile ones, and the scheduler."""
    plain = decode(target, sampler, prompt, [], never, length)
    drafter = ModelDrafter("draft", draft, sampler, target.n_vocab, never)
    sources = [
        *named_sources(),
        Source(drafter, 4, 0.4),
        *hostile_sources(plain, prompt, target.n_vocab, target.vocab.eos),
    ]
    for source in sources:
        yield source.drafter.name, plain, decode(target, sampler, prompt, [source], never, length)
    others = [source.drafter for source in sources if isinstance(source.drafter, Recited | RandomGuesses)]
    if sampler.sampling.seed < 2:  # it has many ways in one run
        for name, text in decode_scheduled(target, sampler, prompt, drafter, others, never, length):
            yield name, plain, text


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_tiny_quantised_exactly(tiny_files: dict[str, Path], kind: str) -> None:
    """One thread, flash attention on: token for token, no excuse."""
    with (
        LlamaModel(tiny_files[kind], QUANTISED) as target,
        LlamaModel(tiny_files["Q4_0"], QUANTISED) as draft,
    ):
        prompt = target.vocab.tokenize("the cat and the dog and the cat and", special=False)
        for sampler in samplers():
            for name, plain, text in compare_all(target, draft, prompt, sampler):
                assert text == plain, (name, sampler.sampling)


def test_tiny_f32_but_for_rounding(tiny_files: dict[str, Path]) -> None:
    """F32 weights and cache, no flash attention: at most 1 token in 10,000 at a gap under 3e-5."""
    tokens = ties = 0
    with LlamaModel(tiny_files["F32"], EXACT) as target, LlamaModel(tiny_files["Q4_0"], EXACT) as draft:
        prompt = target.vocab.tokenize("the cat and the dog and the cat and", special=False)
        for sampler in samplers():
            for name, plain, text in compare_all(target, draft, prompt, sampler):
                tokens += len(text)
                if text != plain:
                    gap = divergence(target, sampler, prompt, plain, text)
                    assert gap is not None, name
                    assert gap < 3e-5, (name, sampler.sampling)
                    ties += 1
    assert tokens > 40_000
    assert ties <= tokens / 10_000


def real_prompt(model: LlamaModel) -> list[int]:
    text = "Repeat this list twice: hammer, saw, drill, level, chisel. Then say what a chisel is for."
    chat = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return model.vocab.tokenize(chat, special=True)


@pytest.mark.parametrize(
    ("temperature", "seeds", "length"),
    [
        (0.8, range(1), 24),
        *(pytest.param(t, range(1, 2), 60, marks=pytest.mark.slow) for t in TEMPERATURES),
    ],
)
def test_real_q8_0_exactly(
    real_copy: Callable[[str], Path], temperature: float, seeds: range, length: int
) -> None:
    """The real model at Q8_0, one thread, flash attention on: token for token."""
    with (
        LlamaModel(real_copy("Q8_0"), QUANTISED) as target,
        LlamaModel(real_copy("Q4_0"), QUANTISED) as draft,
    ):
        prompt = real_prompt(target)
        for seed in seeds:
            sampler = Sampler(Sampling(temperature=temperature, seed=seed))
            for name, plain, text in compare_all(target, draft, prompt, sampler, length):
                assert text == plain, (name, sampler.sampling)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "tolerance"), [("F16", 0.04), ("Q4_1", 0.75)])
def test_real_default_kernels(
    real_model: Path, real_copy: Callable[[str], Path], kind: str, tolerance: float
) -> None:
    """Default kernels: every divergence is a near tie, and there are no more than at another plain width."""
    path = real_model if kind == "Q4_1" else real_copy(kind)
    options = LoadOptions(n_ctx=1024, threads=1)
    diverged = control = 0
    with LlamaModel(path, options) as target, LlamaModel(real_copy("Q4_0"), options) as draft:
        prompt = real_prompt(target)
        for temperature in (0.0, 0.8):
            for seed in range(1):
                sampler = Sampler(Sampling(temperature=temperature, seed=seed))
                plain = decode(target, sampler, prompt, [], never, 120)
                padded = decode(Padded(target, 4), sampler, prompt, [], never, 120)
                control += 2 * (first_difference(plain, padded) is not None)
                drafter = ModelDrafter("draft", draft, sampler, target.n_vocab, never)
                for source in (Source(NAMED["ngram"](), 31), Source(drafter, 4, 0.4)):
                    text = decode(target, sampler, prompt, [source], never, 120)
                    gap = divergence(target, sampler, prompt, plain, text)
                    assert gap is None or gap <= tolerance, (source.drafter.name, sampler.sampling)
                    diverged += gap is not None
    assert diverged <= max(control, 1)
