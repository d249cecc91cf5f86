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
    `greedy`: guesses are the draft's likeliest tokens whatever the sampler says, as other programs draft.
    Ids from `n_vocab` on (the target has fewer) are never guessed; ids the draft lacks are read as id 0.
    """

    name: str
    model: Model
    sampler: Sampler
    n_vocab: int
    is_end: Callable[[int], bool]
    dice: Dice | None = None
    greedy: bool = False
    _agreed: int = field(default=0, init=False)  # this many tokens of the cache are known to be the context's

    def begin(self, context: Sequence[int]) -> None:
        self._agreed = 0

    @property
    def seconds_to_load(self) -> float:
        return 0.0

    def unseen(self, context: Sequence[int]) -> int:
        return len(context) - self._agree(context)

    def open(self, context: Sequence[int]) -> None:
        self._read(context, rows=0)

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        return self.extend(context, (), limit, go_on)

    def extend(
        self, context: Sequence[int], guessed: Sequence[int], limit: int, go_on: Callable[[float], bool]
    ) -> Proposal:
        text = [*context, *guessed] if guessed else context
        limit = min(limit, self.model.n_ctx + 1 - len(text))
        if limit <= 0:
            return Proposal()
        tokens: list[int] = []
        confidence: list[float] = []
        dists: list[Dist] = []
        self._agreed = self._agree(context)
        row = self._read(text, rows=1)
        while True:
            try:
                token, chance, dist = self._choose(row, text, tokens)
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
        if self.greedy or (self.sampler.sampling.temperature == 0.0 and not self.sampler.window):
            ids, logits = top(row, 10)
            best = int(ids[0])
            return best, 1.0 / float(np.exp(logits - logits[0]).sum()), Dist.point(best)
        window = self.sampler.window
        history = [*context[-window:], *drafted] if window else []
        dist = self.sampler.dist(row, history)
        token = self.dice.draw(dist) if self.dice else self.sampler.draw(dist, position)
        return token, float(dist.at(np.array([token]))[0]), dist

    def _agree(self, context: Sequence[int]) -> int:
        """How many tokens of the cache are the context's; its last token must always be read."""
        agreed = min(self._agreed, len(context) - 1)
        return agreed + common_prefix(self.model.tokens[agreed:], context[agreed:-1])

    def _read(self, text: Sequence[int], rows: int) -> Logits:
        """Bring the cache to the whole `text`, or to all but its last token; the last row."""
        agreed = self._agree(text)
        self.model.rewind(agreed)
        return self._eval(text[agreed:] if rows else text[agreed:-1], rows)

    def _eval(self, tokens: Sequence[int], rows: int = 1) -> Logits:
        known = self.model.n_vocab
        found = self.model.eval([t if t < known else 0 for t in tokens], rows)
        return found[-1, : self.n_vocab] if rows else found
