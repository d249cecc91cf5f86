"""A loaded model as the author of edits: what it is asked, how long it may answer, what is shown meanwhile.

Imports llama_cpp through `app`: only for whoever needs a model. Knows neither files nor how they are written.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from localspec.app import Loaded, open_target
from localspec.chat.opening import find_draft, find_model, hearing
from localspec.chat.prompt import ChatTemplate, Message
from localspec.chat.turn import failures_told, run_turn
from localspec.config import Settings
from localspec.edit.fences import FENCE, fences_of, longest_fence
from localspec.edit.flow import Reply, Wrong, first_line
from localspec.edit.parts import Part, Room, Task, parts_of
from localspec.edit.request import LEAST_REPLY, Request, correction, messages, unchanged_reply
from localspec.engine.schedule import Scheduler
from localspec.engine.stats import Stats
from localspec.engine.types import Cancelled, Step
from localspec.errors import NoFit, UsageError
from localspec.llama.library import LOG, CancelFlag
from localspec.models.facts import read_model
from localspec.ui.interrupt import on_interrupt
from localspec.ui.status import live_text, summary_text
from localspec.ui.terminal import Terminal

NEW_TOKENS = 1024
"""Beyond those of the text an answer may have so many, or a quarter of them if that is more."""
USUAL_CTX = 8192
"""Context of a model when nobody asks for another."""
_INTERVAL = 0.1
"""Seconds between two states of the progress line."""


@dataclass(slots=True)
class ModelAuthor:
    """Answers with a model. Greedy settings give the same answer to the same request."""

    loaded: Loaded
    terminal: Terminal
    template: ChatTemplate = field(init=False)
    _stats: Stats = field(default_factory=Stats, init=False)
    _part: tuple[int, int] = field(default=(0, 0), init=False)  # which one is asked for, of how many
    _drawn: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        target, wish = self.loaded.target, self.loaded.settings.think
        # what an edit needs is mostly copied: thinking first is for those who ask for it
        self.template = ChatTemplate(
            target.chat_template, target.vocab, self.terminal.note, thinking=bool(wish)
        )

    def parts(self, task: Task) -> tuple[tuple[Part, ...], str]:
        self._stats = Stats()
        parameters = self.loaded.plan.target.n_parameters
        room = Room(self.loaded.target.n_ctx, parameters, self._count, self._length)
        parts, why = parts_of(task, room)
        self._part = (0, len(parts))
        return parts, why

    def answer(self, request: Request, wrong: Wrong | None) -> Reply:
        """Raises KeyboardInterrupt at Ctrl-C, UsageError if the request does not fit the context."""
        if wrong is None:
            self._part = (self._part[0] + 1, self._part[1])
        else:
            self.terminal.note(f"the answer cannot be used ({first_line(wrong.reason)}); asking again")
        unchanged = self._tokens(unchanged_reply(request.text))
        prompt = self._prompt(request, wrong, len(unchanged))
        if follower := self.loaded.guessers.follower:
            follower.follow_file(unchanged if request.format == "whole" else (), len(prompt))
        try:
            with on_interrupt(self.loaded.cancel.set):
                reply = self._generate(prompt, request, self._budget(len(unchanged)))
        finally:
            self.loaded.cancel.clear()
            self.terminal.progress("")
        if reply.finish_reason == "cancelled":
            raise KeyboardInterrupt
        return reply

    def summary(self) -> str:
        return summary_text(self._stats, self.loaded.seed) if self._stats.passes else ""

    def stats(self) -> dict[str, Any]:
        policy = self.loaded.generator.policy
        counts = self._stats.as_dict(policy.ledger if isinstance(policy, Scheduler) else None)
        seconds = {
            "tokens_per_second": round(self._stats.tokens_per_second, 3),
            "seconds_decode": round(self._stats.seconds_decode, 6),
        }
        return {**seconds, **counts, "seed": self.loaded.seed, "model": str(self.loaded.target.path)}

    def close(self) -> None:
        self.template.close()

    def _tokens(self, text: str) -> list[int]:
        return self.loaded.target.vocab.tokenize(text, special=False)

    def _count(self, text: str) -> int:
        return len(self._tokens(text))

    def _length(self, request: Request) -> int:
        return len(self.template.encode(messages(request)))

    def _budget(self, tokens: int) -> int:
        most = tokens + max(tokens // 4, NEW_TOKENS)
        return self.loaded.settings.max_tokens or (self.loaded.target.n_ctx if self._thinks else most)

    @property
    def _thinks(self) -> bool:
        return bool(self.loaded.settings.think) or self.template.thinking().inside

    def _prompt(self, request: Request, wrong: Wrong | None, tokens: int) -> list[int]:
        """The request; after a wrong answer with it and the reason, or the reason alone where it is long."""
        asked, n_ctx = messages(request), self.loaded.target.n_ctx
        least = LEAST_REPLY if request.format == "blocks" else tokens
        if wrong:
            told = [*asked, Message("assistant", wrong.reply), correction(wrong.reason)]
            prompt = self.template.encode(told)
            if len(prompt) + least <= n_ctx:
                return prompt
            more = f"{request.instruction}\n(An earlier answer was refused: {wrong.reason})"
            asked = messages(replace(request, instruction=more))
        prompt = self.template.encode(asked)
        if len(prompt) + least > n_ctx + 1:
            raise UsageError(
                f"the request has {len(prompt)} tokens, its answer about {least}, the context {n_ctx}",
                "give a larger --ctx, or --lines for a part of the file",
            )
        return prompt

    def _generate(self, prompt: list[int], request: Request, max_tokens: int) -> Reply:
        loaded, target, shown = self.loaded, self.loaded.target, self.template.shown
        said = _Said(request)

        def on_step(step: Step, stats: Stats) -> None:
            self._stats.add(step)
            if said.complete:
                raise _Complete
            self._show(f"{self._where(request)}{said.share}{live_text(stats)}")

        target.on_progress = lambda n, of: self._show(f"reading {request.name}: {n} of {of} tokens")
        try:
            with failures_told():
                answer = run_turn(
                    loaded.generator,
                    prompt,
                    piece=lambda token: shown.get(token) or target.vocab.piece(token),
                    max_tokens=max_tokens,
                    thinking=self.template.thinking(),
                    stops=loaded.settings.stop,
                    on_text=said.add,
                    on_step=on_step,
                )
        except _Complete:
            return Reply(said.text)
        return Reply(answer.text, answer.finish_reason)

    def _where(self, request: Request) -> str:
        at, of = self._part
        return f"{request.name}: {f'part {at} of {of}, ' if of > 1 else ''}"

    def _show(self, text: str) -> None:
        now = time.monotonic()
        if now - self._drawn >= _INTERVAL:
            self._drawn = now
            self.terminal.progress(text)


class _Complete(Exception):
    """The answer has all that was asked for."""


@dataclass(slots=True)
class _Said:
    """The answer to a request as it comes. `complete`: what else comes is of no use."""

    request: Request
    text: str = ""
    complete: bool = False
    _lines: int = 0

    @property
    def share(self) -> str:
        """How far it has come through the text, for the progress line."""
        total = max(1, self.request.text.count("\n"))
        return f"{min(99, 100 * self._lines // total)} % · " if self.request.format == "whole" else ""

    def add(self, text: str) -> None:
        self.text += text
        self._lines += text.count("\n")
        if "\n" in text and self.request.format == "whole":
            line = self.text.rstrip("\n").rpartition("\n")[2]
            self.complete = bool(FENCE.match(line)) and is_complete(self.text, self.request.text)


def is_complete(answer: str, before: str) -> bool:
    """Whether an answer has a whole code block that may be the new text: no example, and no fence in it."""
    fences = fences_of(answer.split("\n"))
    if not fences or not fences[0].closed:
        return False
    first, old = fences[0], before.removesuffix("\n").split("\n")
    longest = longest_fence(old, first.mark[0])
    return 2 * (first.end - first.first) >= len(old) and (longest == 0 or len(first.mark) > longest)


@contextmanager
def opened(settings: Settings, terminal: Terminal, tokens: int) -> Iterator[ModelAuthor]:
    """A model that has room for a file of about `tokens` tokens, as far as it can. Closed at the end.

    Raises KeyboardInterrupt at Ctrl-C, and what `obtain` and `open_target` raise.
    """
    LOG.echo = terminal.verbosity >= 2
    path = find_model(settings, terminal)
    draft = find_draft(settings, terminal)
    with _loaded(_roomy(settings, path, tokens), settings, path, draft, terminal) as loaded:
        terminal.progress("")
        author = ModelAuthor(loaded, terminal)
        try:
            yield author
        finally:
            author.close()


def _roomy(settings: Settings, path: Path, tokens: int) -> Settings:
    """The settings with the context that reading and rewriting `tokens` takes, if the user named none."""
    needed = tokens * 9 // 4 + 1024
    if settings.ctx or needed <= USUAL_CTX:
        return settings
    trained = read_model(path).n_ctx_train or USUAL_CTX
    return replace(settings, ctx=min(-(-needed // 1024) * 1024, trained)) if trained > USUAL_CTX else settings


def _loaded(
    wanted: Settings, settings: Settings, path: Path, draft: Path | None, terminal: Terminal
) -> Loaded:
    """The model as `wanted`, or with what `settings` say if that does not fit."""
    cancel = CancelFlag()
    hear = hearing(terminal)
    try:
        with on_interrupt(cancel.set):
            try:
                return open_target(wanted, path, draft, cancel=cancel, hear=hear, rewrites=True)
            except NoFit:
                if wanted == settings:
                    raise
                return open_target(settings, path, draft, cancel=cancel, hear=hear, rewrites=True)
    except Cancelled as error:
        raise KeyboardInterrupt from error
