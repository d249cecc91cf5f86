"""A conversation with a loaded model: what was said, and how the next answer is streamed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from localspec.app import Loaded
from localspec.chat.prompt import ChatTemplate, Message
from localspec.chat.turn import Answer, run_turn
from localspec.engine.stats import Stats
from localspec.engine.types import BadLogits, Step
from localspec.errors import LocalspecError, UsageError
from localspec.ui.status import LiveLine, live_text, summary_text
from localspec.ui.terminal import Terminal


@dataclass(slots=True)
class Conversation:
    """Keeps the messages; the model's cache keeps their common prefix from turn to turn."""

    loaded: Loaded
    terminal: Terminal
    messages: list[Message] = field(default_factory=list)
    template: ChatTemplate = field(init=False)

    def __post_init__(self) -> None:
        target = self.loaded.target
        self.template = ChatTemplate(target.chat_template, target.vocab, self.terminal.note)
        if self.loaded.settings.system:
            self.messages.append(Message("system", self.loaded.settings.system))

    def ask(self, question: str, *, stream: bool = True) -> Answer:
        """Answer `question` and remember both. `stream`: show the text and its figures as they come.

        Raises UsageError, and forgets the question, when the prompt does not fit the context.
        """
        settings, target = self.loaded.settings, self.loaded.target
        asked = [*self.messages, Message("user", question)]
        prompt = self.template.encode(asked)
        if len(prompt) > target.n_ctx:
            raise UsageError(
                f"the prompt has {len(prompt)} tokens, the context {target.n_ctx}",
                f"give --ctx {_next_power(len(prompt))} or a shorter prompt",
            )
        line = LiveLine(self.terminal)
        target.on_progress = lambda done, total: line.update(f"reading the prompt: {done} of {total} tokens")

        def on_step(step: Step, stats: Stats) -> None:
            line.update(live_text(stats, step.source))

        try:
            answer = run_turn(
                self.loaded.generator,
                prompt,
                piece=target.vocab.piece,
                max_tokens=settings.max_tokens or target.n_ctx,
                stops=settings.stop,
                on_text=line.write if stream else lambda _: None,
                on_step=on_step,
            )
        except BadLogits as error:
            raise LocalspecError(
                f"the model computes no usable numbers ({error})",
                "the file may be damaged; try --flash-attn off, --kv-type f32 or another file",
            ) from error
        finally:
            line.clear()
        self.messages = [*asked, Message("assistant", answer.text, answer.tokens)]
        return answer

    def summarise(self, answer: Answer) -> None:
        """The line of figures after an answer, and why it ended if not by itself."""
        ends = {
            "cancelled": "stopped",
            "length": "stopped at --max-tokens",
            "context": f"stopped: the context of {self.loaded.target.n_ctx} tokens is full",
        }
        why = ends.get(answer.finish_reason)
        self.terminal.note(summary_text(answer.stats, self.loaded.seed) + (f" · {why}" if why else ""))

    def report(self, answer: Answer) -> dict[str, Any]:
        """The JSON object of an answer."""
        return {
            **answer.as_dict(),
            "seed": self.loaded.seed,
            "model": str(self.loaded.target.path),
            "context": {"used": len(self.loaded.target.tokens), "total": self.loaded.target.n_ctx},
        }


def _next_power(n: int) -> int:
    return 1 << n.bit_length()
