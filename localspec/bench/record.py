"""The texts a benchmark decodes again and again: recorded once, plainly, with all a draft would guess there.

A session of several turns gives a recording a turn, with the conversation so far as its prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from localspec.bench.replay import Forced, Guesses, ask_model
from localspec.bench.workloads import Prompt
from localspec.chat.prompt import ChatTemplate, Message
from localspec.drafters import ModelDrafter
from localspec.engine.generate import Generator
from localspec.engine.sampling import Sampler
from localspec.engine.types import Model, Sampling
from localspec.llama.model import LlamaModel


@dataclass(frozen=True, slots=True)
class Recording:
    """One answer. `prompt` names it within its family; `text`: the `n_prompt` tokens of its prompt and what
    was emitted. `guesses`, `greedy`: what the draft guesses there, by the sampler and greedily, or None.
    `forced`: the text was given, so that it is no choice of the target's.
    """

    family: str
    prompt: str
    sampling: Sampling
    n_prompt: int
    text: tuple[int, ...]
    guesses: Guesses | None = None
    greedy: Guesses | None = None
    forced: bool = False

    @property
    def temperature(self) -> float:
        return self.sampling.temperature

    @property
    def emitted(self) -> tuple[int, ...]:
        return self.text[self.n_prompt :]

    def sampler(self) -> Sampler:
        """What makes the target emit this text."""
        return Forced(self.text) if self.forced else Sampler(self.sampling)


@dataclass(frozen=True, slots=True)
class Recorder:
    """What recording takes. `draft`: who guesses, if anyone; `greedy`: its greedy guesses are wanted too."""

    target: LlamaModel
    template: ChatTemplate
    max_tokens: int
    is_end: Callable[[int], bool]
    draft: Model | None = None
    greedy: bool = False

    def record(self, prompt: Prompt, sampling: Sampling) -> Iterator[Recording]:
        """The answers to each turn of `prompt`; none to a turn that leaves no room in the context."""
        messages: list[Message] = []
        for number, turn in enumerate(prompt.turns, 1):
            messages.append(Message("user", turn))
            tokens = self.template.encode(messages)
            if len(tokens) >= self.target.n_ctx:
                return
            emitted = self._forced(tokens, prompt.output) if prompt.output else self._plain(tokens, sampling)
            if not emitted:
                return
            name = prompt.id if len(prompt.turns) == 1 else f"{prompt.id} turn {number}"
            text = (*tokens, *emitted)
            guesses, greedy = (self._guesses(text, sampling, greedy=kind) for kind in (False, True))
            forced = prompt.output is not None
            yield Recording(prompt.family, name, sampling, len(tokens), text, guesses, greedy, forced)
            said = tuple(token for token in emitted if not self.target.vocab.is_end(token))
            words = b"".join(map(self.target.vocab.piece, said)).decode(errors="replace")
            messages.append(Message("assistant", words, said))

    def _plain(self, prompt: Sequence[int], sampling: Sampling) -> list[int]:
        generator = Generator(self.target, Sampler(sampling), self.is_end)
        return [token for step in generator.generate(prompt, self.max_tokens) for token in step.tokens]

    def _forced(self, prompt: Sequence[int], output: str) -> list[int]:
        room = min(self.max_tokens, self.target.n_ctx + 1 - len(prompt))
        return self.target.vocab.tokenize(output, special=False)[:room]

    def _guesses(self, text: Sequence[int], sampling: Sampling, *, greedy: bool) -> Guesses | None:
        if self.draft is None or (greedy and not self.greedy):
            return None
        drafter = ModelDrafter(
            "draft", self.draft, Sampler(sampling), self.target.n_vocab, self.is_end, greedy=greedy
        )
        return Guesses(text, ask_model(drafter, text))
