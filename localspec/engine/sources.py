"""A source as the scheduler sees it: what its guesses cost, how often they are right, what asking is worth.

Two kinds. A *free* source (an index of the text) is asked at every step, and learns from every token, used or
not. A *costly* one (a draft model) computes its guesses one after another, and is worth asking only if what
it is about to say will probably pay; its guesses are believed more where a free source says the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from operator import mul, sub

from localspec.engine.chances import Chances, Outlook
from localspec.engine.cost import DraftCost
from localspec.engine.lines import NOTHING, Line, Passes
from localspec.engine.types import Dist, Drafter, Guess, Proposal, Sequential

PROBE_AFTER, PROBE_LATEST = 24, 512
"""Steps after which a costly source that was not used is tried again, doubling each time."""
MISSED = 2
"""So many drafts in a row wrong from the first guess on, and what asking is worth is worked out anew."""

ALONE, AGREED, CONTRADICTED = KINDS = ("alone", "agreed", "contradicted")
"""What a free source says about a guess: nothing, the same, something else."""
TABLES = (*KINDS, "agrees")
BELIEVED = {ALONE: (0.0, 1.0), AGREED: (0.5, 0.5), CONTRADICTED: (0.0, 0.95)}
"""What a guess's confidence c comes to before anything was counted, as (a, b) of a + b * c: two sources
seldom err alike."""
CONFIRMED = 0.97
"""How often a guess is right that two sources make."""
SECOND = 0.75
"""How well a costly source does, against its usual, where a free one is wrong."""
ALMOST = 0.999
READ_ALONG = 2.0
"""How much cheaper it must be to read a guess of another source along than to make it."""
UNLIKELY = 0.05
"""A guess that is worth reading along even at this chance is not thought about."""


@dataclass(slots=True)
class Free:
    """A source whose guesses cost no more than looking: asked at every step, taken when it pays.

    If its drafter has `peek(guessed, limit)`, which tells what it would guess behind further tokens, the
    first of the free sources also goes on where a costly one ends.
    """

    drafter: Drafter
    chances: Chances = field(default_factory=Chances)

    def learn(self, proposal: Proposal, emitted: Sequence[int]) -> None:
        """What was emitted where `proposal` was its guess, whether or not it was checked."""
        for guess, confidence, token in zip(proposal.tokens, proposal.confidence, emitted, strict=False):
            self.chances.learn(confidence, guess == token)
            if guess != token:
                return


@dataclass(slots=True)
class Costly:
    """A source that computes its guesses one after another.

    `tables`: for each of KINDS how often its guesses are right, and under "agrees" how often a free source's
    first guess, by its confidence, turns out to be this one's too. `prior`: how often it is expected to be
    right. `opened`: it has read the text so far. `idle`: steps since it last guessed. `asking`: what
    asking it is worth, as last worked out. `missed`: drafts in a row that were wrong from the first guess
    on. `why`: why it is not used, or "".
    """

    drafter: Sequential
    cost: DraftCost
    tables: Mapping[str, Chances] = field(default_factory=lambda: tables({}))
    prior: float = 0.7
    outlook: Outlook = field(init=False)
    opened: bool = field(default=False, init=False)
    idle: int = field(default=0, init=False)
    probe_after: int = field(default=PROBE_AFTER, init=False)
    asking: Asking | None = field(default=None, init=False)
    missed: int = field(default=0, init=False)
    why: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.outlook = Outlook(self.tables[ALONE], self.prior)

    def agreement(self, confidence: float) -> float:
        """Chance that it will say what a free source says with this confidence."""
        return self.tables["agrees"].rate(confidence)

    def begin(self, context: Sequence[int]) -> None:
        """A new turn: it may do better now, but has to read the text first."""
        self.drafter.begin(context)
        self.opened = False
        self.rearm()

    def rearm(self) -> None:
        """Something happened after which it may do better: try it again soon."""
        self.probe_after = PROBE_AFTER

    def probe_is_due(self) -> bool:
        """Whether it was not used for so long that it is to be tried; the next time comes later."""
        if self.idle < self.probe_after:
            return False
        self.probe_after = min(2 * self.probe_after, PROBE_LATEST)
        return True

    def learn(self, made: Made, said: Proposal, emitted: Sequence[int]) -> None:
        """What was emitted where it had `made` guesses and a free source `said` something, or nothing."""
        kinds = made.kinds
        if said.tokens and kinds:
            self.tables["agrees"].learn(said.confidence[0], kinds[0] == AGREED)
        right, judged, tables = 0, 0, self.tables
        for guess, believed, kind, token in zip(made.tokens, made.believed, kinds, emitted, strict=False):
            judged += 1
            tables[kind].learn(believed, guess == token)
            if guess != token:
                break
            right += 1
        if judged:
            self.outlook.learn(made.confidence, right, judged)
            self.missed = 0 if right else self.missed + 1
            if self.missed >= MISSED:
                self.asking = None


class Made:
    """A draft in the making. `tokens`, `confidence`, `dists`: of the guesses; `kinds`: what a free source
    said of each, `believed`: their confidence in view of that; `line`: what they are worth; `tail`: what a
    free source, `teller`, would say next, of which `ahead` guesses are being read along, which has `saved`
    passes so far; `reading`: seconds that all reading is expected to take.
    """

    __slots__ = (
        *("ahead", "believed", "confidence", "dists", "kinds", "line", "reading", "saved", "tail", "teller"),
        "tokens",
    )

    def __init__(self, reading: float) -> None:
        self.tokens: list[int] = []
        self.confidence: list[float] = []
        self.dists: list[Dist] = []
        self.kinds: list[str] = []
        self.believed: list[float] = []
        self.line, self.tail = Line(), NOTHING
        self.teller: Free | None = None
        self.reading, self.ahead, self.saved = reading, 0, 0

    def add(self, guess: Guess, costly: Costly) -> str:
        """One more guess of `costly`; what the free source says of it."""
        token, confidence, dist = guess
        tail, reach, gain, kind = self.tail, self.line.reach, self.line.gain, ALONE
        if tail.tokens:
            kind = CONTRADICTED
            if tail.tokens[0] == token:
                kind = AGREED
                self.tail = Proposal(tail.tokens[1:], tail.confidence[1:])
        base, share = BELIEVED[kind]
        believed = base + share * confidence
        chance = reach[-1] * costly.tables[kind].rate(believed)
        self.tokens.append(token)
        self.confidence.append(confidence)
        self.kinds.append(kind)
        self.believed.append(believed)
        reach.append(chance)
        gain.append(gain[-1] + chance)
        if dist is not None:
            self.dists.append(dist)
        return kind

    def proposal(self) -> Proposal:
        return Proposal(self.tokens, self.confidence, self.dists or None)


class Asking:
    """What asking a costly source is worth, in tokens, for as long as `passes` holds.

    `least`: if it is decided beforehand how much it guesses, best in a pass of `size` tokens; `perfect`: were
    all guesses right, the first one paid; `guess`: what one takes; `mean`: as of Outlook. Lines of a free
    source that begin with the same confidence are taken for alike. `drawn` as in Scheduler.
    """

    def __init__(self, costly: Costly, passes: Passes, *, drawn: bool) -> None:
        self.costly, self.passes, self.drawn = costly, passes, drawn
        self.guess = guess = passes.rate * costly.cost.guess
        self.mean = mean = costly.outlook.mean()
        usual = perfect = -math.inf
        for width, price, _, _ in passes.wider:
            cost = price + guess * (width - 2)  # from the first guess on
            if mean[width - 1] - cost >= usual:
                usual, self.size = mean[width - 1] - cost, width
            perfect = max(perfect, width - cost)
        self.perfect = perfect - guess
        self.least = 1 + usual
        self._plain = math.inf if drawn else passes.plain  # what it costs to drop all guesses, but for these
        self._lines: dict[tuple[str, float, int], tuple[float, float]] = {}

    @cached_property
    def alone(self) -> float:
        """What it is worth where no free source guesses: `least`, and more if the first guess may decide what
        is done next."""
        if self.drawn:
            return self.least
        ways = [(width, price + self.guess * (width - 2)) for width, price, _, _ in self.passes.wider]
        return self.costly.outlook.best([(1, self.passes.plain), *ways])

    def pays(self, lines: Sequence[Line], otherwise: float) -> bool:
        """Whether asking pays where free sources guess `lines` and the step is worth `otherwise` without."""
        bar, agree, agreed = otherwise + self.guess, 0.0, 0.0
        if lines:
            agree, confirmed = self._told(lines[0])
            agreed = agree * max(confirmed, otherwise)
        rest = 1 - agree
        return agreed + rest * self.least > bar or agreed + rest * self.alone > bar

    def _told(self, line: Line) -> tuple[float, float]:
        """Chance that it says what a free source says, and what `line`, of that source, is worth then."""
        confidence = line.proposal.confidence[0]
        key = line.parts[0][0], confidence, len(line.gain)
        if key not in self._lines:
            self._lines[key] = self.costly.agreement(confidence), self._confirmed(line)
        return self._lines[key]

    def _confirmed(self, line: Line) -> float:
        """What a line is worth whose first guess this source makes too."""
        factor, longest, best = CONFIRMED / line.reach[1], len(line), 0.0
        for width, price, _, _ in self.passes.wider:
            best = max(best, 1 + factor * line.gain[min(width - 1, longest)] - price)
            if width > longest:
                break
        return best

    def along(self, tail: Proposal, free: Free, prices: Sequence[float]) -> int:
        """How many guesses of `free` to read along, where that many cost `prices`, in guesses: while it is
        cheaper than passes of their own."""
        most = len(tail.tokens)
        if READ_ALONG * prices[most] < UNLIKELY * most:
            return most
        chances = accumulate(free.chances.rates(tail.confidence), mul, initial=1 / READ_ALONG)
        gains = [*map(sub, accumulate(chances), prices)]
        return gains.index(max(gains))

    def goes_on(self, line: Line, confidence: float) -> bool:
        """Whether one more guess pays behind those of `line`. `confidence`: of the last one."""
        reach, size = line.reach[-1], len(line.gain)
        usual = min(self.costly.outlook.after(confidence), ALMOST)
        expected, ahead, done, whole = 0.0, reach, 0, reach * usual / (1 - usual)
        here, wider = self.passes.beyond(size, self._plain + line.gain[-1])
        for width, price, _, _ in wider:
            guesses = width - size
            cost = price - here + self.guess * guesses
            if whole <= cost:  # nor can more guesses pay
                return False
            while done < guesses:
                ahead *= usual
                expected += ahead
                done += 1
            if expected > cost:
                return True
        return False

    def checks(self, line: Line, tail: Proposal, free: Free) -> bool:
        """The same where `free` knows how to go on, with `tail`: one more guess is a check of that."""
        reach, size = line.reach[-1], len(line.gain)
        gain: list[float] = [0.0, *accumulate(accumulate(free.chances.rates(tail.confidence), mul))]
        right, guess, mean, missed = gain[1], self.guess, self.mean, SECOND * reach
        if (1 - right) * missed * mean[-1] <= guess:  # it could not gain enough
            return False
        confirmed, longest = CONFIRMED * reach / right, len(gain) - 1
        here, wider = self.passes.beyond(size, self._plain + line.gain[-1])
        stop = agreed = 0.0  # what more guesses of `free` come to: at once, and after an answer that agrees
        for width, whole, _, _ in wider:
            guesses, price = width - size, whole - here
            told = gain[guesses] if guesses < longest else gain[-1]
            if (value := reach * told - price) > stop:
                stop = value
            if (value := confirmed * told - price) > agreed:
                agreed = value
            if guesses >= longest:
                break
        lacks = stop + guess - right * agreed  # and what own guesses must come to after one that does not
        if lacks < 0:
            return True
        for width, whole, _, _ in wider:
            guesses = width - size
            price = whole - here + guess * (guesses - 1)
            if (1 - right) * (missed * mean[guesses] - price) > lacks:
                return True
            if (1 - right) * (missed * mean[-1] - price) <= lacks:
                return False
        return False


def tables(saved: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Chances]:
    """The tables of a costly source, from saved counts by the same names."""
    return {name: Chances(saved.get(name, ())) for name in TABLES}
