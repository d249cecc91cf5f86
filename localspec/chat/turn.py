"""One turn: a prompt goes in, text streams out, an Answer with its figures remains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from localspec.chat.text import TextStream
from localspec.engine.generate import Generator, Prefill
from localspec.engine.ledger import Ledger
from localspec.engine.stats import Stats
from localspec.engine.types import Cancelled, Step

FinishReason = Literal["stop", "length", "context", "cancelled"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a turn.

    `finish_reason`: "stop" (end of turn or a stop string), "length" (token budget), "context" (no room left)
    or "cancelled". `tokens`: emitted tokens without the end of turn, or None when a stop string cut the text.
    """

    text: str
    tokens: tuple[int, ...] | None
    finish_reason: FinishReason
    prefill: Prefill
    stats: Stats

    def as_dict(self, ledger: Ledger | None = None) -> dict[str, Any]:
        """The part of the JSON output that describes the turn. Seconds are wall clock.

        `ledger`: the session's, if it has one.
        """
        stats = self.stats
        return {
            "text": self.text,
            "finish_reason": self.finish_reason,
            "timings": {
                "tokens_per_second": round(stats.tokens_per_second, 3),
                "seconds_prefill": round(self.prefill.seconds, 6),
                "seconds_decode": round(stats.seconds_decode, 6),
                "seconds_draft": round(stats.seconds_draft, 6),
                "seconds_verify": round(stats.seconds_verify, 6),
                "seconds_host": round(stats.seconds_host, 6),
                "tokens_prefill": self.prefill.tokens_read,
                "tokens_reused": self.prefill.tokens_reused,
            },
            "stats": stats.as_dict(ledger),
        }


def run_turn(
    generator: Generator,
    prompt: Sequence[int],
    *,
    piece: Callable[[int], bytes],
    max_tokens: int,
    stops: Sequence[str] = (),
    on_text: Callable[[str], None] = lambda _: None,
    on_guess: Callable[[str], None] | None = None,
    on_step: Callable[[Step, Stats], None] = lambda _step, _stats: None,
) -> Answer:
    """Answer `prompt`. `piece` turns a token into its bytes.

    `on_text` receives text as it becomes certain, `on_guess` instead that of accepted guesses (a character of
    several tokens is the last one's), `on_step` each step with the counts so far.
    """
    stream, stats = TextStream(stops), Stats()
    shown: list[str] = []
    emitted: list[int] = []

    def show(text: str) -> None:
        shown.append(text)
        for guessed, pairs in groupby(zip(stream.guessed, text, strict=True), lambda pair: pair[0]):
            (on_guess if on_guess and guessed else on_text)("".join(char for _, char in pairs))

    def feed(tokens: Sequence[int], guessed: bool) -> None:
        raw = b"".join(piece(token) for token in tokens if not generator.is_end(token))
        show(stream.feed(raw, guessed))

    finish: FinishReason | None = None
    steps = generator.generate(prompt, max_tokens)
    try:
        for step in steps:
            stats.add(step)
            emitted += step.tokens
            guesses = step.accepted if on_guess else 0
            feed(step.tokens[:guesses], True)
            feed(step.tokens[guesses:], False)
            on_step(step, stats)
            if stream.stopped:
                break
    except Cancelled:
        finish = "cancelled"
    finally:
        steps.close()
    show(stream.finish())
    return Answer(
        text="".join(shown),
        tokens=None if stream.stopped else tuple(t for t in emitted if not generator.is_end(t)),
        finish_reason=finish or _finish_reason(emitted, stream, max_tokens, generator.is_end),
        prefill=generator.last_prefill,
        stats=stats,
    )


def _finish_reason(
    emitted: list[int], stream: TextStream, max_tokens: int, is_end: Callable[[int], bool]
) -> FinishReason:
    if stream.stopped or (emitted and is_end(emitted[-1])):
        return "stop"
    return "length" if len(emitted) >= max_tokens else "context"
