"""What to do when a conversation does not fit the context: warn, leave out the oldest turns, or sum them up.

Pure: messages in, messages out; how long they are as tokens is asked of the caller. A turn is a question and
what followed it; turns stay whole, the system message and the last turn always stay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.chat.prompt import Message

WARN_AT = 0.8
"""From this share of the context on the user hears of it."""
CUT_TO = 0.75
"""Where something must go, goes down to this share of the room: the turns that follow then keep the cache."""
KEPT_TURNS = 2
"""Turns that a summary leaves as they are."""

SUMMARY_REQUEST = (
    "Summarise our conversation so far, so that it can go on from your summary alone. Keep every fact, name, "
    "number, file, decision and open question; write out code that still matters. Give only the summary."
)
SUMMARY_HEADING = "Summary of our conversation so far:"
UNDERSTOOD = "Understood."
MARKER = (
    Message("user", "(Earlier messages are left out here: they no longer fit.)"),
    Message("assistant", UNDERSTOOD),
)
"""What stands where turns were left out; without a count, so that it can itself be left out later."""


@dataclass(frozen=True, slots=True)
class Fit:
    """`used` of `total` tokens of the context are taken."""

    used: int
    total: int

    @property
    def room(self) -> int:
        """Tokens left, never below 0."""
        return max(0, self.total - self.used)

    @property
    def warn(self) -> bool:
        return self.used >= WARN_AT * self.total


def drop_oldest(
    messages: Sequence[Message], encode_length: Callable[[Sequence[Message]], int], room: int
) -> tuple[list[Message], list[Message]]:
    """What is kept so that `encode_length(kept) <= room` tokens, and the oldest turns, which are not.

    In place of the turns left out stands a pair of messages that says so. The last turn is kept even if it
    alone is too long: the caller must look. `encode_length` is asked about log2(turns) times.
    """
    if encode_length(messages) <= room:
        return list(messages), []
    system, rest = _split_system(messages)
    starts = _turns(rest)
    cuts = starts[1:]
    if not cuts:
        return list(messages), []

    def kept(cut: int) -> list[Message]:
        return [*system, *MARKER, *rest[cut:]]

    place = bisect_left(cuts, True, key=lambda cut: encode_length(kept(cut)) <= CUT_TO * room)
    cut = cuts[min(place, len(cuts) - 1)]
    return kept(cut), list(rest[:cut])


def older(messages: Sequence[Message], keep: int = KEPT_TURNS) -> list[Message]:
    """The turns that a summary would replace: all but the last `keep`, at least 1. [] if there are none."""
    _, rest = _split_system(messages)
    return list(rest[: older_length(rest, keep)])


def older_length(messages: Sequence[Message], keep: int) -> int:
    """How many of `messages` (no system message) stand before the last `keep` turns, at least 1."""
    starts = _turns(messages)
    return starts[-max(1, keep)] if len(starts) > max(1, keep) else 0


def summary_request(messages: Sequence[Message], keep: int = KEPT_TURNS) -> list[Message]:
    """What to ask the model for a summary of the older turns; [] when there are none.

    It begins as the conversation does, so that the cache need not be read again.
    """
    system, _ = _split_system(messages)
    old = older(messages, keep)
    return [*system, *old, Message("user", SUMMARY_REQUEST)] if old else []


def compacted(messages: Sequence[Message], summary: str, keep: int = KEPT_TURNS) -> list[Message]:
    """The conversation with `summary` in place of the older turns; unchanged when there are none."""
    system, rest = _split_system(messages)
    cut = older_length(rest, keep)
    return [*system, *summary_pair(summary), *rest[cut:]] if cut else list(messages)


def summary_pair(summary: str) -> list[Message]:
    """A summary as a turn, which every chat template can take."""
    return [Message("user", f"{SUMMARY_HEADING}\n\n{summary}"), Message("assistant", UNDERSTOOD)]


def stands_for_earlier(turn: Sequence[Message]) -> bool:
    """Whether a turn was never said: a mark or a summary in the place of earlier ones."""
    asked, answered = turn[0].content, [message.content for message in turn[1:]]
    return answered == [UNDERSTOOD] and (turn[0] == MARKER[0] or asked.startswith(f"{SUMMARY_HEADING}\n\n"))


def _split_system(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    n = 1 if messages and messages[0].role == "system" else 0
    return list(messages[:n]), list(messages[n:])


def _turns(messages: Sequence[Message]) -> list[int]:
    """Where each turn begins: at 0, and at every question behind it."""
    return [i for i, message in enumerate(messages) if i == 0 or message.role == "user"]
