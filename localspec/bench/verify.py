"""Does speculation change the text? Decode plainly and with guesses, and say what came of it.

Coupled mode promises the same text but for near ties of the kernels, so texts are compared, beside a control:
plain decoding at another width, which shows what the kernels alone do. Rejection mode promises the same law,
so draws are tested against it. Knows models through the `Model` protocol, and tokens, not text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from localspec.bench.certificate import About, Certificate, Comparison, Difference
from localspec.bench.laws import ChiSquare, check_laws
from localspec.engine import exactness
from localspec.engine.exactness import RowChange
from localspec.engine.generate import Generator
from localspec.engine.sampling import Sampler
from localspec.engine.stats import Tally
from localspec.engine.types import Drafter, Logits, Model, Sampling

CONTROL_WIDTH = 4
TEXTS_PROBED, WIDTH_PROBED = 4, 32
"""How many rows a tolerance comes from: few would miss the larger changes."""
Generate = Callable[[list[int]], list[int]]
"""From a prompt to the tokens that follow it."""


@dataclass(frozen=True, slots=True)
class Padded:
    """A model whose every pass is at least `width` tokens wide: plain decoding with another kernel."""

    inner: Model
    width: int

    @property
    def n_ctx(self) -> int:
        return self.inner.n_ctx - self.width

    @property
    def n_vocab(self) -> int:
        return self.inner.n_vocab

    @property
    def tokens(self) -> Sequence[int]:
        return self.inner.tokens

    def eval(self, tokens: Sequence[int], rows: int = 1) -> Logits:
        if rows == 0 or len(tokens) >= self.width:
            return self.inner.eval(tokens, rows)
        length = len(self.inner.tokens)
        padding = self.width - len(tokens)
        logits = self.inner.eval([*tokens, *[0] * padding], rows + padding)[:rows]
        self.inner.rewind(length + len(tokens))
        return logits

    def rewind(self, length: int) -> None:
        self.inner.rewind(length)


def run(
    target: Model,
    make_generator: Callable[[Sampler, bool], Generator],
    prompts: Sequence[Sequence[int]],
    samplings: Sequence[Sampling],
    max_tokens: int,
    about: About,
    *,
    make_drafter: Callable[[Sampler], Drafter] | None = None,
    widths: Sequence[int] = (),
    control_width: int = CONTROL_WIDTH,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Certificate:
    """Compare plain and speculative text of every prompt under every sampling.

    `make_generator(sampler, speculative)` makes the generators, on `target`. `make_drafter`: given in
    rejection mode only; its drafter draws its guesses from laws, and above temperature 0 laws are compared
    instead of texts. Near ties are told by a probe of the widths that passes had, and of `widths`. Where all
    of these are proven exact, no difference is excused.
    """
    comparisons: list[Comparison] = []
    laws: list[ChiSquare] = []
    record = _Record()
    for sampling in samplings:
        sampler = Sampler(sampling)
        for i, prompt in enumerate(prompts):
            on_progress(f"prompt {i + 1} of {len(prompts)} at temperature {sampling.temperature:g}")
            plain = make_generator(sampler, False)
            guessing = _texts(make_generator(sampler, True), max_tokens, record)
            if make_drafter and sampling.temperature > 0.0:
                context = [*prompt, *guessing(list(prompt))]
                drafter = make_drafter(sampler)
                laws += check_laws(target, sampler, drafter, context, len(prompt), plain.is_end)
                continue
            found = compare(
                target,
                sampler,
                plain.is_end,
                prompt,
                max_tokens,
                guessing,
                generate_plain=_texts(plain, max_tokens),
                control_width=control_width,
            )
            comparisons.append(replace(found, prompt=i + 1))
    on_progress("comparing passes of several widths")
    changes, allowed = _probe(target, {*widths, *record.widths} - {1}, record.texts)
    judged = tuple(replace(comparison, tolerance=allowed) for comparison in comparisons)
    return Certificate(about, changes, judged, tuple(laws), record.work)


def _probe(
    target: Model, widths: set[int], texts: Sequence[Sequence[int]]
) -> tuple[dict[int, RowChange], float]:
    """The probe on the longest of `texts`, and the tolerance: 0, or from wide passes on more texts."""
    target.rewind(0)
    longest = sorted(texts, key=len, reverse=True)[:TEXTS_PROBED]
    changes = exactness.probe(target, widths, filler=longest[0] if longest else ())
    seen = [*changes.values()]
    if any(change.changed for change in seen):
        for text in longest:
            seen += exactness.probe(target, [WIDTH_PROBED], filler=text).values()
    return changes, exactness.tolerance(seen)


def compare(
    model: Model,
    sampler: Sampler,
    is_end: Callable[[int], bool],
    prompt: Sequence[int],
    max_tokens: int,
    generate_speculative: Generate,
    *,
    generate_plain: Generate | None = None,
    tolerance: float = 0.0,
    control_width: int = CONTROL_WIDTH,
) -> Comparison:
    """Decode `prompt` plainly, with guesses, and plainly at `control_width`; each from an empty cache.

    `generate_speculative` uses `model`; `generate_plain` is by default plain decoding with `sampler`.
    """
    plainly = generate_plain or _texts(Generator(model, sampler, is_end), max_tokens)
    padded = _texts(Generator(Padded(model, control_width), sampler, is_end), max_tokens)
    texts = []
    for generate in (plainly, generate_speculative, padded):
        model.rewind(0)
        texts.append(generate(list(prompt)))
    plain, speculative, control = texts
    room = model.n_ctx - control_width + 1 - len(prompt)  # padding needs its part of the context
    return Comparison(
        1,
        sampler.sampling,
        len(plain),
        _difference(model, sampler, prompt, plain, speculative),
        _difference(model, sampler, prompt, plain[: max(0, room)], control),
        tolerance,
    )


@dataclass(slots=True)
class _Record:
    """What speculative runs did: their passes, the widths of these, and the texts with their prompts."""

    work: Tally = field(default_factory=Tally)
    widths: set[int] = field(default_factory=set)
    texts: list[list[int]] = field(default_factory=list)


def _texts(generator: Generator, max_tokens: int, record: _Record | None = None) -> Generate:
    """`generator` as a function, which tells `record` what it did."""

    def generate(prompt: list[int]) -> list[int]:
        text: list[int] = []
        for step in generator.generate(prompt, max_tokens):
            text += step.tokens
            if record:
                record.work.add(step)
                record.widths.add(step.width)
        if record:
            record.texts.append([*prompt, *text])
        return text

    return generate


def _difference(
    model: Model, sampler: Sampler, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int]
) -> Difference | None:
    gap = exactness.divergence(model, sampler, prompt, plain, other)
    if gap is None:
        return None if len(plain) == len(other) else Difference(min(len(plain), len(other)), math.inf)
    place = exactness.first_difference(plain, other)
    assert place is not None
    return Difference(place, gap)
