"""The regret ledger: what guessing has cost beyond plain decoding, and what it may still cost.

Everything is in plain passes: the time of a step over T1, the time of a pass over one token. With N tokens
emitted, the time of all steps is at most (1 + SHARE) * N + START, whatever is guessed and whatever it costs,
as long as every step that is not plain was admitted by its worst cost. Proof by induction: an admitted step
adds at most worst - 1 to the balance, since it emits at least one token, and the test bounds the result; a
plain step adds what looking for guesses took, which was admitted too. A step that costs more than its worst
overshoots by that difference once, and nothing is admitted until it is made up.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.02
"""Most that guessing may cost in the long run, as a share of plain decoding."""
START = 3.0
"""Plain passes that may be lost at first: with less, a perfect source never gets its first chance on a
machine where wide passes are dear."""
HOARD = 20.0
"""Most plain passes of earlier gains that may be lost again."""


@dataclass(slots=True)
class Ledger:
    """One for a session. `balance`: plain passes lost so far, negative when gained; `tokens`: emitted."""

    balance: float = 0.0
    tokens: int = 0

    @property
    def allowance(self) -> float:
        """What the balance may reach now."""
        return SHARE * self.tokens + START

    def admits(self, worst: float) -> bool:
        """Whether a step may be taken that costs `worst` at most and emits at least one token."""
        return self.balance + worst - 1 <= self.allowance

    def add(self, cost: float, tokens: int) -> None:
        """Enter a step: its cost in plain passes and the tokens it emitted."""
        self.tokens += tokens
        self.balance = max(self.balance + cost - tokens, -HOARD)
