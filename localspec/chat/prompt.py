"""A conversation as token ids: the model's own chat template, with user text kept from acting as template.

Templates come from model files and are hostile until shown otherwise: they run in a process of their own
(template.py). Spellings of special tokens inside a message are cut apart before rendering and stay text. What
the model itself said goes back in as the very tokens it emitted, so that its cache fits the next turn, unless
the template leaves its thinking out.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from localspec.chat.template import Named, Renderer, TemplateFailed, suitable
from localspec.chat.thinking import Thinking, tags_of
from localspec.ui.terminal import sanitise

_FIELDS = ("reasoning_content", "thinking", "reasoning")  # where templates look for thinking kept apart
_BLOCK = re.compile(r"[^\n]*:\n(`{3,})\n(?:.*?\n)??\1\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Message:
    """`role`: system, user or assistant. `tokens`: what the model emitted, when it said exactly this.

    `thinking`: what it thought before `content`; its `tokens` then hold both, and the tags.
    """

    role: str
    content: str
    tokens: tuple[int, ...] | None = None
    thinking: str = ""


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
    """Renders conversations for one model. `warn` hears once why a template was replaced, and by which.

    `thinking`: whether the model is to think before it answers; None: as the template likes. Where it is not
    to, and the template opens thinking all the same, the prompt closes it at once.
    `variables`: others that the template may ask for. To be closed.
    """

    def __init__(
        self,
        source: str | None,
        vocab: Tokenizer,
        warn: Callable[[str], None],
        *,
        thinking: bool | None = None,
        **variables: Any,
    ) -> None:
        self._vocab = vocab
        self._warn = warn
        self._mark = secrets.token_hex(16)  # no text can contain it but by this class's doing
        self._thinking = thinking
        self._tail = ""  # of the prompt that was rendered last
        self._tags = tags_of(source, self._knows)
        self._field = _thinking_field(source or "", (*self._tags.opens, *self._tags.closes))
        wish = {} if thinking is None else {"enable_thinking": thinking, "thinking": thinking}
        self._variables = {
            "add_generation_prompt": True,
            "tools": None,
            "documents": None,
            "bos_token": vocab.text(vocab.bos) if vocab.bos >= 0 else "",
            "eos_token": vocab.text(vocab.eos) if vocab.eos >= 0 else "",
            **wish,
            **variables,
        }
        self._template: Renderer | Named = Renderer(source or "")
        if source is None:
            self._fall_back("the model brings no chat template")

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the conversation up to where the assistant is to answer."""
        try:
            return self._encode(messages)
        except TemplateFailed as error:
            merged = _system_into_user(messages)
            if merged != list(messages):
                try:
                    return self._encode(merged)
                except TemplateFailed:
                    pass  # the first reason tells more
            self._fall_back(f"the model's chat template fails ({_short(str(error))})")
            return self._encode(messages)

    def thinking(self) -> Thinking:
        """What splits the answer to the prompt that was encoded last."""
        return Thinking(self._tags, opened=self._opened and self._thinking is not False)

    @property
    def shown(self) -> dict[int, bytes]:
        """The special tokens that mark thinking, with the bytes that `thinking()` is to be fed for them."""
        tokens = {token for tag in self._tags.all for token in self._vocab.tokenize(tag, special=True)}
        return {t: self._vocab.text(t).encode() for t in sorted(tokens) if self._vocab.is_special(t)}

    def close(self) -> None:
        """End the process that renders. A later `encode` starts another."""
        if isinstance(self._template, Renderer):
            self._template.close()

    @property
    def _opened(self) -> bool:
        return self._tail.rstrip().endswith(self._tags.opens)

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        contents = [self._content(message, place) for place, message in enumerate(messages)]
        dicts = [self._as_dict(*pair) for pair in zip(messages, contents, strict=True)]
        if isinstance(self._template, Named):
            text = self._template.render(dicts)
        else:
            text = self._template.render({**self._variables, "messages": dicts})
        self._tail = text[-100:]
        if self._thinking is False and self._opened:
            text += self._tags.between
        for place, (message, content) in enumerate(zip(messages, contents, strict=True)):
            if message.thinking and message.tokens and message.content:
                # where the template kept it whole, as it was said
                text = text.replace(content, f"{self._opening(message.tokens)}{self._mark}{place};", 1)
        return self._tokenize(text, messages)

    def _as_dict(self, message: Message, content: str) -> dict[str, str]:
        if not message.thinking or (self._field is None and isinstance(self._template, Renderer)):
            return {"role": message.role, "content": content}
        fields = {"role": message.role, "content": self._defuse(message.content)}
        return fields | ({self._field: self._defuse(message.thinking)} if self._field else {})

    def _content(self, message: Message, place: int) -> str:
        """The message's text, thinking and all, or a mark in the place of its tokens."""
        if message.thinking:
            parts = (message.thinking, message.content)
            thought, said = (self._defuse(text, self._tags.all) for text in parts)
            return f"{self._tags.before}{thought}{self._tags.between}{said}"
        return self._defuse(message.content) if message.tokens is None else f"{self._mark}{place};"

    def _opening(self, tokens: Sequence[int]) -> str:
        """What the prompt had opened before `tokens`: nothing when they open their thinking themselves."""
        for tag in self._tags.opens:
            own = self._vocab.tokenize(tag, special=True)
            if list(tokens[: len(own)]) == own:
                return ""
        return self._tail[max(self._tail.rfind(tag) for tag in self._tags.opens) :] if self._opened else ""

    def _defuse(self, text: str, tags: Sequence[str] = ()) -> str:
        """`text` with a mark inside the spelling of every special token, and of `tags`."""
        spelt = {tag for tag in tags if tag in text} | self._spelled_specials(text)
        while spelt:
            for spelling in spelt:
                text = text.replace(spelling, f"{spelling[:1]}{self._mark};{spelling[1:]}")
            spelt = self._spelled_specials(text)
        return text

    def _spelled_specials(self, text: str) -> set[str]:
        vocab = self._vocab
        ids = set(vocab.tokenize(text, special=True)) - set(vocab.tokenize(text, special=False))
        spellings = {vocab.text(token) for token in ids if vocab.is_special(token)}
        return {spelling for spelling in spellings if len(spelling) > 1 and spelling in text}

    def _knows(self, spelling: str) -> bool:
        """Whether the vocabulary has this special token."""
        tokens = self._vocab.tokenize(spelling, special=True)
        return len(tokens) == 1 and self._vocab.is_special(tokens[0])

    def _tokenize(self, text: str, messages: Sequence[Message]) -> list[int]:
        tokens: list[int] = []
        for i, part in enumerate(re.split(f"{self._mark}([0-9]{{0,9}});", text)):
            if i % 2 == 0:
                tokens += self._vocab.tokenize(part, special=True) if part else []
            elif part:
                if int(part) >= len(messages):
                    raise TemplateFailed("it writes nonsense")
                tokens += messages[int(part)].tokens or ()
        if self._vocab.adds_bos and tokens[:1] != [self._vocab.bos]:
            tokens.insert(0, self._vocab.bos)
        if not tokens:
            raise TemplateFailed("it writes nothing")
        return tokens

    def _fall_back(self, why: str) -> None:
        self.close()
        self._template = suitable(self._knows)
        self._warn(f"{why}: using {self._template.name}")


def quote(text: str, name: str) -> str:
    """`text` as a delimited block: fenced by more backticks than it contains in a row."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{name}:\n{fence}\n{text}{'' if text.endswith(chr(10)) else chr(10)}{fence}\n"


def unquoted(text: str) -> str:
    """`text` without the blocks it begins with; all of it if there is nothing else."""
    rest = text
    while found := _BLOCK.match(rest):
        rest = rest[found.end() :].removeprefix("\n")
    return rest if rest.strip() else text


def _thinking_field(source: str, tags: Sequence[str]) -> str | None:
    """The field in which a template wants thinking; None when it finds it in the text, or does not look."""
    if any(re.search(rf"split\(\s*['\"]{re.escape(tag)}", source) for tag in tags):
        return None
    asked = (name for name in _FIELDS if re.search(rf"\.{name}\b|\[['\"]{name}['\"]\]", source))
    return next(asked, None)


def _short(text: str) -> str:
    return sanitise(" ".join(text.split()))[:200]


def _system_into_user(messages: Sequence[Message]) -> list[Message]:
    """For templates that refuse a system message: its text goes before the first user message."""
    if len(messages) < 2 or messages[0].role != "system":
        return list(messages)
    system, first, *rest = messages
    return [replace(first, content=f"{system.content}\n\n{first.content}"), *rest]
