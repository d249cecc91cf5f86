"""A smaller or lower-bit model of the same vocabulary as a source of guesses.

Sees its model through the `Model` protocol only. Keeps the model's cache in step lazily: the tokens that
another source or the target added are read when this source is next asked, and nothing is read twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from localspec.engine.accept import Dice
from localspec.engine.generate import common_prefix
from localspec.engine.sampling import Sampler, top
from localspec.engine.types import BadLogits, Dist, Logits, Model, Proposal


@dataclass(slots=True)
class ModelDrafter:
    """Guesses with `model`, choosing by the target's `sampler`.

    Coupled mode (`dice` None): the guess at a position uses the noise the target will use there, so the two
    agree whenever the laws allow it. Rejection mode: guesses are drawn with `dice` and carry their laws.
    Ids from `n_vocab` on (the target has fewer) are never guessed; ids the draft lacks are read as id 0.
    """

    name: str
    model: Model
    sampler: Sampler
    n_vocab: int
    is_end: Callable[[int], bool]
    dice: Dice | None = None
    _agreed: int = field(default=0, init=False)  # this many tokens of the cache are known to be the context's

    def begin(self, context: Sequence[int]) -> None:
        self._agreed = 0

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        limit = min(limit, self.model.n_ctx + 1 - len(context))
        if limit <= 0:
            return Proposal()
        tokens: list[int] = []
        confidence: list[float] = []
        dists: list[Dist] = []
        row = self._catch_up(context)
        while True:
            try:
                token, chance, dist = self._choose(row, context, tokens)
            except BadLogits:  # what was guessed so far stands
                break
            tokens.append(token)
            confidence.append(chance)
            dists.append(dist)
            if not go_on(chance) or len(tokens) == limit or self.is_end(token):
                break
            row = self._eval([token])
        return Proposal(tokens, confidence, dists if self.dice else None)

    def _choose(self, row: Logits, context: Sequence[int], drafted: list[int]) -> tuple[int, float, Dist]:
        position = len(context) + len(drafted)
        if self.sampler.sampling.temperature == 0.0 and not self.sampler.window:
            ids, logits = top(row, 10)
            best = int(ids[0])
            return best, 1.0 / float(np.exp(logits - logits[0]).sum()), Dist.point(best)
        window = self.sampler.window
        history = [*context[-window:], *drafted] if window else []
        dist = self.sampler.dist(row, history)
        token = self.dice.draw(dist) if self.dice else self.sampler.draw(dist, position)
        return token, float(dist.at(np.array([token]))[0]), dist

    def _catch_up(self, context: Sequence[int]) -> Logits:
        """Bring the cache to the whole context; logits after its last token."""
        cached = self.model.tokens[self._agreed :]
        agreed = self._agreed + common_prefix(cached, context[self._agreed : -1])
        self.model.rewind(agreed)
        row = self._eval(context[agreed:])
        self._agreed = len(context)
        return row

    def _eval(self, tokens: Sequence[int]) -> Logits:
        known = self.model.n_vocab
        rows = self.model.eval([t if t < known else 0 for t in tokens])
        return rows[0, : self.n_vocab]
