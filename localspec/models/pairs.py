"""Which draft suits which target: the vocabulary gate, and how much faster a draft would make it.

A draft may guess only if its ids mean what the target's mean. llama.cpp's own rule: same kind, BOS, EOS and
flags, sizes within 128, identical texts from id 5 on (the first few often differ in name only).
What it gains follows from how often it is right and what its passes and the target's wider ones cost. All
costs are in passes of the target over one token; *widths* maps n to the cost of a pass over n tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Protocol

from localspec.errors import VocabularyError

SIZE_DIFFERENCE = 128
FIRST_COMPARED = 5
WORTH_OFFERING = 1.1
"""Least expected factor of a draft that is offered unasked: an expectation is good to 15 %."""

NOMINAL_BITS = {"q4_0": 4.65, "q4_k": 4.85, "q3_k": 4.0, "q2_k": 3.2}
"""Kinds of copies to offer, with their bits per weight while `llama.quantize.planned_size` was not asked."""

COPY_ERROR = ((3.2, 0.29), (3.65, 0.21), (4.0, 0.14), (4.65, 0.11), (5.7, 0.05), (6.6, 0.04), (8.5, 0.023))
"""Bits per weight of a low-bit copy -> how often its greedy choice is not its source's, for 8e9 parameters.

Q2_K, Q4_K_M, Q6_K and Q8_0 of Llama 3 8B on Wikitext, and from the divergence of the others by the same
ratio (llama.cpp, tools/perplexity/README.md).
"""

TYPICAL_WIDTHS = {
    "cpu 16": {1: 1.0, 2: 1.5, 3: 1.71, 4: 2.03, 5: 2.04, 6: 2.21, 7: 2.7, 8: 3.56, 16: 4.35},
    "cpu 8": {1: 1.0, 2: 3.04, 3: 3.85, 4: 4.34, 5: 5.41, 6: 5.67, 8: 5.68, 16: 7.14},
    "cpu 4": {1: 1.0, 2: 1.97, 3: 2.69, 4: 2.78, 5: 3.88, 8: 4.02, 16: 6.2},
    "gpu": {1: 1.0, 2: 1.04, 3: 1.08, 4: 1.12, 5: 1.16, 6: 1.2, 7: 1.24, 8: 1.28, 16: 2.0},
    "igpu": {1: 1.0, 2: 1.8, 3: 2.4, 4: 1.7, 5: 1.85, 6: 2.0, 8: 2.3, 16: 3.0},
}
"""Widths by device and bits, until they are measured. CPU: measured with one thread; others assumed."""


class VocabularyFacts(Protocol):
    """What the gate looks at; `llama.vocab.Vocab` has it."""

    @property
    def n_tokens(self) -> int: ...
    @property
    def kind(self) -> int: ...
    @property
    def bos(self) -> int: ...
    @property
    def eos(self) -> int: ...
    @property
    def adds_bos(self) -> bool: ...
    @property
    def adds_eos(self) -> bool: ...
    def text(self, token: int) -> str: ...


def check_vocabulary(target: VocabularyFacts, draft: VocabularyFacts) -> None:
    """Raise VocabularyError, with the first differences, unless `draft` may guess for `target`."""
    differences = _differences(target, draft)
    if differences:
        raise VocabularyError(
            "the draft speaks another vocabulary: " + "; ".join(differences),
            "take a draft of the target's family, or --draft ngram",
        )


def _differences(target: VocabularyFacts, draft: VocabularyFacts) -> list[str]:
    facts = ("kind", "bos", "eos", "adds_bos", "adds_eos")
    different = [
        f"{fact} is {getattr(target, fact)} in the target, {getattr(draft, fact)} in the draft"
        for fact in facts
        if getattr(target, fact) != getattr(draft, fact)
    ]
    if abs(target.n_tokens - draft.n_tokens) > SIZE_DIFFERENCE:
        different.append(f"{target.n_tokens} tokens against {draft.n_tokens}")
    common = range(FIRST_COMPARED, min(target.n_tokens, draft.n_tokens))
    unequal = (i for i in common if target.text(i) != draft.text(i))
    different += [f"id {i} is {target.text(i)!r} against {draft.text(i)!r}" for i in islice(unequal, 3)]
    return different


def typical_widths(device_kind: str, bits: float) -> Mapping[int, float]:
    """Costs of a target's wider passes on a kind of `Device`, as a guess until they are measured."""
    if device_kind in TYPICAL_WIDTHS:
        return TYPICAL_WIDTHS[device_kind]
    return TYPICAL_WIDTHS["cpu 16" if bits > 12 else "cpu 8" if bits > 7 else "cpu 4"]


@dataclass(frozen=True, slots=True)
class Expectation:
    """Speed over plain decoding at the best draft length; length 0 and factor 1 where plain is best."""

    draft_len: int
    factor: float


def expected_factor(
    alpha: float, cost_draft: float, widths: Mapping[int, float], cost_catch_up: float = 0.0
) -> Expectation:
    """The best that a draft gains which is right with chance `alpha`, each guess on its own.

    `widths` holds 1 and every width that may be used; a pass may be padded to a cheaper wider one.
    `cost_draft`: a guess; `cost_catch_up`: what reading its own last guess too adds to the draft's next pass.
    """
    gains = {k: factor_at(k, alpha, cost_draft, widths, cost_catch_up) for k in range(1, max(widths))}
    best = max(gains, key=gains.__getitem__, default=0)
    return Expectation(best, gains[best]) if best and gains[best] > 1 else Expectation(0, 1.0)


def factor_at(
    draft_len: int, alpha: float, cost_draft: float, widths: Mapping[int, float], cost_catch_up: float = 0.0
) -> float:
    """Speed over plain decoding when each pass checks `draft_len` guesses (Leviathan et al. 2211.17192, 3.3).

    Example: alpha 0.8, cost_draft 0.25, widths {1: 1, 2: 1.1}, draft_len 1: 1.8 / (0.25 + 1.1) = 1.33.
    """
    tokens = sum(alpha**i for i in range(draft_len + 1))
    padded = min(cost for width, cost in widths.items() if width > draft_len)
    cost = draft_len * cost_draft + alpha**draft_len * cost_catch_up + padded
    return tokens * widths[1] / cost


def copy_acceptance(bits: float, n_parameters: int, temperature: float) -> float:
    """Chance that a copy of `bits` real bits per weight guesses its source's next token (coupled or greedy).

    Smaller models suffer more from few bits: the error of a Q4_0 copy is 0.11 at 8e9 parameters, 0.24 at
    1.35e8 (measured). It grows with temperature. Larger models than 8e9 are taken to be no better.
    """
    points = [(b, math.log(error)) for b, error in COPY_ERROR]
    logarithm = _interpolate(points, bits)
    logarithm += 0.3 * max(0.0, math.log(8e9 / n_parameters))
    return max(0.0, 1.0 - math.exp(logarithm) * (1 + 0.4 * min(temperature, 1.5)))


def _interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Piecewise linear through `points` in ascending x, the outer pieces going on beyond them."""
    pieces = list(pairwise(points))
    (x0, y0), (x1, y1) = next((piece for piece in pieces if x <= piece[1][0]), pieces[-1])
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


@dataclass(frozen=True, slots=True)
class SelfDraft:
    """A low-bit copy worth making: its kind (as `llama.quantize` has it) and what is expected of it."""

    kind: str
    bits: float
    acceptance: float
    expected: Expectation


def self_draft_offer(
    bits_target: float,
    n_parameters: int,
    copies: Mapping[str, float],
    widths: Mapping[int, float],
    *,
    temperature: float = 0.8,
    costs: Mapping[str, float] | None = None,
    least: float = WORTH_OFFERING,
) -> SelfDraft | None:
    """The copy that would speed its own source up most, None if none reaches a factor of `least`.

    `copies`: kind -> real bits per weight, or NOMINAL_BITS. `costs`: measured cost of a guess by kind; by
    default the share of the target's bytes that a token of the copy reads.
    """

    def rank(kind: str) -> tuple[float, float, SelfDraft]:
        cost = (costs or {}).get(kind, copies[kind] / bits_target)
        alpha = copy_acceptance(copies[kind], n_parameters, temperature)
        expected = expected_factor(alpha, cost, widths)
        at_one = factor_at(1, alpha, cost, widths)  # parts those that all lose
        return expected.factor, at_one, SelfDraft(kind, copies[kind], alpha, expected)

    best = max(map(rank, copies), key=lambda ranked: ranked[:2], default=None)
    return best[2] if best and best[0] >= least else None


def self_draft_path(folder: Path, source: Path, key: str, kind: str) -> Path:
    """Where in `folder` the `kind` copy of `source` belongs; `key` is the fingerprint of its content."""
    return folder / f"{source.stem}.{key[:16]}.{kind}.gguf"


def self_drafts(folder: Path, key: str) -> list[Path]:
    """The copies in `folder` of the model with this fingerprint, finished or not."""
    return sorted([*folder.glob(f"*.{key[:16]}.*.gguf"), *folder.glob(f"*.{key[:16]}.*.gguf.part")])


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a header tells of a model that might draft, or of the target. `bytes_read`: weights a token reads.

    `vocabulary` None: not known yet. `unfit`: why it can be nobody's draft ("a head", "recurrent"), or "".
    """

    name: str
    n_parameters: int
    bytes_read: int
    vocabulary: VocabularyFacts | None = field(default=None, repr=False)
    unfit: str = ""


@dataclass(frozen=True, slots=True)
class Pairing:
    """A candidate's place beside a target: whether it may draft (None: unknown), what it brings, and why."""

    candidate: Candidate
    fits: bool | None
    expected: Expectation
    why: str


def rank_drafts(
    target: Candidate, candidates: Iterable[Candidate], widths: Mapping[int, float], temperature: float = 0.8
) -> list[Pairing]:
    """`candidates` from the best draft for `target` to those that cannot be one: fit, gain, then size."""
    pairings = [_pairing(target, candidate, widths, temperature) for candidate in candidates]
    order = {True: 0, None: 1, False: 2}
    return sorted(
        pairings, key=lambda p: (order[p.fits], -p.expected.factor, p.candidate.bytes_read, p.candidate.name)
    )


def _pairing(
    target: Candidate, candidate: Candidate, widths: Mapping[int, float], temperature: float
) -> Pairing:
    nothing = Expectation(0, 1.0)
    if candidate.unfit:
        return Pairing(candidate, False, nothing, candidate.unfit)
    fits, why = None, "vocabulary unknown, "
    if target.vocabulary is not None and candidate.vocabulary is not None:
        differences = _differences(target.vocabulary, candidate.vocabulary)
        if differences:
            return Pairing(candidate, False, nothing, "another vocabulary: " + "; ".join(differences))
        fits, why = True, ""
    cost = candidate.bytes_read / target.bytes_read
    alpha = draft_acceptance(candidate.n_parameters / target.n_parameters, temperature)
    expected = expected_factor(alpha, cost, widths)
    why += f"reads {100 * cost:.0f} % of the target's bytes a token, about {expected.factor:.1f}x expected"
    return Pairing(candidate, fits, expected, why)


def draft_acceptance(size_ratio: float, temperature: float) -> float:
    """Chance that a smaller model of the same family guesses right, by its share of the target's parameters.

    A line through what Leviathan et al. (2211.17192, table 3) report for T5 and LaMDA: 0.59 at 1/1400 of the
    size, 0.74 at 1/14; 0.04 less at temperature 1. Real pairs scatter by 0.1 around it.
    """
    alpha = 0.84 + 0.08 * math.log10(min(1.0, size_ratio)) - 0.04 * min(temperature, 1.0)
    return min(0.95, max(0.05, alpha))
