"""When may two texts of one model differ? Only at a near tie, and this says how near.

Passes of different widths use different kernels, so logits differ in their last bits. A first difference is
excused when, at that place, the plain choice and the other one were closer than the tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localspec.engine.sampling import Sampler, gumbel
from localspec.engine.types import Logits, Model


def gap(sampler: Sampler, row: Logits, position: int, plain: int, other: int) -> float:
    """By how many logits `plain` beats `other` at `position` given the plain row; 0 for an edge of the chain.

    A token just outside top-k, top-p or min-p counts by its distance to the last one inside.
    """
    temperature = sampler.sampling.temperature
    if temperature == 0.0:
        return float(row[plain] - row[other])
    inside = sampler.dist(row, ()).ids
    outside = [float(row[inside].min() - row[token]) for token in (plain, other) if token not in inside]
    if outside:
        return max(0.0, *outside)
    ids = np.array([plain, other])
    score = row[ids].astype(float) + temperature * gumbel(sampler.sampling.seed, position, ids)
    return float(score[0] - score[1])


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Where two texts part, None if one begins the other."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


def divergence(
    model: Model, sampler: Sampler, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int]
) -> float | None:
    """The gap at the first difference of two continuations of `prompt`, None if there is none.

    The plain row is computed as plain decoding computes it: the prompt at once, then token by token.
    """
    place = first_difference(plain, other)
    if place is None:
        return None
    context = [*prompt, *plain[:place]]
    model.rewind(0)
    model.eval(prompt[:-1], rows=0)
    row = model.eval(prompt[-1:])[0]
    for token in plain[:place]:
        row = model.eval([token])[0]
    return gap(sampler, row, len(context), plain[place], other[place])
