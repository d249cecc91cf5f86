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
from itertools import islice
from typing import cast

from localspec.engine import accept
from localspec.engine.sampling import RandomDice, Sampler
from localspec.engine.types import (
    Attempt,
    BadLogits,
    Dist,
    Guess,
    Logits,
    Model,
    Policy,
    Proposal,
    Sequential,
    Source,
    Step,
)

WIDEST_PASS = 64
"""Most rows of logits a model must be able to give at once."""
MOST_GUESSES = 47
"""Guesses a pass may check. A pass over 64 tokens rounds otherwise, even with weights whose narrower passes
are exact to the last bit: the text would depend on it."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """What bringing the cache to the prompt cost: tokens kept from before, tokens read, seconds."""

    tokens_reused: int
    tokens_read: int
    seconds: float


@dataclass(slots=True)
class Fixed:
    """The policy without a scheduler: `sources` are asked in the order given, each as far as its rule goes.

    `extend`: what the first one leaves of its limit, the second (a Sequential) fills.
    """

    sources: Sequence[Source] = ()
    extend: bool = False

    def begin(self, context: Sequence[int]) -> None:
        for source in self.sources:
            source.drafter.begin(context)

    def draft(self, context: Sequence[int], room: int) -> Attempt:
        room = min(room, MOST_GUESSES)
        for source in self.sources if room > 0 else ():
            limit = min(room, source.limit)
            guess = source.drafter.propose(context, limit, source.min_confidence.__le__)
            tokens = guess.tokens[:limit]
            if tokens and self.extend and source is self.sources[0]:
                return self._extended(context, Proposal(tokens, guess.confidence, guess.dists), room)
            if tokens:
                return Attempt(source.drafter.name, Proposal(tokens, guess.confidence, guess.dists))
        return Attempt()

    def _extended(self, context: Sequence[int], first: Proposal, room: int) -> Attempt:
        source, name = self.sources[1], self.sources[0].drafter.name
        left = min(room, source.limit) - len(first.tokens)
        if left <= 0:
            return Attempt(name, first)
        drafter = cast(Sequential, source.drafter)
        guesses: list[Guess] = []
        for guess in islice(drafter.follow(context, first.tokens), left):
            guesses.append(guess)
            if guess.confidence < source.min_confidence:
                break
        return Attempt(f"{name}+{drafter.name}", joined(first, proposal_of(guesses)))

    def plain(self, n_cached: int) -> float:
        return 0.0

    def learn(self, step: Step, n_cached: int) -> None: ...


@dataclass(slots=True)
class Generator:
    """A target model, its sampler, and the policy that says what is guessed.

    `is_end` tells end-of-turn tokens. `dice` decides on guesses that were drawn (rejection mode); their
    drafter draws from the same dice. `clock` returns seconds.
    """

    model: Model
    sampler: Sampler
    is_end: Callable[[int], bool]
    policy: Policy = field(default_factory=Fixed)
    dice: accept.Dice = field(default_factory=lambda: RandomDice(0))
    clock: Callable[[], float] = time.perf_counter
    last_prefill: Prefill = field(default=Prefill(0, 0, 0.0), init=False)
    _late: float = field(default=0.0, init=False)  # seconds of learning, charged to the next step

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

        `prompt` holds 1 to n_ctx token ids. The tokens are those of plain decoding, whatever the policy does.
        Raises BadLogits when a plain pass returns NaN, Cancelled when the model was told to stop.
        """
        context = list(prompt)
        end = min(len(context) + max_tokens, self.model.n_ctx + 1)
        self._late = 0.0
        try:
            self.prefill(context)
            self.sampler.begin(context)
            self.policy.begin(context)
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
        length = len(context)
        attempt = self._attempt(context, room)
        proposal, width = attempt.proposal, attempt.width
        drafted = self.clock()
        padding = [context[-1]] * (width - 1 - len(proposal.tokens))
        rows = self.model.eval([context[-1], *proposal.tokens, *padding], rows=width)
        verified = self.clock()
        try:
            verdict = self._accept(context, proposal, rows[: len(proposal.tokens) + 1])
        except BadLogits:
            # A wide pass may fail where a single one does not: redo this step plainly, once.
            proposal, width = Proposal(), 1
            self.model.rewind(length - 1)
            rows = self.model.eval(context[-1:], rows=1)
            verified = self.clock()
            verdict = self._accept(context, proposal, rows)
        context.extend(verdict.tokens)
        self.model.rewind(min(len(context) - 1, len(self.model.tokens)))
        finished = self.clock()
        step = Step(
            tokens=tuple(verdict.tokens),
            source=attempt.source if proposal.tokens else "none",
            drafted=len(proposal.tokens),
            accepted=verdict.accepted,
            seconds_draft=drafted - start - attempt.seconds_open + self._late,
            seconds_verify=verified - drafted,
            seconds_host=finished - verified,
            width=width,
            seconds_open=attempt.seconds_open,
            seconds_plain=len(verdict.tokens) * self.policy.plain(length - 1),
            why=attempt.why,
        )
        self.policy.learn(step, length - 1)
        self._late = self.clock() - finished
        return step

    def _attempt(self, context: list[int], room: int) -> Attempt:
        """What the policy wants, cut behind its first end of turn and made to fit."""
        attempt = self.policy.draft(context, room - 1)
        guess = attempt.proposal
        tokens = _upto_end(guess.tokens[: min(room - 1, MOST_GUESSES)], self.is_end)
        # padding must not reach past the context's end
        room = min(MOST_GUESSES + 1, self.model.n_ctx + 1 - len(context))
        width = max(len(tokens) + 1, min(attempt.width, room))
        return attempt._replace(proposal=Proposal(tokens, guess.confidence, guess.dists), width=width)

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


def proposal_of(guesses: Sequence[Guess]) -> Proposal:
    """Guesses made one by one as a proposal; laws only if each brought its own."""
    dists = [guess.dist for guess in guesses if guess.dist is not None]
    return Proposal(
        [guess.token for guess in guesses],
        [guess.confidence for guess in guesses],
        dists if guesses and len(dists) == len(guesses) else None,
    )


def joined(first: Proposal, more: Proposal) -> Proposal:
    """Guesses of one source and those another made to follow them; without laws they are point masses."""
    dists = None
    if more.dists is not None:
        dists = [*(first.dists or [Dist.point(token) for token in first.tokens]), *more.dists]
    return Proposal([*first.tokens, *more.tokens], [*first.confidence, *more.confidence], dists)


def _upto_end(tokens: Sequence[int], is_end: Callable[[int], bool]) -> Sequence[int]:
    return next((tokens[: i + 1] for i, token in enumerate(tokens) if is_end(token)), tokens)
