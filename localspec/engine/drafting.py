"""Letting a costly source guess: whether, how long it goes on, and what of it to check.

It begins at the text's end, and a free source (an index of the text) may go on behind it. What the free
source would say is read along in the passes of the costly one, and tells how far to believe it: two
sources seldom make the same mistake. Decides by expected values; knows neither the ledger's rule nor how
costs are learnt, only what may be lost at this step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.engine.cost import PassCosts
from localspec.engine.lines import NOTHING, Line, Passes, Pick, best_pick
from localspec.engine.sources import AGREED, PROBE_LATEST, Asking, Costly, Free, Made
from localspec.engine.types import Proposal

BEHIND = 2
"""Unseen tokens that a draft leaves of which all was right."""
LIKELY = 0.6
"""Where a free source knows how to go on it is asked at every third guess whether to, while all are this
likely to be right."""
TAIL = 15
"""Guesses of a free source looked at behind those of a costly one."""


@dataclass(slots=True)
class Now:
    """The step to be decided. `room`: guesses that the answer has room for; `plain`: seconds of a plain
    pass; `left`: seconds that may be lost; `passes`: those to choose from; `said` and `lines`: what the free
    sources guess."""

    context: Sequence[int]
    room: int
    plain: float
    left: float
    passes: Passes
    said: list[tuple[Free, Proposal]]
    lines: list[Line]


class Drafting:
    """The part of the scheduler that asks costly sources. `drawn` as there."""

    def __init__(
        self, costs: PassCosts, free: Sequence[Free], clock: Callable[[], float], *, drawn: bool
    ) -> None:
        self.costs, self.free, self.clock, self.drawn = costs, free, clock, drawn
        self._peek: Callable[[Sequence[int], int], Proposal] | None
        self._peek = getattr(free[0].drafter, "peek", None) if free else None

    def ask(self, costly: Costly, now: Now, pick: Pick) -> tuple[Pick, Made] | None:
        """Let a costly source guess, and a free one behind that, if it pays where the step is worth `pick`
        without: what of it is worth checking, and what there is to learn from."""
        asking = costly.asking
        if asking is None or asking.passes is not now.passes:
            asking = costly.asking = Asking(costly, now.passes, drawn=self.drawn)
        pays = asking.pays(now.lines, pick.value)
        if not pays and costly.idle < costly.probe_after:
            return None
        unseen = costly.drafter.unseen(now.context)
        guess, reading = costly.cost.guess, costly.cost.reading(unseen)
        repays = asking.perfect - now.passes.rate * reading > pick.value
        if not repays and costly.idle < PROBE_LATEST:  # only to see whether its price is still what it was
            return None
        # What was read after a pause is lost unless enough is left for a whole draft and its check.
        size = asking.size if unseen > BEHIND else 2
        if (size - 1) * guess + reading + self._loss(now, size) > now.left:
            return None
        made = Made(reading)
        return self._compute(costly, now, unseen, made) if pays or costly.probe_is_due() else None

    def _compute(self, costly: Costly, now: Now, unseen: int, made: Made) -> tuple[Pick, Made]:
        """Its guesses, into `made`. `unseen`: tokens that it reads first."""
        started = self.clock()
        self._guess(costly, now, unseen, made, started)
        spent = self.clock() - started
        costly.cost.observe(len(made.tokens) - made.saved, made.reading, spent)
        costly.idle = 0
        proposal, whole = made.proposal(), made.line
        whole.proposal, whole.parts = proposal, [(costly.drafter.name, 0)]
        if self.drawn:  # all of it: to drop a guess for what it is would bias the text
            return Pick(0.0, whole, len(whole), now.passes.holding(len(whole) + 1)), made
        if made.teller and made.tail.tokens:
            rates = made.teller.chances.rates(made.tail.confidence)
            whole.add(made.teller.drafter.name, made.tail, rates)
        return self.pick([whole], now, now.left - spent, 0.0), made

    def pick(self, lines: Sequence[Line], now: Now, left: float, least: float) -> Pick:
        """The best pick; a plain pass if, as things stand now, it could lose more than `left` seconds."""
        pick = best_pick(lines, now.passes, now.room, left, least)
        if pick.kept and self.costs.worst(pick.width, len(now.context) - 1) - now.plain > left:
            now.passes.lasts = 0
            return Pick(1 - now.passes.plain)
        return pick

    def _guess(self, costly: Costly, now: Now, unseen: int, made: Made, started: float) -> None:
        """Guesses while another one pays; what a free source says is read along."""
        asking, widest, guess_takes = costly.asking, now.passes.widest(now.room), costly.cost.guess
        assert asking
        line, tokens = made.line, made.tokens
        safe = -math.inf if self.drawn else now.left - now.passes.most  # seconds after which to look closer
        if now.said:
            made.teller, made.tail = now.said[0]

        def suggest(_guessed: Sequence[int]) -> Sequence[int]:
            if not made.tail.tokens or not made.teller:
                made.ahead = 0
                return ()
            prices = costly.cost.along(1 if made.tokens else unseen, len(made.tail.tokens))
            made.ahead = asking.along(made.tail, made.teller, prices)
            spent = self.clock() - started + (0.0 if made.tokens else made.reading)
            if made.ahead and spent + guess_takes * prices[made.ahead] > safe:
                spare = (now.left - self._loss(now, len(made.tokens) + 2) - spent) / guess_takes
                while made.ahead and prices[made.ahead] > spare:
                    made.ahead -= 1
            made.reading += guess_takes * prices[made.ahead]
            return made.tail.tokens[: made.ahead]

        for guess in costly.drafter.follow(now.context, (), suggest):
            kind = made.add(guess, costly)
            if kind != AGREED or not made.tail.tokens:
                self._peek_behind(made, widest)
            size, free = len(tokens) + 1, kind == AGREED and made.ahead > 0
            spent = self.clock() - started + (0.0 if free else guess_takes)
            if size >= widest or (spent > safe and spent + self._loss(now, size + 1) > now.left):
                break
            if free:  # the next one needs no pass of its own
                made.ahead, made.saved = made.ahead - 1, made.saved + 1
            elif made.teller and made.tail.tokens:
                reach = line.reach[-1]
                if (size % 3 == 0 or reach < LIKELY) and not asking.checks(line, made.tail, made.teller):
                    break
            elif not asking.goes_on(line, guess.confidence):
                break

    def _loss(self, now: Now, size: int) -> float:
        """Seconds beyond a plain pass that one over `size` tokens may take; as things stand now, where the
        guesses are drawn, and so cannot be dropped any more."""
        if self.drawn:
            return self.costs.worst(now.passes.holding(size), len(now.context) - 1) - now.plain
        return now.passes.loss(size)

    def _peek_behind(self, made: Made, widest: int) -> None:
        """Ask the first free source what it would guess behind what was made, if it can tell."""
        room, made.tail = widest - 1 - len(made.tokens), NOTHING
        if self._peek and room > 0:
            made.tail = self._peek(made.tokens, room if room < TAIL else TAIL)
        made.teller = self.free[0] if made.tail.tokens else None
