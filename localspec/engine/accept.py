"""Which guesses the target keeps, and what it says instead.

Two rules, both exactly the target's law. *Coupled*: the target makes its own choice at every position and
keeps the guesses that equal it; text does not depend on the draft. *Rejection*: block verification (Sun et
al., arXiv 2403.10444, ICLR 2025), which keeps the most guesses on average of all rules that see one draft;
text depends on the draft. Knows nothing of models: rows and randomness come in as functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from localspec.engine.types import Dist


class Verdict(NamedTuple):
    """`tokens` to emit, of which the first `accepted` are guesses of the draft."""

    tokens: list[int]
    accepted: int


class Dice(Protocol):
    """Independent randomness; the tests enumerate it."""

    def flip(self, probability: Any) -> bool: ...

    def draw(self, dist: Dist) -> int: ...


def match(draft: Sequence[int], choose: Callable[[int], int], is_end: Callable[[int], bool]) -> Verdict:
    """Coupled acceptance: keep guesses while the target's own choice equals them.

    `choose(i)` is the target's token after the first i guesses; it is asked left to right and never past
    the first difference, so a stateful chooser sees exactly the tokens that are emitted. Ends after an end
    of turn; when every guess is kept, one bonus token follows.
    """
    tokens: list[int] = []
    for i in range(len(draft) + 1):
        token = choose(i)
        tokens.append(token)
        if i == len(draft) or token != draft[i]:
            return Verdict(tokens, i)
        if is_end(token):
            return Verdict(tokens, i + 1)
    raise AssertionError("unreachable")


def block(
    draft: Sequence[int],
    guess: Sequence[Dist],
    target: Sequence[Dist],
    dice: Dice,
    is_end: Callable[[int], bool],
) -> Verdict:
    """Rejection acceptance by block verification (algorithm 2 of the paper).

    `draft[i]` was drawn from `guess[i]`; `target[i]` is the target's law at the same place, `target[-1]` the
    law after the whole draft: len(target) == len(draft) + 1. A draft contains an end of turn only last.
    """
    ratio: Any = 1
    kept, ratio_kept = 0, ratio
    for i, token in enumerate(draft):
        here = np.array([token])
        ratio = min(1, ratio * target[i].at(here)[0] / guess[i].at(here)[0])
        if i + 1 == len(draft):
            chance = ratio
        else:
            excess = _excess(target[i + 1], guess[i + 1], ratio).sum()
            rest = excess + 1 - ratio
            chance = excess / rest if rest > 0 else 1
        if dice.flip(chance):  # the last success counts: no early exit
            kept, ratio_kept = i + 1, ratio
    tokens = list(draft[:kept])
    if kept and is_end(tokens[-1]):
        return Verdict(tokens, kept)
    law = target[kept] if kept == len(draft) else residual(target[kept], guess[kept], ratio_kept)
    return Verdict([*tokens, dice.draw(law)], kept)


def residual(target: Dist, guess: Dist, ratio: Any = 1) -> Dist:
    """The law after a rejection: the positive part of ratio * target - guess, normalised.

    When rounding leaves nothing (target and guess agree to 1e-12) the target's own law is right.
    """
    excess = _excess(target, guess, ratio)
    total = excess.sum()
    if total < 1e-12:
        return target
    positive = excess > 0
    return Dist(target.ids[positive], excess[positive] / total)


def _excess(target: Dist, guess: Dist, ratio: Any) -> Any:
    weights = ratio * target.probs - guess.at(target.ids)
    return np.where(weights > 0, weights, 0 * weights)
