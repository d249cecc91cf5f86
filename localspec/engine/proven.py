"""Exact decoding: a cache type under which several widths are proven, and a policy that keeps to them.

A pass whose kernels sum in another order than a pass over one token may change the text. Here a model is
tried under one setup after another until texts read at several widths give the logits of single passes, and
`ProvenOnly` lets a policy use no other widths. Knows models through the `Model` protocol, and no files.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from localspec.engine.cost import LADDER
from localspec.engine.exactness import N_CACHED, Setup
from localspec.engine.types import Attempt, Logits, Model, Policy, Proposal, Step

WIDTHS = tuple(n for n in LADDER if n <= 32)
"""What is tried; wider passes seldom pay, and single ones to compare them with take their time."""
ROWS = 48
"""Logits that are compared for each width, as far as whole passes go: where the sums of attention differ, two
rows in three may still be the same, so that the two rows of one pass over two tokens would prove nothing."""
LEAST_CONTEXT = N_CACHED + ROWS
"""Tokens a context must hold for a proof: a shorter one would not see what long texts meet."""
PLAIN = (1,)


@dataclass(frozen=True, slots=True)
class Proof:
    """The widths that compute what single passes do: `deep` with `N_CACHED` tokens in the cache, which counts
    at any length, and `shallow` with none. Where both are the same, another cache type cannot do better."""

    deep: tuple[int, ...] = PLAIN
    shallow: tuple[int, ...] = PLAIN

    @property
    def final(self) -> bool:
        return self.deep in (WIDTHS, self.shallow)


def can_prove(model: Model) -> bool:
    """Whether the context of `model` holds what a proof takes."""
    return model.n_ctx >= LEAST_CONTEXT


def prove(model: Model) -> Proof:
    """Try all widths on `model`, which `can_prove` and whose cache is empty; it is empty again afterwards.

    Takes two times 48 single passes, what as many tokens take at each width, and a prefill.
    """
    shallow = exact_widths(model, WIDTHS, 0)
    return Proof(exact_widths(model, shallow, N_CACHED) if len(shallow) > 1 else PLAIN, shallow)


def exact_widths(model: Model, widths: Sequence[int], n_cached: int) -> tuple[int, ...]:
    """Those of `widths` at which a text is read with the logits of single passes, bit for bit.

    `n_cached` arbitrary tokens stand before it.
    """
    ids = random.Random(0)
    filler, text = ([ids.randrange(model.n_vocab) for _ in range(n)] for n in (n_cached, ROWS))
    try:
        model.eval(filler, rows=0)
        singles = [model.eval([token])[0].copy() for token in text]
        return tuple(n for n in widths if n == 1 or _same(model, singles, text, n, n_cached))
    finally:
        model.rewind(0)


def _same(model: Model, singles: Sequence[Logits], text: Sequence[int], width: int, n_cached: int) -> bool:
    """Whether passes over `width` tokens, one behind another, give `singles`."""
    model.rewind(n_cached)
    model.eval((), rows=0)  # what a cut emptied is read again here, and not within the pass
    for start in range(0, len(text) - width + 1, width):
        rows = model.eval(text[start : start + width], rows=width)
        for single, row in zip(singles[start:], rows, strict=False):
            if not np.array_equal(single.view(np.int32), row.view(np.int32)):
                return False
    return True


def seconds_to_prove(costs: dict[int, float]) -> float:
    """What `prove` will take by the costs of passes; infinite where they do not say."""
    wide = costs.get(WIDTHS[-1])
    if wide is None:
        return float("inf")
    passes = sum(costs.get(n, wide) * (ROWS // n) for n in WIDTHS)
    return N_CACHED * wide / WIDTHS[-1] + 2 * passes


def search(
    setups: Iterable[Setup],
    known: Callable[[Setup], Proof | None],
    open_model: Callable[[Setup], AbstractContextManager[Model | None]],
    on_proof: Callable[[Setup, Proof], None],
) -> tuple[Setup, tuple[int, ...]] | None:
    """The first setup under which all widths are exact, else the one with the most of them.

    `open_model` gives None where a setup cannot be; `on_proof` hears what was not `known`. None: under every
    setup only a pass over one token is exact.
    """
    best: tuple[Setup, tuple[int, ...]] | None = None
    for setup in setups:
        proof = known(setup)
        if proof is None:
            with open_model(setup) as model:
                if model is None:
                    continue
                proof = prove(model)
            on_proof(setup, proof)
        if len(proof.deep) > len(best[1] if best else PLAIN):
            best = setup, proof.deep
        if proof.final:
            break
    return best


@dataclass(slots=True)
class ProvenOnly:
    """The policy `inner` with passes of `widths` only: guesses are padded up to one, or cut to the widest."""

    inner: Policy
    widths: Sequence[int]

    def begin(self, context: Sequence[int]) -> None:
        self.inner.begin(context)

    def draft(self, context: Sequence[int], room: int) -> Attempt:
        fitting = [n for n in self.widths if n <= room + 1] or list(PLAIN)
        most = fitting[-1] - 1
        attempt = self.inner.draft(context, most)
        guess = attempt.proposal
        dists = None if guess.dists is None else guess.dists[:most]
        cut = Proposal(guess.tokens[:most], guess.confidence[:most], dists)
        wanted = min(max(len(cut.tokens) + 1, attempt.width), fitting[-1])
        return attempt._replace(proposal=cut, width=next(n for n in fitting if n >= wanted))

    def plain(self, n_cached: int) -> float:
        return self.inner.plain(n_cached)

    def learn(self, step: Step, n_cached: int) -> None:
        self.inner.learn(step, n_cached)
