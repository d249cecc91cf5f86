"""A constraint along an answer: its state after each of the last tokens, found again when guesses were wrong.

States are a function of the context alone, so nobody has to say what was emitted or taken back. Knows no
grammar and no logits.
"""

from __future__ import annotations

from collections.abc import Sequence

from localspec.engine.types import Constraint

KEPT = 128
"""States remembered: more than a pass checks guesses. An older one is worked out from the start."""


class Followed:
    """`first` is the state at the start of an answer, `start` tokens into the context."""

    def __init__(self, first: Constraint, start: int) -> None:
        self.first, self.start = first, start
        self._tokens: list[int] = []
        self._oldest = 0  # how many tokens came before the first of the states
        self._states: list[Constraint | None] = [first]

    def after(self, context: Sequence[int]) -> Constraint | None:
        """The state behind `context`. None behind a token that was not allowed or that ended the answer."""
        answer = list(context[self.start :])
        known = self._known(answer)
        if known < self._oldest:
            known = self._oldest = 0
            self._tokens, self._states = [], [self.first]
        if known < len(answer):
            del self._states[known - self._oldest + 1 :]
            self._tokens[known:] = answer[known:]
            for token in answer[known:]:
                self._add(token)
        return self._states[len(answer) - self._oldest]

    def _known(self, answer: list[int]) -> int:
        """How many tokens of `answer` were followed before."""
        known = self._tokens
        length = min(len(known), len(answer))
        if known[:length] == answer[:length]:
            return length
        old = min(self._oldest, length)
        if known[:old] != answer[:old]:
            return 0
        return next(i for i in range(old, length) if known[i] != answer[i])

    def _add(self, token: int) -> None:
        state = self._states[-1]
        self._states.append(state and state.after(token))
        if len(self._states) > 2 * KEPT:
            del self._states[:KEPT]
            self._oldest += KEPT
