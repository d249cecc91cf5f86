"""A conversation with a loaded model: what was said, how the next answer comes about, and where it is kept.

The model's cache keeps the common prefix from turn to turn, also after something was taken back. What the
user types, sees and chooses is talk.py's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from localspec.app import Loaded
from localspec.chat import window
from localspec.chat.prompt import ChatTemplate, Message
from localspec.chat.session import Session
from localspec.chat.transcript import Header, Said, Transcript, title_of
from localspec.chat.turn import Answer, failures_told, run_turn
from localspec.chat.views import Muted, Show, View
from localspec.chat.window import Fit
from localspec.engine.schedule import Scheduler
from localspec.engine.stats import Stats
from localspec.engine.types import Step
from localspec.errors import LocalspecError, UsageError
from localspec.ui.status import live_text, report_text, summary_text, why_no_gain
from localspec.ui.terminal import Terminal

LEAST_ROOM = 8
"""The answer has at least one token in so many of the context's, or the prompt counts as too long."""


class ContextFull(UsageError):
    """The conversation and the question leave no room for an answer. `turns`: earlier ones are in its way."""

    def __init__(self, used: int, total: int, *, turns: bool) -> None:
        hint = f"give --ctx {1 << used.bit_length()}, or "
        hint += "shorten the conversation with /compact" if turns else "less text"
        super().__init__(f"the prompt has {used} tokens, the context {total}", hint)
        self.used, self.total, self.turns = used, total, turns


@dataclass(slots=True)
class Conversation:
    """`session`: where it is kept, if it is. `stats`: the counts of all turns. `last`: the latest answer.
    `unanswered`: the last question, if nothing came of it; it is in no prompt.

    A session that cannot be written costs no answer: the user hears of it once, and it goes on unkept.
    """

    loaded: Loaded
    terminal: Terminal
    show: Show = field(default_factory=Show)
    session: Session | None = None
    messages: list[Message] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats, init=False)
    last: Answer | None = field(default=None, init=False)
    unanswered: str | None = field(default=None, init=False)
    template: ChatTemplate = field(init=False)
    _used: int | None = field(default=None, init=False)  # tokens that the messages take, if that is known
    _plain_first: float = field(default=0.0, init=False)  # seconds of a plain pass when it was first measured

    def __post_init__(self) -> None:
        loaded, target = self.loaded, self.loaded.target
        if self._scheduler:
            self._plain_first = self._scheduler.costs.known()[1]
        self.unanswered = self.session.unanswered if self.session else self.unanswered
        # A grammar holds for all that is emitted: thoughts would have to follow it too.
        constrained = loaded.generator.sampler.constraint is not None
        thinks = False if constrained and loaded.settings.think is None else loaded.settings.think
        self.template = ChatTemplate(target.chat_template, target.vocab, self.terminal.note, thinking=thinks)

    def close(self) -> None:
        """Let go of the session and the template; the model stays loaded."""
        self.template.close()
        if self.session:
            self.session.close()

    def use(self, loaded: Loaded) -> None:
        """Go on with another load. Token ids of another model are forgotten."""
        if loaded.plan.target.fingerprint != self.loaded.plan.target.fingerprint:
            self.messages = [replace(message, tokens=None) for message in self.messages]
        self.template.close()
        self.loaded, self._used = loaded, None
        self.__post_init__()

    def begin(self, messages: Sequence[Message]) -> None:
        """Another conversation, of which so much was said; for those that are not kept."""
        self.messages, self._used = list(messages), None

    @property
    def fit(self) -> Fit:
        """How full the context is."""
        if self._used is None:
            self._used = self._length(self.messages) if self.messages else 0
        return Fit(self._used, self.loaded.target.n_ctx)

    @property
    def room(self) -> int:
        """Tokens a question may still have."""
        return max(0, self._most - self.fit.used)

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return len(self.loaded.target.vocab.tokenize(text, special=False))

    def ask(self, question: str, view: View | None = None, max_tokens: int | None = None) -> Answer:
        """Answer `question`, keep both. `view`: who shows the answer, by default as `show` says.

        Raises ContextFull, with nothing changed or kept, when there is no room for it.
        """
        asked = [*self.messages, Message("user", question)]
        prompt = self.template.encode(asked)
        total, turns = self.loaded.target.n_ctx, any(message.role == "assistant" for message in self.messages)
        if len(prompt) > (self._most if turns else total):
            raise ContextFull(len(prompt), total, turns=turns and self._fits_alone(asked[-1]))
        self._record(lambda session: session.add(asked[-1]))
        self.unanswered = question
        answer = self._generate(prompt, view or self.show.view(self.terminal), max_tokens)
        stopped = answer.finish_reason == "cancelled"
        if stopped and not answer.tokens:  # the question stays open
            self._used = None
            return answer
        self.unanswered = None
        said = Message("assistant", answer.text, answer.tokens, answer.thinking)
        self.messages, self.last = [*asked, said], answer
        self._used = len(self.loaded.target.tokens)
        self._record(lambda session: session.add(said, stopped=stopped, seed=self.loaded.seed))
        return answer

    def undo(self) -> str:
        """Take back the last question and its answer; the question. Raises UsageError if there is none."""
        if self.unanswered is not None:
            question, self.unanswered = self.unanswered, None
            self._record(lambda session: session.undo())
            return question
        places = [i for i, message in enumerate(self.messages) if message.role == "user"]
        if not places or window.stands_for_earlier(self.messages[places[-1] :]):
            raise UsageError("there is nothing to take back", "ask something first")
        question = self.messages[places[-1]].content
        self._record(lambda session: session.undo())
        self.messages, self._used = self.messages[: places[-1]], None
        return question

    def clear(self) -> None:
        """Forget what was said; the system message stays."""
        self._record(lambda session: session.clear())
        self.messages = [message for message in self.messages if message.role == "system"]
        self._used = self.unanswered = None

    @property
    def system(self) -> str:
        """The system message, "" if there is none."""
        return next((message.content for message in self.messages if message.role == "system"), "")

    def set_system(self, text: str) -> None:
        """Another system message from the next turn on, "" for none."""
        self._record(lambda session: session.set_system(text))
        rest = [message for message in self.messages if message.role != "system"]
        self.messages = [Message("system", text), *rest] if text else rest
        self._used = None

    def compact(self) -> bool:
        """Put the model's summary in place of the older turns; False if the user stopped it.

        Raises UsageError when there are no older turns, or the summary is no shorter than they are.
        """
        request, _ = window.drop_oldest(window.summary_request(self.messages), self._length, self._most)
        if not request:
            raise UsageError("there is too little to shorten", "/clear forgets the conversation")
        sampler = self.loaded.generator.sampler
        constraint, sampler.constraint = sampler.constraint, None
        try:
            answer = self._generate(self.template.encode(request), Muted(self.terminal), self._most // 4)
        finally:
            sampler.constraint = constraint
        if answer.finish_reason == "cancelled" or not answer.text.strip():
            return False
        shorter = window.compacted(self.messages, answer.text)
        if self._length(shorter) >= self._length(self.messages):
            raise UsageError("the summary is as long as what it sums up", "/clear forgets the conversation")
        self._record(lambda session: session.summarise(answer.text, window.KEPT_TURNS))
        self.messages, self._used = shorter, None
        return True

    def drop_oldest(self, question: str) -> int:
        """Leave out the oldest turns until `question` fits, with a mark in their place; how many messages.

        They stay in the session.
        """
        asked = [*self.messages, Message("user", question)]
        kept, dropped = window.drop_oldest(asked, self._length, self._most)
        self.messages, self._used = kept[:-1], None
        return len(dropped)

    def transcript(self) -> Transcript:
        """All that was said, as a session has it."""
        if self.session:
            return self.session.transcript
        title = next((m.content for m in self.messages if m.role == "user"), "")
        about = Header(str(self.loaded.target.path), "", self.system, time.time(), title_of(title))
        return Transcript(about, [Said(message) for message in self.messages if message.role != "system"])

    def end_row(self, answer: Answer) -> None:
        """End the last row of an answer that did not do so itself."""
        if not self.show.renders(self.terminal) and not answer.text.endswith("\n"):
            self.terminal.write("\n")

    def summarise(self, answer: Answer) -> None:
        """The line of figures after an answer, and why it ended if not by itself."""
        ends = {
            "cancelled": "stopped",
            "length": "stopped at --max-tokens",
            "context": f"stopped: the context of {self.loaded.target.n_ctx} tokens is full",
        }
        why = [ends[answer.finish_reason]] if answer.finish_reason in ends else []
        if why and self.loaded.generator.sampler.constraint:
            why.append("incomplete: the grammar asks for more")
        figures = summary_text(answer.stats, self.loaded.seed, self._why_no_gain(answer))
        self.terminal.note(" · ".join([figures, *why]))

    def show_stats(self) -> None:
        """The figures of the whole session, on stderr."""
        ledger = self._scheduler.ledger if self._scheduler else None
        self.terminal.progress("")
        self.terminal.say(report_text(self.stats, ledger, self.terminal.columns))

    def report(self, answer: Answer) -> dict[str, Any]:
        """The JSON object of an answer."""
        return {
            **answer.as_dict(self._scheduler.ledger if self._scheduler else None),
            "seed": self.loaded.seed,
            "model": str(self.loaded.target.path),
            "context": {"used": len(self.loaded.target.tokens), "total": self.loaded.target.n_ctx},
        }

    @property
    def _most(self) -> int:
        """Tokens a prompt may have, so that there is room for an answer."""
        total = self.loaded.target.n_ctx
        return total - total // LEAST_ROOM

    @property
    def _scheduler(self) -> Scheduler | None:
        policy = self.loaded.generator.policy
        return policy if isinstance(policy, Scheduler) else None

    def _record(self, change: Callable[[Session], None]) -> None:
        """Change the session too. Where that fails the conversation goes on without one."""
        if self.session is None:
            return
        try:
            change(self.session)
        except LocalspecError as error:
            self.session.close()
            self.session = None
            self.terminal.complain(f"{error.message}: from here on nothing is kept", error.hint)

    def _fits_alone(self, question: Message) -> bool:
        """Whether there is room for `question` when all that was said is left out."""
        system = [message for message in self.messages if message.role == "system"]
        return self._length([*system, *window.MARKER, question]) <= self._most

    def _length(self, messages: Sequence[Message]) -> int:
        return len(self.template.encode(messages))

    @failures_told()
    def _generate(self, prompt: Sequence[int], view: View, max_tokens: int | None) -> Answer:
        loaded, target = self.loaded, self.loaded.target
        target.on_progress = lambda done, total: view.update(f"reading the prompt: {done} of {total} tokens")

        def on_step(step: Step, stats: Stats) -> None:
            self.stats.add(step)
            view.update(live_text(stats))

        def on_guess(text: str) -> None:
            view.write(text, underlined=True)

        shown = dict(self.template.shown)
        try:
            return run_turn(
                loaded.generator,
                prompt,
                piece=lambda token: shown.get(token) or target.vocab.piece(token),
                max_tokens=max_tokens or loaded.settings.max_tokens or target.n_ctx,
                thinking=self.template.thinking(),
                stops=loaded.settings.stop,
                on_text=view.write,
                on_guess=on_guess if self.show.underlines(self.terminal) else None,
                on_thought=view.think,
                on_step=on_step,
            )
        finally:
            view.clear()

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
