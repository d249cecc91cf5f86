"""Guesses from the file that is being rewritten: what comes next in it, with the changes made so far.

While text and file agree, the guesses are the file's next tokens. Where they part, `align` says at once where
the text probably goes on, and the guesses go on there. Changes are carried on (`changes`): of a block's
indentation, of a word, and those made before between the same tokens. Knows token ids and the Drafter
protocol; must not know models or what a pass costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from localspec.drafters.align import Gap, Original, Place, best_place
from localspec.drafters.changes import Changes, Way
from localspec.engine.types import Proposal

CLOSED, SOON, SURE = 6, 4, 0.6
"""Tokens in a row that agree, after which the text is taken to follow the original again; or fewer, of those
since they parted, with this chance."""
LEAST_CHANCE = 0.2
"""Nothing is guessed where the first guess would be less likely."""
MOST_TOKENS = 1 << 16
"""Of the original that are followed."""
START = 12
"""Tokens of agreement that a reply is credited with at its beginning: models write fences reliably, but the
first lines of a file (imports, a signature) change more often than others."""
RISKS, LEAST = (0.4, 1.0, 1.0), 0.009
"""That the next token is another one, by what it is (`Original.kinds`): this much over the tokens that
agreed, but no less than this share of it."""
PARTS = [max(1 / (run + 1), LEAST) for run in range(round(1 / LEAST))]


class EditDrafter:
    """Drafts what follows in an original, which `follow_file` sets. Silent without one.

    `piece`: the bytes of a token; `tokenize`: the tokens of a text that is no beginning of one.
    """

    name: Final = "edit"

    def __init__(self, piece: Callable[[int], bytes], tokenize: Callable[[str], Sequence[int]]) -> None:
        self._piece, self._tokenize = piece, tokenize
        self._original = Original((), piece)
        self._reply_start = 0
        self._reset()

    def follow_file(self, original: Sequence[int], reply_start: int) -> None:
        """The reply that starts at token `reply_start` of the context rewrites `original`: the tokens of a
        reply that would change nothing, its fences included. Empty: no file is rewritten."""
        self._original = Original(original[:MOST_TOKENS], self._piece)
        self._reply_start = reply_start
        self._reset()

    def _reset(self) -> None:
        self._text: list[int] = []  # the reply
        self._line, self._lines = bytearray(), 0  # its last line, and how many came before
        self._at, self._run, self._shift = (
            0,
            START,
            0,
        )  # the next token of the original, and how we came there
        self._way: Way | None = None  # through the original from there, where that is not as it is ...
        self._done = 0  # ... and how far along it
        self._gap, self._gap_text = -1, 0  # where original and text parted, -1 while they agree
        self._gap_lines = 0
        self._found: Place | None = None  # where the text probably goes on in the original then
        self._changes = Changes(self._original, self._piece, self._tokenize)

    def begin(self, context: Sequence[int]) -> None:
        self._reset()

    def propose(self, context: Sequence[int], limit: int, go_on: Callable[[float], bool]) -> Proposal:
        """At most `limit` guesses. Confidence: how often such a guess is right."""
        if not self._original or len(context) < self._reply_start:
            return Proposal()
        for token in context[self._reply_start + len(self._text) :]:
            self._observe(token)
        if self._gap < 0:
            place = Place(self._at, self._run, self._shift)
            return self._guesses(place, limit)
        found = self._found
        return self._guesses(found, limit) if found and found.chance >= LEAST_CHANCE else Proposal()

    def _observe(self, token: int) -> None:
        """The next token of the reply."""
        self._text.append(token)
        piece = self._piece(token)
        cut = piece.rfind(b"\n") + 1
        if cut:
            self._line.clear()
            self._lines += piece.count(b"\n")
        self._line += piece[cut:]
        if self._gap < 0 and not self._follows(token) and not self._turns():
            self._gap, self._gap_text = self._at, len(self._text) - 1 - self._done
            self._gap_lines = self._lines - piece.count(b"\n")
            self._way, self._done = None, 0
        if self._gap >= 0:
            self._found = best_place(self._original, self._text, self._gap_now())
            if self._found and self._is_closed(self._found):
                self._close(self._found)

    def _follows(self, token: int) -> bool:
        """Whether the token is the expected one; then the original is a token further."""
        if self._way is None:
            self._way = self._changes.way(self._at, self._shift)
        if self._way:
            if self._way.tokens[self._done] != token:
                return False
            self._go(self._way, self._done + 1)
        elif self._at < len(self._original) and self._original.tokens[self._at] == token:
            self._at += 1
            if self._changes.marks:
                self._changes.passed(self._at)
        else:
            return False
        self._run += 1
        return True

    def _go(self, way: Way, done: int) -> None:
        """The text has come `done` tokens along `way`."""
        self._way, self._done, self._at = way, done, way.first
        if done == len(way.tokens):
            way.confirm()
            self._way, self._done, self._at = None, 0, way.end

    def _turns(self) -> bool:
        """Whether the text has taken another way where something may be changed: then they do not part."""
        if self._at >= len(self._original):
            return False
        starts = {self._at: self._done}
        if not self._way:
            first = self._original.segment_of[self._at]
            starts[first] = self._at - first
        for first, done in starts.items():
            said = tuple(self._text[len(self._text) - done - 1 :])
            for way in self._changes.others(first, self._shift):
                if way.tokens[: done + 1] == said:
                    self._go(way, done + 1)
                    self._run += 1
                    return True
        return False

    def _gap_now(self) -> Gap:
        content = self._line.lstrip(b" \t")
        indent = len(self._line) - len(content) if content else None
        return Gap(self._gap, len(self._text) - self._gap_text, self._lines - self._gap_lines, indent)

    def _is_closed(self, place: Place) -> bool:
        fresh = min(place.run, len(self._text) - self._gap_text)
        return place.run >= CLOSED or (fresh >= SOON and place.chance >= SURE)

    def _close(self, place: Place) -> None:
        """Follow the original again, at `place`."""
        stop = len(self._text) - min(place.run, len(self._text) - self._gap_text)
        end = place.at - (len(self._text) - stop)
        self._changes.learn(self._gap, end, self._text, self._gap_text, stop)
        self._at, self._run, self._shift, self._gap = place.at, place.run, place.shift, -1

    def _guesses(self, place: Place, limit: int) -> Proposal:
        """What follows in the original at `place`, or on the way from there."""
        original, changes, at = self._original, self._changes, place.at
        tokens: list[int] = []
        doubts: dict[int, float] = {}  # guess -> chance, where a change makes it less certain
        risks = bytearray()
        way, done = (self._way, self._done) if self._gap < 0 else (None, 0)
        while len(tokens) < limit and at < len(original):
            way = way or changes.way(at, place.shift)
            if way:
                if not done:
                    doubts[len(tokens)] = way.chance
                tokens += way.tokens[done:]
                risks += bytes(len(way.tokens) - done)
                at, way, done = way.end, None, 0
                continue
            if at in changes.marks:
                doubts[len(tokens)] = 1 - changes.doubt(at)
            stop = changes.next_mark(at + 1, min(at + limit - len(tokens), len(original)), place.shift)
            tokens += original.tokens[at:stop]
            risks += original.kinds[at:stop]
            at = stop
        del tokens[limit:], risks[limit:]
        sure = [1.0 - RISKS[kind] * chance for kind, chance in zip(risks, PARTS[place.run :], strict=False)]
        sure += [1.0 - RISKS[kind] * LEAST for kind in risks[len(sure) :]]
        for i, chance in doubts.items():
            if i < limit:
                sure[i] *= chance
        if sure and place.chance < 1:
            sure[0] = place.chance
        return Proposal(tokens, sure)
