"""The nouns every part shares: Model, Drafter, Dist, Proposal, Sampling, Step.

Knows only numpy. A *context* is the list of all token ids so far: the prompt and everything emitted.
Its last token is not yet in the model's cache: the next pass evaluates it together with the draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]


class Cancelled(Exception):
    """The user stopped the computation; model and drafters are left in a usable state."""


class BadLogits(Exception):
    """A pass returned NaN or no finite logit at all."""


class NothingAllowed(BadLogits):
    """A constraint leaves no token to go on with: nothing in the vocabulary spells what it wants."""


@dataclass(frozen=True, slots=True)
class Dist:
    """A probability distribution over token ids, stored on its support.

    `ids`: ascending int64, shape (n,). `probs`: shape (n,), positive, summing to 1. float64 in use;
    the arithmetic of `accept` also works on object arrays of Fractions, which the tests rely on.
    """

    ids: NDArray[np.int64]
    probs: NDArray[Any]

    def at(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """Probabilities of `ids` (ascending or not), 0 outside the support; shape of `ids`."""
        place = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[place] == ids, self.probs[place], 0 * self.probs[0])

    @staticmethod
    def point(token: int) -> Dist:
        """All mass on one token: what greedy decoding and every deterministic draft use."""
        return Dist(np.array([token], dtype=np.int64), np.ones(1))


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. The chain: penalties, top_k, top_p, min_p, temperature, in this order.

    temperature 0 is greedy. top_k 0, top_p 1, min_p 0, repeat_penalty 1 and presence_penalty 0 switch a
    stage off. Penalties look at the last `penalty_window` tokens of the context.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    penalty_window: int = 64
    seed: int = 0


class Proposal(NamedTuple):
    """What a source guesses will come next.

    `tokens`: the guesses in order, may be empty. `confidence`: one number a guess in [0, 1], what the source
    knows about it. `dists`: the law each guess was drawn from, or None when it was picked
    deterministically (then each guess is a point mass).
    """

    tokens: Sequence[int] = ()
    confidence: Sequence[float] = ()
    dists: Sequence[Dist] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of the target: what it emitted and what it cost.

    `tokens`: emitted (at least one). `source`: name of the drafter that was checked, "none" for a plain
    pass, "a+b" where b went on from guesses of a. `drafted`, `accepted`: guesses checked and guesses emitted.
    `width`: tokens the pass took, padding included. Seconds: drafting, the target's pass, and everything
    else of the loop (sampling, bookkeeping); `seconds_open`: loading a source and letting it read the text so
    far, in none of the others; `seconds_plain`: what plain decoding would take for `tokens`, as measured
    here, 0 if that is not known. `why`: why nothing was guessed, or "".
    """

    tokens: tuple[int, ...]
    source: str
    drafted: int
    accepted: int
    seconds_draft: float
    seconds_verify: float
    seconds_host: float
    width: int = 1
    seconds_open: float = 0.0
    seconds_plain: float = 0.0
    why: str = ""

    @property
    def seconds(self) -> float:
        """Of the whole step, but not of opening a source."""
        return self.seconds_draft + self.seconds_verify + self.seconds_host


@dataclass(frozen=True, slots=True)
class Device:
    """A place that holds weights and computes. `name` as ggml has it ("CUDA0", "Metal", "CPU")."""

    name: str
    description: str
    kind: Literal["cpu", "gpu", "igpu", "accel"]
    bytes_free: int
    bytes_total: int


class Model(Protocol):
    """A causal language model with a cache of the tokens it has seen."""

    @property
    def n_ctx(self) -> int:
        """Most tokens the cache can hold."""

    @property
    def n_vocab(self) -> int:
        """Width of a row of logits."""

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens the cache stands for, oldest first. Not to be changed by the caller."""

    def eval(self, tokens: Sequence[int], rows: int = 1) -> Logits:
        """Append `tokens`; logits after each of the last `rows` of them, shape (rows, n_vocab).

        The array is a view, valid until the next `eval`. `rows` at most `len(tokens)` and the widest verify
        batch. Raises Cancelled, and then `tokens` is as before the call.
        """

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens only. Exact: what follows equals a fresh start on that prefix."""


class Constraint(Protocol):
    """What an answer must look like, after some of its tokens. A value: it never changes."""

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of `ids` may come next, shape of `ids`; an end of turn only where the answer may end."""

    def after(self, token: int) -> Constraint | None:
        """The constraint once `token` has come. None if it is not allowed, or ends the answer."""


class Drafter(Protocol):
    """A source of guesses. It may be wrong or silent at any time; it can never change the text.

    The context is the one truth: a drafter that keeps a cache or an index brings it in step with `context`
    when it is asked, so nothing can drift apart when a turn is cut short or another source was used.
    """

    @property
    def name(self) -> str: ...

    def begin(self, context: Sequence[int]) -> None:
        """A new turn starts on `context`, which may share any prefix with what came before.

        Until the next `begin` the context only grows.
        """

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        """Guess at most `limit` tokens to follow `context`.

        `go_on(confidence)` is asked after each guess whether another is worth its cost; the guess it was
        asked about is kept whatever the answer
        (dropping it because of what it is would bias rejection sampling).
        """


class Guess(NamedTuple):
    """One guess, what its source thinks of it, and the law it was drawn from (None: a point mass)."""

    token: int
    confidence: float
    dist: Dist | None = None


Suggest = Callable[[Sequence[int]], Sequence[int]]
"""From the guesses made so far to what could follow them."""


def nothing(_guessed: Sequence[int]) -> Sequence[int]:
    """Suggests nothing."""
    return ()


class Sequential(Drafter, Protocol):
    """A source that computes its guesses one after another, and can go on from guesses of another source."""

    @property
    def seconds_to_load(self) -> float:
        """What loading it will take, as far as that is known; 0 once it is loaded."""

    def unseen(self, context: Sequence[int]) -> int:
        """How many tokens it would have to read before its first guess: at least 1."""

    def open(self, context: Sequence[int]) -> None:
        """Load what it needs and read all of `context` but the last token."""

    def follow(
        self, context: Sequence[int], guessed: Sequence[int], suggest: Suggest = nothing
    ) -> Iterator[Guess]:
        """What follows `context` and `guessed`, one guess at a time: stop asking when no more is wanted.

        Before each pass `suggest` is asked what another source would say behind the guesses made so far.
        That is read along in the same pass: guesses that turn out to be the same need no pass of their own.
        """


class Attempt(NamedTuple):
    """What a policy wants checked in the next pass.

    `source` as in Step. `width`: tokens the pass is to take, at least the guesses and one; the rest is
    padding. `seconds_open` and `why` as in Step.
    """

    source: str = "none"
    proposal: Proposal = Proposal()
    width: int = 1
    seconds_open: float = 0.0
    why: str = ""


class Policy(Protocol):
    """Decides for each pass who guesses and how much, and learns from what came of it."""

    def begin(self, context: Sequence[int]) -> None:
        """A new turn starts on `context`."""

    def draft(self, context: Sequence[int], room: int) -> Attempt:
        """What to check next; a pass may emit its guesses and one token more, `room` + 1 tokens in all."""

    def plain(self, n_cached: int) -> float:
        """Seconds of a plain step with so many tokens in the cache, 0 if not known."""

    def learn(self, step: Step, n_cached: int) -> None:
        """A step was taken, with `n_cached` tokens in the cache before it."""


@dataclass(frozen=True, slots=True)
class Source:
    """A drafter and the fixed rule for how far it may guess.

    At most `limit` guesses a pass; a sequential drafter stops early after a guess it believes in with less
    than `min_confidence`.
    """

    drafter: Drafter
    limit: int
    min_confidence: float = 0.0
