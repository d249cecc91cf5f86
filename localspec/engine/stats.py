"""Counters over the steps of a turn or a session. Counted once, when a step is committed."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from localspec.engine.ledger import Ledger
from localspec.engine.types import Step

WINDOW = 8
"""Passes that the figures "of late" are about."""


@dataclass(slots=True)
class Tally:
    """Sums over passes. `tokens` counts everything emitted, `accepted` only the guesses among it."""

    passes: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, step: Step) -> None:
        self.passes += 1
        self.tokens += len(step.tokens)
        self.drafted += step.drafted
        self.accepted += step.accepted

    @property
    def mean_accepted_length(self) -> float:
        """Tokens emitted per target pass, the bonus token included (vLLM's convention)."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens; 0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "passes": self.passes,
            "tokens": self.tokens,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "mean_accepted_length": round(self.mean_accepted_length, 4),
            "acceptance_rate": round(self.acceptance_rate, 4),
        }


@dataclass(slots=True)
class Stats(Tally):
    """The tally of all passes, the same per source, what became of guesses, and where time went.

    `histogram`: tokens of a pass -> passes. `judged`, `right`: position in the draft, from 1 -> guesses that
    were compared with the target's choice there, and those it agreed with: what stands behind a wrong guess
    is never judged. `why`: reason for not guessing -> passes. `seconds_plain`: what plain decoding would have
    taken for the same tokens; `unpriced`: passes of which nobody knew that. `recent`: the last WINDOW steps.
    """

    seconds_draft: float = 0.0
    seconds_verify: float = 0.0
    seconds_host: float = 0.0
    seconds_open: float = 0.0
    seconds_plain: float = 0.0
    unpriced: int = 0
    histogram: Counter[int] = field(default_factory=Counter)
    judged: Counter[int] = field(default_factory=Counter)
    right: Counter[int] = field(default_factory=Counter)
    why: Counter[str] = field(default_factory=Counter)
    sources: dict[str, Tally] = field(default_factory=dict)
    recent: deque[Step] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def add(self, step: Step) -> None:
        Tally.add(self, step)
        self.sources.setdefault(step.source, Tally()).add(step)
        self.recent.append(step)
        self.histogram[len(step.tokens)] += 1
        self.judged.update(range(1, min(step.accepted + 1, step.drafted) + 1))
        self.right.update(range(1, step.accepted + 1))
        self.seconds_draft += step.seconds_draft
        self.seconds_verify += step.seconds_verify
        self.seconds_host += step.seconds_host
        self.seconds_open += step.seconds_open
        plain = step.width == 1 and not step.drafted  # is itself what plain decoding would have done
        self.seconds_plain += step.seconds_verify + step.seconds_host if plain else step.seconds_plain
        self.unpriced += not step.seconds_plain
        if step.why:
            self.why[step.why] += 1

    @property
    def seconds_decode(self) -> float:
        return self.seconds_draft + self.seconds_verify + self.seconds_host

    @property
    def tokens_per_second(self) -> float:
        """Decode only: prefill and loading are not in it."""
        return self.tokens / self.seconds_decode if self.seconds_decode > 0 else 0.0

    @property
    def gain(self) -> float | None:
        """Plain decoding's time over that of decoding and of opening sources; None when it is not known."""
        seconds = self.seconds_decode + self.seconds_open
        return self.seconds_plain / seconds if self.passes > self.unpriced == 0 and seconds > 0 else None

    @property
    def acceptance_by_position(self) -> dict[int, float]:
        """Position in the draft, from 1 -> share of the guesses judged there that were right."""
        return {j: self.right[j] / self.judged[j] for j in sorted(self.judged)}

    @property
    def shares(self) -> dict[str, float]:
        """Source -> its share of the tokens emitted, the bonus of its passes included; largest first."""
        by_tokens = sorted(self.sources.items(), key=lambda item: (-item[1].tokens, item[0]))
        return {name: tally.tokens / self.tokens for name, tally in by_tokens}

    def as_dict(self, ledger: Ledger | None = None) -> dict[str, Any]:
        """The counts as JSON; seconds are wall clock, shares and rates in [0, 1].

        `accepted_length_histogram`: tokens per pass -> passes. `acceptance_by_position`: position in the
        draft, from 1 -> {judged, accepted, rate}. `sources`: name -> counts; `share_of_tokens`: name -> share
        of the tokens emitted. `why`: why nothing was guessed -> passes. `gain`: seconds plain decoding would
        have taken (`seconds_plain`) over seconds of decoding and of opening sources (`seconds_open`), null
        when not known. `ledger`: {balance, allowance, tokens} of the whole session, the first two in plain
        passes, null without a scheduler.
        """
        return {
            **Tally.as_dict(self),
            "accepted_length_histogram": {str(n): self.histogram[n] for n in sorted(self.histogram)},
            "acceptance_by_position": {
                str(j): {"judged": self.judged[j], "accepted": self.right[j], "rate": round(rate, 4)}
                for j, rate in self.acceptance_by_position.items()
            },
            "sources": {name: tally.as_dict() for name, tally in sorted(self.sources.items())},
            "share_of_tokens": {name: round(share, 4) for name, share in self.shares.items()},
            "why": dict(self.why.most_common()),
            "gain": None if self.gain is None else round(self.gain, 4),
            "seconds_plain": round(self.seconds_plain, 6),
            "seconds_open": round(self.seconds_open, 6),
            "ledger": None if ledger is None else _ledger(ledger),
        }


def _ledger(ledger: Ledger) -> dict[str, float]:
    return {
        "balance": round(ledger.balance, 4),
        "allowance": round(ledger.allowance, 4),
        "tokens": ledger.tokens,
    }
