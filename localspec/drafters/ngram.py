"""Guesses copied from the context itself: what followed the longest suffix that occurred before.

`SuffixAutomaton` is the index, `NgramDrafter` turns its match into a draft. Knows token ids and the Drafter
protocol; must not know models, text or the cost of a pass (the scheduler asks through `go_on`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from localspec.engine.types import Proposal

# P(next token is the copied one | match length): mean over InstructCoder, CNN/DM and ShareGPT answers of an
# 8B model. A match of length n uses the last entry whose bound is <= n. Short matches are more often right
# near the place that was copied last.
_MATCH_LENGTH: Final = (1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33)
_RIGHT: Final = (0.24, 0.40, 0.57, 0.71, 0.77, 0.82, 0.87, 0.91, 0.93, 0.95, 0.98)
_RIGHT_NEAR: Final = (0.46, 0.68, 0.77)
_BY_LENGTH: Final = [_RIGHT[bisect_right(_MATCH_LENGTH, n) - 1] for n in range(1, _MATCH_LENGTH[-1] + 64)]
_BY_LENGTH_NEAR: Final = [*_RIGHT_NEAR, *_BY_LENGTH[len(_RIGHT_NEAR) :]]
_COPY: Final = 4
"""Match length from which on the text is being copied, not just alike."""
_NEAR: Final = range(-4, 49)
"""Where a match is near the place last copied, from there."""


class SuffixAutomaton:
    """Longest suffix of a growing text that occurred earlier, and where it occurred last.

    After every token, exactly what a search of the whole text would find:
      `match_length`: the largest n for which the last n tokens also end at some earlier position (the two
        may overlap); 0 when the last token is new.
      `match_end`: the largest such earlier end, so `tokens[match_end:]` is the most recent continuation;
        0 when there is no match.
    Example: 7 8 9 7 8 5 7 8 has match_length 2, match_end 5, and 5 7 8 follows.

    The length comes from the automaton (Blumer et al. 1985): it is the length of the new state's suffix
    link, amortised O(1) a token. For the end, each state needs the last position where its strings end, and
    a new token changes it for every state on its suffix path, which in repetitive text is long. So the
    suffix-link tree is kept as paths, one an end position, as in the access of a link-cut tree (Sleator and
    Tarjan 1983): the path of position e holds the states that ended last at e, from the state of the prefix
    tokens[:e] upwards to just below `_above[e]`. A new token takes over the upper parts of the paths it
    meets, amortised O(log n) of them. Instead of splay trees, `_hint[state]` is a position below the state
    that may be out of date; reading it brings it forward. Measured at 32k tokens: 1.3-3.5 microseconds and
    30-170 bytes a token on code, prose, 50k random ids and repetitions; random bits cost 6 and 300.
    """

    def __init__(self) -> None:
        self.tokens = array("i")
        self.match_length = 0
        self.match_end = 0
        self._last = 0  # state of the whole text; state 0 is the empty string
        self._length = array("i", [0])  # a state: its longest string
        self._link = array("i", [-1])  # a state: its longest suffix that ends at more positions
        self._hint = array("i", [0])  # a state: a position where it ends
        self._token = array("i", [-1])  # a state: its first edge, -1 for none ...
        self._target = array("i", [0])  # ... and where that leads
        self._more: dict[int, dict[int, int]] = {}  # the further edges of the few states that have any
        self._above = array("i", [0])  # an end position: the state its path stops below

    def extend(self, tokens: Iterable[int]) -> None:
        """Append `tokens` (ids from 0 to 2**31 - 1). Not atomic: after an exception throw the index away."""
        for token in tokens:
            self.tokens.append(token)
            self._append(token)
            self._take_over()

    def here(self) -> tuple[int, int]:
        """Where the text stands: the state of its longest suffix that occurred before, and its length."""
        state = self._link[self._last] if self._last else 0
        return state, self._length[state]

    def walk(self, state: int, length: int, tokens: Iterable[int]) -> tuple[int, int]:
        """Where `here`, or an earlier walk, leads with `tokens` behind it; the text stays as it is.

        Occurrences in the text only: a match that lies in `tokens` themselves is not found.
        """
        for token in tokens:
            while state > 0 and not self._edge(state, token):
                state = self._link[state]
                length = self._length[state]
            state = self._edge(state, token)
            length = length + 1 if state else 0
        return state, length

    def end_of(self, state: int) -> int:
        """A position where `state` ends, the last one as far as its hint is up to date; 0 for state 0."""
        return self._hint[state] if state else 0

    def _append(self, token: int) -> None:
        """The classical online step: a state for the whole text, its edges and its suffix link."""
        length, link = self._length, self._link
        state, target = self._last, 0
        last = self._last = self._new_state(len(self.tokens), len(self.tokens))
        while state >= 0 and not (target := self._edge(state, token)):
            self._set_edge(state, token, last)
            state = link[state]
        if target and length[target] > length[state] + 1:
            target = self._split(state, token, target)
        link[last] = target

    def _split(self, state: int, token: int, target: int) -> int:
        """Give the strings of `target` that end here too, up to `state` + `token`, a state of their own."""
        link = self._link
        short = self._new_state(self._length[state] + 1, self._hint[target])
        self._token[short], self._target[short] = self._token[target], self._target[target]
        if target in self._more:
            self._more[short] = self._more[target].copy()
        link[short], link[target] = link[target], short
        while state >= 0 and self._edge(state, token) == target:
            self._set_edge(state, token, short)
            state = link[state]
        return short

    def _take_over(self) -> None:
        """Put every state on the new suffix path on the new position's path; set the match on the way."""
        length, hint, above = self._length, self._hint, self._above
        state = self._link[self._last]
        here = len(self.tokens)
        above.append(0)
        self.match_length, self.match_end = length[state], 0
        while state:
            end = self._last_end(state)
            self.match_end = self.match_end or end
            hint[state] = here
            state, above[end] = above[end], state

    def _last_end(self, state: int) -> int:
        """The position whose path holds `state`: the last one, before the newest, where it ended.

        A hint `end` is out of date when its path now stops at or below `state`. Whoever cut it there, at
        the state `cut`, ends later and lies below `cut`, hence below `state`: go on from the hint of `cut`.
        """
        length, hint, above = self._length, self._hint, self._above
        shortest = length[state]
        end = hint[state]
        cut = above[end]
        while length[cut] >= shortest:
            end = hint[cut]
            next_cut = above[end]
            if length[next_cut] >= length[cut]:  # then it lies below `cut`: halve the way for the next reader
                hint[cut] = hint[next_cut]
            cut = next_cut
        return end

    def _new_state(self, length: int, hint: int) -> int:
        self._length.append(length)
        self._link.append(0)
        self._hint.append(hint)
        self._token.append(-1)
        self._target.append(0)
        return len(self._length) - 1

    def _edge(self, state: int, token: int) -> int:
        """The state `token` leads to, 0 for none (no edge leads back to the empty string)."""
        if self._token[state] == token:
            return self._target[state]
        more = self._more.get(state)
        return more.get(token, 0) if more else 0

    def _set_edge(self, state: int, token: int, target: int) -> None:
        if self._token[state] in (token, -1):
            self._token[state], self._target[state] = token, target
        elif state in self._more:
            self._more[state][token] = target
        else:
            self._more[state] = {token: target}


class NgramDrafter:
    """Drafts the most recent continuation of the longest suffix of the context that occurred before.

    A continuation that reaches the end of the context goes on into the draft itself, so a repeating pattern
    is drafted as far as asked. Guesses cost nothing, so it never asks whether to go on.

    The context may only grow between two calls of `begin`: `propose` indexes what is new at its end and does
    not look at the rest. A context that was changed without `begin` gets useless guesses, nothing worse.
    """

    name: Final = "ngram"

    def __init__(self) -> None:
        self._index = SuffixAutomaton()
        self._copied: int | None = None  # where the text last copied ended
        self._ahead: tuple[list[int], int, int] = [], 0, 0  # what was last peeked behind, and where that led

    def begin(self, context: Sequence[int]) -> None:
        """Index `context`: only its new part if it extends what is indexed, else all of it."""
        indexed = self._index.tokens
        if array("i", context[: len(indexed)]) != indexed:
            self._index = SuffixAutomaton()
            self._copied = None
        self._follow(context)

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        """At most `limit` guesses; confidence: how often a match is right that has grown to this length."""
        self._follow(context)
        length, end = self._index.match_length, self._index.match_end
        proposal = self._continued(length, end, limit)
        if length >= _COPY:
            self._copied = end
        return proposal

    def peek(self, guessed: Sequence[int], limit: int) -> Proposal:
        """What `propose` would say at most `limit` tokens of, had `guessed` been emitted. Quick for guesses
        that grow one by one: it goes on from where it was."""
        walked, state, length = self._ahead
        if walked != guessed[: len(walked)]:
            walked, (state, length) = [], self._index.here()
        state, length = self._index.walk(state, length, guessed[len(walked) :])
        self._ahead = list(guessed), state, length
        return self._continued(length, self._index.end_of(state), limit)

    def _continued(self, length: int, end: int, limit: int) -> Proposal:
        """What followed the match of `length` tokens that ended at `end`."""
        if not length or not limit or end >= len(self._index.tokens):
            return Proposal()
        near = self._copied is not None and end - self._copied in _NEAR
        source: list[int] = self._index.tokens[end : end + limit].tolist()
        if len(source) < limit:  # past the end of the context the source is the draft itself
            source = (source * (limit // len(source) + 1))[:limit]
        place = min(length, _MATCH_LENGTH[-1]) - 1
        return Proposal(source, (_BY_LENGTH_NEAR if near else _BY_LENGTH)[place : place + limit])

    def _follow(self, context: Sequence[int]) -> None:
        """Index what is new. Interrupted half-way, start afresh: the next call then indexes everything."""
        try:
            self._index.extend(context[len(self._index.tokens) :])
        except BaseException:
            self._index = SuffixAutomaton()
            raise
        finally:
            self._ahead = [], *self._index.here()
