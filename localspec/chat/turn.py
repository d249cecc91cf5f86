"""One turn: a prompt goes in, text streams out, an Answer with its figures remains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from localspec.chat.text import TextStream
from localspec.chat.thinking import THINK, Kind, Thinking
from localspec.engine.generate import Generator, Prefill
from localspec.engine.ledger import Ledger
from localspec.engine.stats import Stats
from localspec.engine.types import BadLogits, Cancelled, NothingAllowed, Step
from localspec.errors import LocalspecError

FinishReason = Literal["stop", "length", "context", "cancelled"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a turn.

    `text`: the answer, without what was thought before it. `finish_reason`: "stop" (end of turn or a stop
    string), "length" (token budget), "context" (no room left) or "cancelled". `tokens`: emitted tokens
    without the end of turn, thinking included, or None when a stop string cut the text.
    """

    text: str
    thinking: str
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
            "thinking": self.thinking,
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


@contextmanager
def failures_told() -> Iterator[None]:
    """LocalspecError, for the user, where the model or the grammar leaves nothing to say."""
    try:
        yield
    except NothingAllowed as error:
        raise LocalspecError(
            "no token of this model goes on as the grammar wants", "loosen the grammar or schema"
        ) from error
    except BadLogits as error:
        raise LocalspecError(
            f"the model computes no usable numbers ({error})",
            "the file may be damaged; try --flash-attn off, --kv-type f32 or another file",
        ) from error


def run_turn(
    generator: Generator,
    prompt: Sequence[int],
    *,
    piece: Callable[[int], bytes],
    max_tokens: int,
    thinking: Thinking | None = None,
    stops: Sequence[str] = (),
    on_text: Callable[[str], None] = lambda _: None,
    on_guess: Callable[[str], None] | None = None,
    on_thought: Callable[[str], None] = lambda _: None,
    on_step: Callable[[Step, Stats], None] = lambda _step, _stats: None,
) -> Answer:
    """Answer `prompt`. `piece` turns a token into its bytes, `thinking` tells the answer from thoughts.

    `on_text` receives text as it becomes certain, `on_guess` instead that of accepted guesses (a character of
    several tokens is the last one's), `on_thought` what is thought, `on_step` each step with the counts so
    far. `stops` count in the answer only.
    """
    stats = Stats()
    text = _Text(thinking or Thinking(THINK), TextStream(stops), on_text, on_guess or on_text, on_thought)
    emitted: list[int] = []

    def feed(tokens: Sequence[int], guessed: bool) -> None:
        raw = b"".join(piece(token) for token in tokens if not generator.is_end(token))
        text.feed(raw, guessed)

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
            if text.answer.stopped:
                break
    except Cancelled:
        finish = "cancelled"
    finally:
        steps.close()
    text.finish()
    stopped = text.answer.stopped
    return Answer(
        text="".join(text.shown),
        thinking="".join(text.thought),
        tokens=None if stopped else tuple(t for t in emitted if not generator.is_end(t)),
        finish_reason=finish or _finish_reason(emitted, text.answer, max_tokens, generator.is_end),
        prefill=generator.last_prefill,
        stats=stats,
    )


@dataclass(slots=True)
class _Text:
    """Bytes on their way to who shows them: decoded, thoughts put aside, the answer cut at a stop string."""

    thinking: Thinking
    answer: TextStream
    on_text: Callable[[str], None]
    on_guess: Callable[[str], None]
    on_thought: Callable[[str], None]
    shown: list[str] = field(default_factory=list)
    thought: list[str] = field(default_factory=list)
    _decoder: TextStream = field(default_factory=TextStream)

    def feed(self, raw: bytes, guessed: bool) -> None:
        self._take(self.thinking.feed(self._decoder.feed(raw)), guessed)

    def finish(self) -> None:
        """Everything that was held back."""
        self._take(self.thinking.feed(self._decoder.finish()), False)
        self._take(self.thinking.finish(), False)
        self._show(self.answer.finish())

    def _take(self, parts: Sequence[tuple[Kind, str]], guessed: bool) -> None:
        for kind, part in parts:
            if kind == "answer":
                self._show(self.answer.feed(part.encode(), guessed))
            elif part:
                self.thought.append(part)
                self.on_thought(part)

    def _show(self, text: str) -> None:
        self.shown.append(text)
        for guessed, pairs in groupby(zip(self.answer.guessed, text, strict=True), lambda pair: pair[0]):
            (self.on_guess if guessed else self.on_text)("".join(char for _, char in pairs))


def _finish_reason(
    emitted: list[int], stream: TextStream, max_tokens: int, is_end: Callable[[int], bool]
) -> FinishReason:
    if stream.stopped or (emitted and is_end(emitted[-1])):
        return "stop"
    return "length" if len(emitted) >= max_tokens else "context"
