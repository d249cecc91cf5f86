"""What a model thinks before it answers, told apart from the answer while the text is still coming.

Models mark their thinking by tags of their family; a prompt may already have opened one. Knows texts only:
the text of the tags' own tokens must be in what is fed (ChatTemplate.shown), stop strings come after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["thinking", "answer"]


@dataclass(frozen=True, slots=True)
class Tags:
    """How a family of models marks its thinking.

    `sign`: what its templates or vocabularies contain. `silent`: tags that only separate. `anywhere`: the
    tags are no text wherever they stand; otherwise thinking opens only before the answer. `before`,
    `between`: how thinking and answer are written as one text.
    """

    sign: str
    opens: tuple[str, ...]
    closes: tuple[str, ...]
    before: str
    between: str
    silent: tuple[str, ...] = ()
    anywhere: bool = False

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.opens, *self.closes, *self.silent)


THINK = Tags("</think>", ("<think>",), ("</think>",), "<think>\n", "\n</think>\n\n")
FAMILIES = (  # gpt-oss, Gemma 4, Mistral, and most others
    Tags(
        "<|channel|>",
        ("<|channel|>analysis<|message|>", "<|channel|>commentary<|message|>"),
        ("<|channel|>final<|message|>",),
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        silent=("<|end|>", "<|start|>assistant"),
        anywhere=True,
    ),
    Tags("<channel|>", ("<|channel>thought",), ("<channel|>",), "<|channel>thought\n", "\n<channel|>"),
    Tags("[/THINK]", ("[THINK]",), ("[/THINK]",), "[THINK]", "[/THINK]"),
    THINK,
)


def tags_of(template_source: str | None, knows: Callable[[str], bool] = lambda _: False) -> Tags:
    """The tags a model uses: by its template, else by its vocabulary, else those most models use.

    `knows`: whether the vocabulary has a special token.
    """
    by_template = (tags for tags in FAMILIES if tags.sign in (template_source or ""))
    by_vocabulary = (tags for tags in FAMILIES if knows(tags.sign))
    return next(by_template, None) or next(by_vocabulary, THINK)


class Thinking:
    """Splits one answer's text as it comes. White space around the thinking belongs to neither part.

    `inside`: the text fed so far ends in thinking; at the end of an answer: it has not come to its point.
    """

    def __init__(self, tags: Tags, *, opened: bool = False) -> None:
        self.tags = tags
        self._opened = opened
        self._kind: Kind = "thinking" if opened else "answer"
        self._fresh = True  # nothing but white space so far in this part
        self._thought = opened
        self._held = ""
        self._space = ""  # white space that may turn out to be the end of the thinking

    @staticmethod
    def of(
        template_source: str | None,
        rendered_prompt_tail: str,
        knows: Callable[[str], bool] = lambda _: False,
    ) -> Thinking:
        """For the answer to a prompt that ends so, and may have opened the thinking."""
        tags = tags_of(template_source, knows)
        return Thinking(tags, opened=rendered_prompt_tail.rstrip().endswith(tags.opens))

    @property
    def inside(self) -> bool:
        return self._kind == "thinking"

    def feed(self, text: str) -> list[tuple[Kind, str]]:
        """What has become certain with `text`, in order."""
        self._held += text
        return _joined(self._certain())

    def finish(self) -> list[tuple[Kind, str]]:
        """What was held back, at the end: the beginning of a tag that did not come is text."""
        held, self._held = self._held, ""
        return _joined([(self._kind, self._trimmed(held))])

    def strip(self, text: str) -> str:
        """The answer in a whole text of this kind, without the thinking."""
        other = Thinking(self.tags, opened=self._opened)
        return "".join(part for kind, part in other.feed(text) + other.finish() if kind == "answer")

    def _certain(self) -> Iterator[tuple[Kind, str]]:
        while (found := self._next_tag()) is not None:
            place, tag = found
            before, self._held = self._held[:place], self._held[place + len(tag) :]
            yield self._kind, self._trimmed(before) if not self._fresh or before.strip() else ""
            self._enter(tag)
        size = len(self._held) - self._to_hold()
        certain, self._held = self._held[:size], self._held[size:]
        yield self._kind, self._trimmed(certain)

    def _enter(self, tag: str) -> None:
        if tag in self.tags.silent:
            return
        self._kind = "thinking" if tag in self.tags.opens else "answer"
        self._fresh, self._thought, self._space = True, True, ""

    @property
    def _everywhere(self) -> tuple[str, ...]:
        """The tags that count wherever they stand in this part."""
        if self.tags.anywhere:
            return self.tags.all
        return self.tags.closes if self.inside else ()

    @property
    def _first(self) -> tuple[str, ...]:
        """The tags that count before all other text of this part."""
        return self.tags.all if self._fresh else ()

    def _next_tag(self) -> tuple[int, str] | None:
        held = self._held
        found = [(place, tag) for tag in self._everywhere if (place := held.find(tag)) >= 0]
        body = held.lstrip()
        found += [(len(held) - len(body), tag) for tag in self._first if body.startswith(tag)]
        return min(found, default=None)

    def _to_hold(self) -> int:
        """How many characters at the end may yet turn out to be a tag, or white space before one."""
        body = self._held.lstrip()
        if any(tag.startswith(body) for tag in self._first):
            return len(self._held)
        return max((_overlap(self._held, tag) for tag in self._everywhere), default=0)

    def _trimmed(self, text: str) -> str:
        """`text` of the present part, without white space next to a tag."""
        if self._fresh and self._thought:
            text = text.lstrip()
        self._fresh = self._fresh and not text.strip()
        if self.inside:
            text = self._space + text
            kept = text.rstrip()
            text, self._space = kept, text[len(kept) :]
        return text


def _joined(parts: Iterator[tuple[Kind, str]] | list[tuple[Kind, str]]) -> list[tuple[Kind, str]]:
    """The parts that are not empty, neighbours of one kind as one."""
    joined: list[tuple[Kind, str]] = []
    for kind, text in parts:
        if not text:
            continue
        if joined and joined[-1][0] == kind:
            joined[-1] = (kind, joined[-1][1] + text)
        else:
            joined.append((kind, text))
    return joined


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that begins `tag`."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:n])), 0)
