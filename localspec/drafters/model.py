"""A smaller or lower-bit model of the same vocabulary as a source of guesses.

Sees its model through the `Model` protocol only. Keeps the model's cache in step lazily: the tokens that
another source or the target added are read when this source is next asked, and nothing is read twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from localspec.engine.accept import Dice
from localspec.engine.generate import MOST_GUESSES, common_prefix, proposal_of
from localspec.engine.sampling import Sampler, top
from localspec.engine.types import BadLogits, Dist, Guess, Logits, Model, Proposal, Suggest, nothing


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
        self._eval(context[self._rewound(context) : -1], rows=0)

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        guesses: list[Guess] = []
        for guess in self.follow(context, ()) if limit > 0 else ():
            guesses.append(guess)
            if not go_on(guess.confidence) or len(guesses) == limit:
                break
        return proposal_of(guesses)

    def follow(
        self, context: Sequence[int], guessed: Sequence[int], suggest: Suggest = nothing
    ) -> Iterator[Guess]:
        text = [*context, *guessed] if guessed else context
        if len(text) > self.model.n_ctx:
            return
        self._agreed = self._agree(context)
        unread = text[self._rewound(text) :]
        tokens: list[int] = []
        while True:
            length = len(text) + len(tokens)
            ahead = list(suggest(tokens)[: min(self.model.n_ctx - length, MOST_GUESSES)])
            rows = self._eval([*unread, *ahead], rows=len(ahead) + 1)
            for i, row in enumerate(rows):
                try:
                    token, chance, dist = self._choose(row, text, tokens)
                except BadLogits:  # what was guessed so far stands
                    return
                tokens.append(token)
                yield Guess(token, chance, dist if self.dice else None)
                if self.is_end(token) or len(text) + len(tokens) > self.model.n_ctx:
                    return
                if ahead[i : i + 1] != [token]:
                    self.model.rewind(length + i)
                    unread = [token]
                    break

    def _choose(self, row: Logits, context: Sequence[int], drafted: list[int]) -> tuple[int, float, Dist]:
        position = len(context) + len(drafted)
        temperature = self.sampler.sampling.temperature
        window = self.sampler.window
        history = [*context[-window:], *drafted] if window else []
        if self.greedy or temperature == 0.0:
            ids, logits = top(row, 2) if self.greedy else self.sampler.likeliest(row, history, 2)
            lead = float(logits[0] - logits[1]) if len(logits) > 1 else math.inf
            return int(ids[0]), _right(lead), Dist.point(int(ids[0]))
        dist = self.sampler.dist(row, history)
        if self.dice:
            token = self.dice.draw(dist)
            return token, _drawn_right(float(dist.at(np.array([token]))[0])), dist
        token, lead = self.sampler.draw_with_lead(dist, position)
        return token, _right(temperature * lead), dist

    def _agree(self, context: Sequence[int]) -> int:
        """How many tokens of the cache are the context's; its last token must always be read."""
        agreed = min(self._agreed, len(context) - 1)
        return agreed + common_prefix(self.model.tokens[agreed:], context[agreed:-1])

    def _rewound(self, text: Sequence[int]) -> int:
        """Keep of the cache what is the text's, but for its last token; that length."""
        agreed = self._agree(text)
        self.model.rewind(agreed)
        return agreed

    def _eval(self, tokens: Sequence[int], rows: int) -> Logits:
        known = self.model.n_vocab
        found = self.model.eval([t if t < known else 0 for t in tokens], rows)
        return found[:, : self.n_vocab]


def _right(lead: float) -> float:
    """How often a draft's choice is the target's, by how many logits it leads the next best one.

    With the noise of the position added to both, since that is what they share: even an unlikely choice is
    safe when it is the noise's doing. Fitted to a 135M model in four bits guessing for its F16 original,
    where it fits greedy and drawn choices alike.
    """
    return 1.0 - 0.62 * math.exp(-0.85 * lead)


def _drawn_right(probability: float) -> float:
    """How often a guess drawn from the draft's law is kept, by what that law gave it."""
    return 0.45 + 0.53 * probability
