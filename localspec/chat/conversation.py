"""A conversation with a loaded model: what was said, and how the next answer is streamed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from localspec.app import Loaded
from localspec.chat.prompt import ChatTemplate, Message
from localspec.chat.turn import Answer, run_turn
from localspec.engine.schedule import Scheduler
from localspec.engine.stats import Stats
from localspec.engine.types import BadLogits, Step
from localspec.errors import LocalspecError, UsageError
from localspec.ui.status import LiveLine, live_text, report_text, summary_text, why_no_gain
from localspec.ui.terminal import Terminal


@dataclass(slots=True)
class Conversation:
    """Keeps the messages; the model's cache keeps their common prefix from turn to turn.

    `show_drafts`: underline accepted guesses on a terminal. `session`: the counts of all turns.
    """

    loaded: Loaded
    terminal: Terminal
    show_drafts: bool = False
    messages: list[Message] = field(default_factory=list)
    session: Stats = field(default_factory=Stats, init=False)
    template: ChatTemplate = field(init=False)
    _scheduler: Scheduler | None = field(init=False)
    _plain_first: float = field(init=False)  # seconds of a plain pass as it was measured, 0 if it was not

    def __post_init__(self) -> None:
        target, policy = self.loaded.target, self.loaded.generator.policy
        self._scheduler = policy if isinstance(policy, Scheduler) else None
        self._plain_first = self._scheduler.costs.known()[1] if self._scheduler else 0.0
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
            self.session.add(step)
            line.update(live_text(stats))

        def on_guess(text: str) -> None:
            line.write(text, underlined=True)

        try:
            answer = run_turn(
                self.loaded.generator,
                prompt,
                piece=target.vocab.piece,
                max_tokens=settings.max_tokens or target.n_ctx,
                stops=settings.stop,
                on_text=line.write if stream else lambda _: None,
                on_guess=on_guess if stream and self._underlines else None,
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
        figures = summary_text(answer.stats, self.loaded.seed, self._why_no_gain(answer))
        self.terminal.note(figures + (f" · {why}" if why else ""))

    def show_stats(self) -> None:
        """The figures of the whole session, on stderr."""
        ledger = self._scheduler.ledger if self._scheduler else None
        self.terminal.progress("")
        self.terminal.say(report_text(self.session, ledger, self.terminal.columns))

    @property
    def _underlines(self) -> bool:
        """Whether guesses are to be underlined and can be: a terminal shows the answer, and is not dumb."""
        terminal = self.terminal
        return self.show_drafts and terminal.out_tty and (terminal.err_live or not terminal.err_tty)

    def _why_no_gain(self, answer: Answer) -> str | None:
        """Why guessing did not pay in this answer; None when it did or was not wanted."""
        policy, loaded = self._scheduler, self.loaded
        if policy is None:
            return None
        return why_no_gain(
            answer.stats,
            seconds_prefill=answer.prefill.seconds,
            temperature=loaded.settings.temp,
            tokens_context=len(loaded.target.tokens),
            slowdown=policy.costs.known()[1] / self._plain_first,
            spread=policy.costs.spread(),
            draft_waits=any(costly.why and not costly.opened for costly in policy.costly),
            left_out=next((why.rstrip(".") for why in loaded.plan.why if "does not fit" in why), ""),
        )

    def report(self, answer: Answer) -> dict[str, Any]:
        """The JSON object of an answer."""
        return {
            **answer.as_dict(self._scheduler.ledger if self._scheduler else None),
            "seed": self.loaded.seed,
            "model": str(self.loaded.target.path),
            "context": {"used": len(self.loaded.target.tokens), "total": self.loaded.target.n_ctx},
        }


def _next_power(n: int) -> int:
    return 1 << n.bit_length()
