"""The loop: draft, verify, accept, emit.

One call of `Generator.generate` is one turn. Knows tokens, not text: stop strings, templates and terminals
are the consumer's, which may leave the loop at any step. Every way out (end of turn, budget, a closed
generator, an exception) passes the same `finally`, which leaves the model's cache at the context's end.
"""

from __future__ import annotations

import time
from collections import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from localspec.engine import accept
from localspec.engine.sampling import RandomDice, Sampler
from localspec.engine.types import (
    BadLogits,
    Logits,
    Model,
    Proposal,
    Source,
    Step,
)

WIDEST_PASS = 64
"""Most tokens one verify pass may hold: the last emitted token and 63 guesses."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """What bringing the cache to the prompt cost: tokens kept from before, tokens read, seconds."""

    tokens_reused: int
    tokens_read: int
    seconds: float


@dataclass(slots=True)
class Generator:
    """A target model, its sampler and the sources that guess for it, asked in the order given.

    `is_end` tells end-of-turn tokens. `dice` decides on guesses that were drawn (rejection mode); their
    drafter draws from the same dice. `clock` returns seconds.
    """

    model: Model
    sampler: Sampler
    is_end: Callable[[int], bool]
    sources: Sequence[Source] = ()
    dice: accept.Dice = field(default_factory=lambda: RandomDice(0))
    clock: Callable[[], float] = time.perf_counter
    last_prefill: Prefill = field(default=Prefill(0, 0, 0.0), init=False)

    def prefill(self, prompt: Sequence[int]) -> None:
        """Bring the cache to all of `prompt` but its last token, reusing the longest common prefix."""
        start, body = self.clock(), prompt[:-1]
        self.last_prefill = Prefill(0, 0, 0.0)
        reused = common_prefix(self.model.tokens, body)
        self.model.rewind(reused)
        self.model.eval(body[reused:], rows=0)
        self.last_prefill = Prefill(reused, len(body) - reused, self.clock() - start)

    def generate(self, prompt: Sequence[int], max_tokens: int) -> abc.Generator[Step, None, None]:
        """Emit steps that continue `prompt` until an end of turn, `max_tokens` or a full context.

        `prompt` holds 1 to n_ctx token ids. The tokens are those of plain decoding, whatever the sources do.
        Raises BadLogits when a plain pass returns NaN, Cancelled when the model was told to stop.
        """
        context = list(prompt)
        end = min(len(context) + max_tokens, self.model.n_ctx + 1)
        try:
            self.prefill(context)
            for source in self.sources:
                source.drafter.begin(context)
            while len(context) < end:
                step = self._step(context, end - len(context))
                yield step
                if self.is_end(step.tokens[-1]):
                    return
        finally:
            self.model.rewind(min(len(context) - 1, len(self.model.tokens)))

    def _step(self, context: list[int], room: int) -> Step:
        """One pass: appends to `context` what it emits, at most `room` tokens."""
        start = self.clock()
        source, proposal = self._propose(context, min(room, WIDEST_PASS) - 1)
        drafted = self.clock()
        rows = self.model.eval([context[-1], *proposal.tokens], rows=len(proposal.tokens) + 1)
        verified = self.clock()
        length = len(context)
        try:
            verdict = self._accept(context, proposal, rows)
        except BadLogits:
            # A wide pass may fail where a single one does not: redo this step plainly, once.
            source, proposal = "none", Proposal()
            self.model.rewind(length - 1)
            rows = self.model.eval(context[-1:], rows=1)
            verified = self.clock()
            verdict = self._accept(context, proposal, rows)
        context.extend(verdict.tokens)
        self.model.rewind(min(len(context) - 1, len(self.model.tokens)))
        return Step(
            tokens=tuple(verdict.tokens),
            source=source,
            drafted=len(proposal.tokens),
            accepted=verdict.accepted,
            seconds_draft=drafted - start,
            seconds_verify=verified - drafted,
            seconds_host=self.clock() - verified,
        )

    def _propose(self, context: list[int], room: int) -> tuple[str, Proposal]:
        """The first source with anything to say, cut to `room` and behind its first end of turn."""
        for source in self.sources if room > 0 else ():
            limit = min(room, source.limit)
            guess = source.drafter.propose(context, limit, source.min_confidence.__le__)
            tokens = _upto_end(guess.tokens[:limit], self.is_end)
            if tokens:
                return source.drafter.name, Proposal(tokens, guess.confidence, guess.dists)
        return "none", Proposal()

    def _accept(self, context: list[int], proposal: Proposal, rows: Logits) -> accept.Verdict:
        """Which of `proposal` stay. Guesses that were drawn carry their laws and are judged by rejection;
        all others by match, which is the same law for them and needs no dice."""
        length, guesses = len(context), proposal.tokens
        history = [*context[-self.sampler.window :], *guesses] if self.sampler.window else []
        known = len(history) - len(guesses)
        if proposal.dists is None:
            return accept.match(
                guesses,
                lambda i: self.sampler.pick(rows[i], history[: known + i], length + i),
                self.is_end,
            )
        laws = [self.sampler.dist(row, history[: known + i]) for i, row in enumerate(rows)]
        return accept.block(guesses, proposal.dists, laws, self.dice, self.is_end)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


def _upto_end(tokens: Sequence[int], is_end: Callable[[int], bool]) -> Sequence[int]:
    return next((tokens[: i + 1] for i, token in enumerate(tokens) if is_end(token)), tokens)
