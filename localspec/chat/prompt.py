"""A conversation as token ids: the model's own chat template, with user text kept from acting as template.

Templates come from model files and are hostile until shown otherwise: they run in jinja2's immutable
sandbox. Spellings of special tokens inside a message are cut apart before rendering and stay text. What
the model itself said goes back in as the very tokens it emitted, so that its cache fits the next turn.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LONGEST_TEMPLATE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Message:
    """`role`: system, user or assistant. `tokens`: what the model emitted, when it said exactly `content`."""

    role: str
    content: str
    tokens: tuple[int, ...] | None = None


class Tokenizer(Protocol):
    """The part of `llama.vocab.Vocab` that prompts need."""

    @property
    def bos(self) -> int: ...
    @property
    def eos(self) -> int: ...
    @property
    def adds_bos(self) -> bool: ...
    def text(self, token: int) -> str: ...
    def is_special(self, token: int) -> bool: ...
    def tokenize(self, text: str, *, special: bool) -> list[int]: ...


class ChatTemplate:
    """Renders conversations for one model. `warn` hears once why a template was replaced by ChatML."""

    def __init__(self, source: str | None, vocab: Tokenizer, warn: Callable[[str], None]) -> None:
        self._vocab = vocab
        self._warn = warn
        self._mark = secrets.token_hex(16)  # no text can contain it but by this class's doing
        if source is None:
            self._fall_back("the model brings no chat template")
        elif len(source) > LONGEST_TEMPLATE:
            self._fall_back(f"the model's chat template is {len(source)} characters long")
        else:
            self._compile_or_fall_back(source)

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the conversation up to where the assistant is to answer."""
        try:
            return self._tokenize(self._render(messages), messages)
        except Exception as error:  # a template may raise anything: it is a program of the model's author
            merged = _system_into_user(messages)
            try:
                return self._tokenize(self._render(merged), merged)
            except Exception:
                self._fall_back(f"the model's chat template fails ({str(error)[:200]})")
                return self._tokenize(self._render(messages), messages)

    def _render(self, messages: Sequence[Message]) -> str:
        vocab = self._vocab
        return self._template.render(
            messages=[
                {"role": message.role, "content": self._defuse(message, place)}
                for place, message in enumerate(messages)
            ],
            add_generation_prompt=True,
            bos_token=vocab.text(vocab.bos) if vocab.bos >= 0 else "",
            eos_token=vocab.text(vocab.eos) if vocab.eos >= 0 else "",
        )

    def _defuse(self, message: Message, place: int) -> str:
        """The message's text with a mark inside every special token's spelling, or a mark in its place."""
        if message.tokens is not None:
            return f"{self._mark}{place};"
        text = message.content
        while special := self._spelled_specials(text):
            for spelling in special:
                text = text.replace(spelling, f"{spelling[:1]}{self._mark};{spelling[1:]}")
        return text

    def _spelled_specials(self, text: str) -> set[str]:
        vocab = self._vocab
        ids = set(vocab.tokenize(text, special=True)) - set(vocab.tokenize(text, special=False))
        spellings = {vocab.text(token) for token in ids if vocab.is_special(token)}
        return {spelling for spelling in spellings if len(spelling) > 1 and spelling in text}

    def _tokenize(self, text: str, messages: Sequence[Message]) -> list[int]:
        tokens: list[int] = []
        for i, part in enumerate(re.split(f"{self._mark}(\\d*);", text)):
            if i % 2 == 0:
                tokens += self._vocab.tokenize(part, special=True) if part else []
            elif part:
                tokens += messages[int(part)].tokens or ()
        if self._vocab.adds_bos and tokens[:1] != [self._vocab.bos]:
            tokens.insert(0, self._vocab.bos)
        if not tokens:
            raise ValueError("it writes nothing")
        return tokens

    def _compile_or_fall_back(self, source: str) -> None:
        try:
            self._template = _environment().from_string(source)
        except Exception as error:
            self._fall_back(f"the model's chat template does not compile ({str(error)[:200]})")

    def _fall_back(self, why: str) -> None:
        self._warn(f"{why}: using ChatML")
        self._template = _environment().from_string(CHATML)


def quote(text: str, name: str) -> str:
    """`text` as a delimited block: fenced by more backticks than it contains in a row."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{name}:\n{fence}\n{text}{'' if text.endswith(chr(10)) else chr(10)}{fence}\n"


def _system_into_user(messages: Sequence[Message]) -> list[Message]:
    """For templates that refuse a system message: its text goes before the first user message."""
    if len(messages) < 2 or messages[0].role != "system":
        return list(messages)
    system, first, *rest = messages
    return [replace(first, content=f"{system.content}\n\n{first.content}"), *rest]


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = datetime.now().strftime
    return environment


def _raise(message: Any) -> None:
    raise TemplateError(str(message))
