"""A source as the scheduler sees it: what its guesses cost and how often they are right.

Two kinds. A *free* source (an index of the text) is asked at every step, and learns from every token, used or
not. A *costly* one (a draft model) computes its guesses one after another, and is worth asking only if what
it is about to say will probably pay; its guesses are believed more where a free source says the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from localspec.engine.chances import Chances, Outlook
from localspec.engine.cost import DraftCost
from localspec.engine.types import Drafter, Proposal, Sequential

PROBE_AFTER, PROBE_LATEST = 24, 512
"""Steps after which a costly source that was not used is tried again, doubling each time."""

ALONE, AGREED, CONTRADICTED = KINDS = ("alone", "agreed", "contradicted")
"""What a free source says about a guess: nothing, the same, something else."""
TABLES = (*KINDS, "agrees")


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


@dataclass(frozen=True, slots=True)
class Drafted:
    """What a costly source guessed, behind which guesses of others, and what a free source said of each."""

    before: tuple[int, ...]
    proposal: Proposal
    kinds: Sequence[str]


@dataclass(slots=True)
class Costly:
    """A source that computes its guesses one after another.

    `tables`: for each of KINDS how often its guesses are right, and under "agrees" how often a free source's
    first guess, by its confidence, turns out to be this one's too. `prior`: how often it is expected to be
    right. `opened`: it has read the text so far. `idle`: steps since it last guessed. `valued`:
    what asking it was worth, in tokens, with the steps for which that still counts and the widest pass it was
    for. `why`: why it is not used, or "".
    """

    drafter: Sequential
    cost: DraftCost
    tables: Mapping[str, Chances] = field(default_factory=lambda: tables({}))
    prior: float = 0.7
    outlook: Outlook = field(init=False)
    opened: bool = field(default=False, init=False)
    idle: int = field(default=0, init=False)
    probe_after: int = field(default=PROBE_AFTER, init=False)
    valued: tuple[int, int, float] = field(default=(0, 0, 0.0), init=False)
    why: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.outlook = Outlook(self.tables[ALONE], self.prior)

    def rate(self, confidence: float, kind: str) -> float:
        """Chance that a guess is right, now that it is known what a free source says."""
        return self.tables[kind].rate(_believed(confidence, kind))

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

    def learn(self, drafted: Drafted, said: Proposal, emitted: Sequence[int]) -> None:
        """What was emitted where it guessed `drafted` and a free source `said` something, or nothing."""
        if said.tokens and not drafted.before and drafted.kinds:
            self.tables["agrees"].learn(said.confidence[0], drafted.kinds[0] == AGREED)
        if drafted.before != tuple(emitted[: len(drafted.before)]):
            return
        guesses, right, judged = drafted.proposal, 0, 0
        behind = emitted[len(drafted.before) :]
        for guess, confidence, kind, token in zip(
            guesses.tokens, guesses.confidence, drafted.kinds, behind, strict=False
        ):
            judged += 1
            self.tables[kind].learn(_believed(confidence, kind), guess == token)
            if guess != token:
                break
            right += 1
        if judged:
            self.outlook.learn(guesses.confidence, right, judged)


def tables(saved: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Chances]:
    """The tables of a costly source, from saved counts by the same names."""
    return {name: Chances(saved.get(name, ())) for name in TABLES}


def _believed(confidence: float, kind: str) -> float:
    """What a guess's confidence comes to before anything was counted: two sources seldom err alike."""
    if kind == AGREED:
        return (1 + confidence) / 2
    return 0.95 * confidence if kind == CONTRADICTED else confidence
