"""A language model that is a table, and drafters that behave badly.

`TableModel` obeys the Model protocol and its logits are a pure function of the context, so a wrong cache,
a row of the wrong position or a row used after its time all show as a wrong text. `plain_text` is what
decoding must say, worked out without the engine's loop; `chain` and `joint_law` are the law it must follow,
worked out without the engine's sampler. `hostile` lists one of every bad drafter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from localspec.engine.sampling import Sampler
from localspec.engine.types import Dist, Drafter, Logits, Proposal, Sampling


@dataclass
class TableModel:
    """Random logits of standard deviation `spread`, fixed for each (seed, last `order` tokens).

    `order` None: the whole context counts. `near`: a model to resemble; the logits are its logits plus the
    table's own, so `TableModel(seed=1, near=target, spread=0.5)` is a draft model of `target`; the two may
    differ in vocabulary. `end` is the id that ends a turn (-1: none), `end_bias` is added to its logit.
    """

    seed: int = 0
    n_vocab: int = 8
    n_ctx: int = 256
    order: int | None = None
    spread: float = 2.0
    near: TableModel | None = None
    end: int = -1
    end_bias: float = 0.0
    widths: list[int] = field(default_factory=list, init=False)
    """How many tokens each pass held, prefills (rows=0) left out."""
    tokens: list[int] = field(default_factory=list, init=False)
    _rows: dict[tuple[int, ...], Logits] = field(default_factory=dict, init=False)
    _lent: Logits = field(default_factory=lambda: np.zeros(0, np.float32), init=False)

    def is_end(self, token: int) -> bool:
        return token == self.end

    def row(self, context: Sequence[int]) -> Logits:
        """The logits after `context`, shape (n_vocab,), from the table alone. Not to be written to."""
        key = tuple(context)
        if key not in self._rows:
            self._rows[key] = self._make(key)
        return self._rows[key]

    def eval(self, tokens: Sequence[int], rows: int = 1) -> Logits:
        """As the protocol says; the array lent by the call before turns into NaN."""
        assert 0 <= rows <= len(tokens)
        assert len(self.tokens) + len(tokens) <= self.n_ctx
        assert all(0 <= token < self.n_vocab for token in tokens)
        self._lent.fill(np.nan)
        self.tokens.extend(tokens)
        self._lent = np.empty((rows, self.n_vocab), np.float32)
        for i in range(rows):
            self._lent[i] = self.row(self.tokens[: len(self.tokens) - rows + i + 1])
        if rows:
            self.widths.append(len(tokens))
        return self._lent

    def rewind(self, length: int) -> None:
        assert 0 <= length <= len(self.tokens)
        del self.tokens[length:]

    def _make(self, context: tuple[int, ...]) -> Logits:
        seen = context if self.order is None else context[-self.order :]
        noise = np.random.default_rng([self.seed, len(seen), *seen])
        row = noise.normal(0.0, self.spread, self.n_vocab)
        if self.near is not None:
            shared = min(self.n_vocab, self.near.n_vocab)
            row[:shared] += self.near.row(context)[:shared]
        if self.end >= 0:
            row[self.end] += self.end_bias
        return row.astype(np.float32)


def plain_token(model: TableModel, sampler: Sampler, context: Sequence[int]) -> int:
    """What plain decoding says after `context`."""
    return sampler.pick(model.row(context), context, len(context))


def plain_text(model: TableModel, sampler: Sampler, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """What plain decoding emits: up to an end of turn, `max_tokens` or a full context."""
    context = list(prompt)
    for _ in range(min(max_tokens, model.n_ctx + 1 - len(prompt))):
        context.append(plain_token(model, sampler, context))
        if model.is_end(context[-1]):
            break
    return context[len(prompt) :]


def chain(row: Logits, history: Sequence[int], s: Sampling) -> dict[int, float]:
    """The sampling chain by the book, token by token: id -> probability.

    llama.cpp's order and definitions: penalties (in float32, as the engine computes them), top-k with the
    lower id first on a tie, top-p and min-p on the softmax of what is left, temperature last.
    """
    logits = dict(enumerate(row.tolist()))
    for token in set(history[-s.penalty_window :] if s.penalty_window else []) & logits.keys():
        logit, repeat = row[token], np.float32(s.repeat_penalty)
        logit = logit / repeat if logit > 0 else logit * repeat
        logits[token] = float(logit - np.float32(s.presence_penalty))
    ids = sorted(logits, key=lambda token: (-logits[token], token))
    best = logits[ids[0]]
    if s.temperature == 0.0:
        return {ids[0]: 1.0}
    if s.top_k:
        ids = ids[: s.top_k]
    weights = [math.exp(logits[token] - best) for token in ids]
    if s.top_p < 1.0:
        enough, reached, keep = s.top_p * sum(weights), 0.0, 0
        while not keep or (reached < enough and keep < len(ids)):
            reached, keep = reached + weights[keep], keep + 1
        ids = ids[:keep]
    ids = [token for token, weight in zip(ids, weights, strict=False) if weight >= s.min_p]
    final = {token: math.exp((logits[token] - best) / s.temperature) for token in ids}
    total = sum(final.values())
    return {token: weight / total for token, weight in final.items() if weight > 0.0}


def joint_law(
    model: TableModel, sampling: Sampling, prompt: Sequence[int], max_tokens: int
) -> dict[tuple[int, ...], float]:
    """The law of everything that plain decoding emits: text -> probability."""
    law, done = {(): 1.0}, {}
    for _ in range(max_tokens):
        longer = {}
        for text, mass in law.items():
            context = [*prompt, *text]
            for token, chance in chain(model.row(context), context, sampling).items():
                (done if model.is_end(token) else longer)[*text, token] = mass * chance
        law = longer
    return {**law, **done}


def certain(tokens: Sequence[int]) -> Proposal:
    """A deterministic proposal that believes in itself."""
    return Proposal(tokens, [1.0] * len(tokens))


@dataclass
class AlwaysRight:
    """Guesses exactly what plain decoding will say, across ends of turn: every pass is accepted whole."""

    model: TableModel
    sampler: Sampler
    name: str = "always-right"

    def begin(self, context: Sequence[int]) -> None: ...

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        text = list(context)
        for _ in range(limit):
            text.append(plain_token(self.model, self.sampler, text))
        return certain(text[len(context) :])


@dataclass
class AlwaysWrong(AlwaysRight):
    """Its first guess is never what plain decoding says; what follows would be right after it."""

    name: str = "always-wrong"

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        wrong = (plain_token(self.model, self.sampler, context) + 1) % self.model.n_vocab
        rest = AlwaysRight.propose(self, [*context, wrong], limit - 1, go_on)
        return certain([wrong, *rest.tokens])


@dataclass
class TooLong(AlwaysRight):
    """Right, but ignores the limit and `go_on`: kept whole it would pass the budget and the context."""

    name: str = "too-long"

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        return AlwaysRight.propose(self, context, limit + 5, go_on)


@dataclass
class AlwaysEnd:
    """Guesses nothing but the end of the turn, and more after it."""

    end: int
    name: str = "always-end"

    def begin(self, context: Sequence[int]) -> None: ...

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        return certain([self.end] * limit)


@dataclass
class Empty:
    """Never has a guess."""

    name: str = "empty"

    def begin(self, context: Sequence[int]) -> None: ...

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        return Proposal()


@dataclass
class Repeats:
    """Guesses the last token again and again."""

    name: str = "repeats"

    def begin(self, context: Sequence[int]) -> None: ...

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        return certain([context[-1]] * limit)


@dataclass
class RandomGuesses:
    """Any number of uniform guesses, none included. `drawn`: says so, so that rejection judges them."""

    n_vocab: int
    seed: int = 0
    drawn: bool = False
    name: str = "random"

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._law = Dist(np.arange(self.n_vocab), np.full(self.n_vocab, 1 / self.n_vocab))

    def begin(self, context: Sequence[int]) -> None: ...

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        tokens = [self._random.randrange(self.n_vocab) for _ in range(self._random.randint(0, limit))]
        confidence = [1 / self.n_vocab] * len(tokens)
        return Proposal(tokens, confidence, [self._law] * len(tokens) if self.drawn else None)


def hostile(model: TableModel, sampler: Sampler) -> list[Drafter]:
    """One of every drafter above for a target and its sampler, none of which needs dice."""
    return [
        AlwaysRight(model, sampler),
        AlwaysWrong(model, sampler),
        TooLong(model, sampler),
        AlwaysEnd(max(model.end, 0)),
        Empty(),
        Repeats(),
        RandomGuesses(model.n_vocab),
    ]
