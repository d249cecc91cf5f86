"""Does rejection keep the target's law? Tests what `accept.block` makes of real laws against that law."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from localspec.engine import accept
from localspec.engine.sampling import RandomDice, Sampler
from localspec.engine.types import Dist, Drafter, Model

DRAWS = 2000
LEAST_EXPECTED = 5.0
"""Draws a cell of a chi-square test must expect (Cochran's rule); rarer tokens share one."""


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """Pearson's test of `draws` first tokens against the target's law; `p`: the chance of worse by luck."""

    statistic: float
    degrees: int
    p: float
    draws: int

    def as_dict(self) -> dict[str, Any]:
        statistic = self.statistic if math.isfinite(self.statistic) else None
        return {"statistic": statistic, "degrees": self.degrees, "p": self.p, "draws": self.draws}


def check_laws(
    model: Model,
    sampler: Sampler,
    drafter: Drafter,
    context: Sequence[int],
    n_prompt: int,
    is_end: Callable[[int], bool],
    *,
    places: int = 3,
    limit: int = 4,
    draws: int = DRAWS,
) -> list[ChiSquare]:
    """Test block verification at evenly spread places of a text behind its first `n_prompt` tokens."""
    tests = []
    step = max(1, (len(context) - n_prompt) // places)
    for i, length in enumerate(range(n_prompt, len(context), step)[:places]):
        found = record_laws(model, sampler, drafter, context[:length], limit)
        if found:
            tests.append(chi_square(*found, is_end, RandomDice(sampler.sampling.seed + i), draws))
    return tests


def record_laws(
    model: Model, sampler: Sampler, drafter: Drafter, context: Sequence[int], limit: int
) -> tuple[list[Dist], list[Dist]] | None:
    """The laws of `drafter`'s guesses behind `context`, and the target's at the same places and one more.

    None if there is no guess, or none that was drawn.
    """
    drafter.begin(context)
    limit = min(limit, model.n_ctx - len(context))
    guess = drafter.propose(context, limit, lambda _: True) if limit > 0 else None
    if guess is None or not guess.tokens or guess.dists is None:
        return None
    model.rewind(0)
    model.eval(context[:-1], rows=0)
    rows = model.eval([context[-1], *guess.tokens], rows=len(guess.tokens) + 1)
    text = [*context, *guess.tokens]
    target = [sampler.dist(row, text[: len(context) + i]) for i, row in enumerate(rows)]
    return list(guess.dists), target


def chi_square(
    guess: Sequence[Dist],
    target: Sequence[Dist],
    is_end: Callable[[int], bool],
    dice: accept.Dice,
    draws: int = DRAWS,
) -> ChiSquare:
    """Draw guesses from `guess`, let `accept.block` judge them, and test the first token against target[0].

    len(target) == len(guess) + 1. The laws recorded on one path serve for every path, as if neither model
    looked at its context: the rule must give the target's law for any pair of models, so for this one too.
    """
    seen: Counter[int] = Counter()
    for _ in range(draws):
        draft: list[int] = []
        for law in guess:
            draft.append(dice.draw(law))
            if is_end(draft[-1]):
                break
        n = len(draft)
        seen[accept.block(draft, guess[:n], target[: n + 1], dice, is_end).tokens[0]] += 1
    return _pearson(seen, target[0], draws)


def chi_square_tail(statistic: float, degrees: int) -> float:
    """The chance that a chi-square variable exceeds `statistic` (Wilson and Hilferty 1931)."""
    if degrees == 0 or math.isinf(statistic):
        return 0.0 if math.isinf(statistic) else 1.0
    spread = 2 / (9 * degrees)
    z = ((statistic / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return math.erfc(z / math.sqrt(2)) / 2


def _pearson(seen: Counter[int], law: Dist, draws: int) -> ChiSquare:
    if seen.keys() - set(law.ids.tolist()):  # a token the target never says
        return ChiSquare(math.inf, len(law.ids) - 1, 0.0, draws)
    expected = law.probs * draws
    counts = np.array([seen[token] for token in law.ids.tolist()], dtype=np.float64)
    often = expected >= LEAST_EXPECTED
    cells = np.append(expected[often], expected[~often].sum())
    hits = np.append(counts[often], counts[~often].sum())
    if cells[-1] == 0.0:
        cells, hits = cells[:-1], hits[:-1]
    statistic = float(((hits - cells) ** 2 / cells).sum())
    return ChiSquare(statistic, len(cells) - 1, chi_square_tail(statistic, len(cells) - 1), draws)
