"""Long conversations cost no more memory, descriptors, threads or processes than short ones."""

from __future__ import annotations

import gc
import io
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import tiny

from localspec.chat.conversation import ContextFull, Conversation
from localspec.chat.opening import Opener
from localspec.chat.views import Show
from localspec.config import Settings
from localspec.errors import UsageError
from localspec.ui.terminal import Terminal

pytestmark = pytest.mark.slow
MOST_GROWTH = 10 << 20
TURNS, WARM = 2000, 300
STEPS, WARM_STEPS = 20_000, 4000


@dataclass(frozen=True, slots=True)
class Taken:
    """What this process has taken. `bytes`: resident memory."""

    bytes: int
    descriptors: int
    threads: int
    children: int

    @staticmethod
    def now() -> Taken:
        gc.collect()
        process = psutil.Process()
        children = len(process.children(recursive=True))
        return Taken(process.memory_info().rss, process.num_fds(), threading.active_count(), children)

    def check(self, before: Taken) -> None:
        grown = self.bytes - before.bytes
        assert grown < MOST_GROWTH, f"{grown / 2**20:.1f} MiB more than after the warm-up"
        assert (self.descriptors, self.threads, self.children) == (
            before.descriptors,
            before.threads,
            before.children,
        )


@contextmanager
def talking(folder: Path, draft_len: int | None = None) -> Iterator[Conversation]:
    """With a tiny model, a draft model and a session; nothing is shown."""
    path = tiny.write_llama(folder / "tiny.gguf")
    draft = tiny.write_llama(folder / "draft.gguf", noise=0.1)
    settings = Settings(
        model=str(path),
        draft=f"ngram,{draft}",
        draft_len=draft_len,
        threads=1,
        max_tokens=24,
        seed=1,
        ctx=1024,
    )
    with open(os.devnull, "w", encoding="utf-8") as nowhere, ExitStack() as stack:
        terminal = Terminal(nowhere, io.StringIO(), False, False, False, verbosity=-1)
        yield Opener(settings, terminal, Show()).open(stack, None, go_on=False, keep=True)


def test_two_thousand_turns(tmp_path: Path) -> None:
    with talking(tmp_path) as conversation:
        talk(conversation, random.Random(1))
        assert conversation.session
        assert conversation.session.path.stat().st_size > 500_000


def talk(conversation: Conversation, rng: random.Random) -> None:
    """TURNS questions, among which other things are done."""

    def ask() -> None:
        question = f"what about {rng.randrange(1000)}? " * rng.randint(1, 5)
        try:
            conversation.ask(question)
        except ContextFull:
            conversation.drop_oldest(question)
            conversation.ask(question)

    def retry() -> None:
        question = conversation.undo()
        conversation.loaded.reseed(rng.getrandbits(32))
        conversation.ask(question)

    others: list[Callable[[], object]] = [conversation.undo, retry, conversation.compact, conversation.clear]
    for turn in range(TURNS):
        ask()
        if rng.random() < 0.1:
            with suppress(UsageError):  # nothing to take back, or to shorten
                rng.choices(others, (4, 4, 3, 1))[0]()
        if turn == WARM:
            before = Taken.now()
    Taken.now().check(before)


def test_twenty_thousand_speculative_steps(tmp_path: Path) -> None:
    """Many of whose guesses are wrong: caches are cut all the time."""
    with talking(tmp_path, draft_len=4) as conversation:
        loaded, steps, accepted, seed = conversation.loaded, 0, 0, 0
        while steps < STEPS:
            loaded.reseed(seed := seed + 1)
            for step in loaded.generator.generate(conversation.template.encode([]), 900):
                steps += step.drafted > 0
                accepted += step.accepted
                if steps == WARM_STEPS and step.drafted:
                    before = Taken.now()
        assert STEPS / 4 < accepted < 3 * STEPS
        Taken.now().check(before)
