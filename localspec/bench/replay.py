"""A recorded text decoded again on a virtual clock: real guesses, priced by a cost table.

The text and every guess at a place of it are what the models really say there; what is modelled is only the
time a pass takes. Since the text is known, the target need not compute anything, and because a draft's guess
at a place depends on nothing but the text before it, each is computed once and remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from localspec.engine.generate import common_prefix, proposal_of
from localspec.engine.sampling import Sampler
from localspec.engine.types import Guess, Logits, Proposal, Sampling, Sequential, Suggest, nothing


@dataclass(slots=True)
class VirtualClock:
    """Seconds that pass only when someone says so."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def padded(curve: Mapping[int, float], n: int) -> float:
    """The cost of a pass over n tokens: that of the next listed width."""
    return curve[min((width for width in curve if width >= n), default=max(curve))]


class Forced(Sampler):
    """A sampler that says what was said: the token of `text` at each position, whatever the logits."""

    def __init__(self, text: Sequence[int]) -> None:
        super().__init__(Sampling(temperature=0.0))
        self.text = text

    def pick(self, row: Logits, history: Sequence[int], position: int) -> int:
        return self.text[position]


@dataclass(slots=True)
class PricedTarget:
    """A target whose passes cost what `curve` says and whose rows mean nothing. Reading a prompt is free."""

    clock: VirtualClock
    curve: Mapping[int, float]
    n_ctx: int
    n_vocab: int = 1
    tokens: list[int] = field(default_factory=list)

    def eval(self, tokens: Sequence[int], rows: int = 1) -> Logits:
        self.tokens.extend(tokens)
        if rows:
            self.clock.now += padded(self.curve, len(tokens))
        return np.zeros((rows, 1), np.float32)

    def rewind(self, length: int) -> None:
        del self.tokens[length:]


@dataclass(slots=True)
class Guesses:
    """What a draft model guesses after each place of `text`, computed when first asked for.

    `ask(place, off)`: the guess and its confidence after text[:place] and the guesses `off`, of which the
    first is wrong there.
    """

    text: Sequence[int]
    ask: Callable[[int, tuple[int, ...]], tuple[int, float]]
    known: dict[tuple[int, tuple[int, ...]], tuple[int, float]] = field(default_factory=dict)

    def after(self, place: int, guessed: Sequence[int]) -> tuple[int, float]:
        """The guess that follows text[:place] and `guessed`."""
        right = common_prefix(guessed, self.text[place : place + len(guessed)])
        key = place + right, tuple(guessed[right:])
        if key not in self.known:
            self.known[key] = self.ask(*key)
        return self.known[key]


@dataclass(slots=True)
class PricedDrafter:
    """A sequential source that guesses what `guesses` knows; a pass over n tokens costs draft * curve(n)."""

    name: str
    guesses: Guesses
    clock: VirtualClock
    curve: Mapping[int, float]
    draft: float
    is_end: Callable[[int], bool] = lambda _: False
    _cached: list[int] = field(default_factory=list)

    @property
    def seconds_to_load(self) -> float:
        return 0.0

    def begin(self, context: Sequence[int]) -> None:
        self._cached = list(context[:-1])

    def unseen(self, context: Sequence[int]) -> int:
        return len(context) - common_prefix(self._cached, context[:-1])

    def open(self, context: Sequence[int]) -> None:
        self._cached = list(context[:-1])

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        guesses: list[Guess] = []
        for guess in islice(self.follow(context, ()), limit):
            guesses.append(guess)
            if not go_on(guess.confidence):
                break
        return proposal_of(guesses)

    def follow(
        self, context: Sequence[int], guessed: Sequence[int], suggest: Suggest = nothing
    ) -> Iterator[Guess]:
        text, tokens = [*context, *guessed], list[int]()
        unread, ahead, known = self.unseen(text), list[int](), False
        while True:
            if not known:
                ahead = list(suggest(tokens))
                width = min(unread + len(ahead), max(self.curve))
                self.clock.now += self.draft * padded(self.curve, width)
            token, chance = self.guesses.after(len(context), [*guessed, *tokens])
            known = ahead[:1] == [token]  # then its row is there already
            self._cached = [*text, *tokens, *ahead[: int(known)]]
            tokens.append(token)
            ahead, unread = ahead[1:], 1
            yield Guess(token, chance)
            if self.is_end(token):
                return


def ask_model(
    drafter: Sequential, text: Sequence[int]
) -> Callable[[int, tuple[int, ...]], tuple[int, float]]:
    """`Guesses.ask` of a real draft on a recorded text; the draft's model may serve others in between."""

    def ask(place: int, off: tuple[int, ...]) -> tuple[int, float]:
        drafter.begin(text[:place])
        guess = next(iter(drafter.follow(text[:place], off)), None)
        return (guess.token, guess.confidence) if guess else (-1, 0.0)

    return ask
