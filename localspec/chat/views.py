"""Who shows an answer while it comes: rendered or plain text, JSON events, or nobody.

A view hears pieces of text and of thought, and a status line that passes. Knows terminals, not models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from localspec.ui.status import LiveLine
from localspec.ui.stream import MarkdownStream, can_render
from localspec.ui.terminal import Terminal


class View(Protocol):
    """Shows one answer."""

    def write(self, text: str, *, underlined: bool = False) -> None:
        """A piece of the answer."""

    def think(self, text: str) -> None:
        """A piece of what the model thinks before it answers."""

    def update(self, status: str) -> None:
        """Figures that are shown while the answer comes."""

    def clear(self) -> None:
        """The answer is over: take the figures away."""


@dataclass(frozen=True, slots=True)
class Show:
    """How answers are shown. `plain`: without rendering Markdown; `drafts`: accepted guesses underlined;
    `thoughts`: what the model thinks in full, not as a count of words."""

    plain: bool = False
    drafts: bool = False
    thoughts: bool = False

    def view(self, terminal: Terminal) -> View:
        """For one answer. Guesses can be underlined in plain text only."""
        if self.renders(terminal):
            return MarkdownStream(terminal, unfolded=self.thoughts)
        return LiveLine(terminal, unfolded=self.thoughts)

    def renders(self, terminal: Terminal) -> bool:
        """Whether answers are rendered, as Markdown."""
        return can_render(terminal) and not (self.plain or self.drafts)

    def underlines(self, terminal: Terminal) -> bool:
        """Whether guesses are to be underlined and can be: a terminal shows the answer, and is not dumb."""
        return self.drafts and terminal.out_tty and (terminal.err_live or not terminal.err_tty)


@dataclass(slots=True)
class Muted:
    """Shows the figures only."""

    terminal: Terminal

    def write(self, text: str, *, underlined: bool = False) -> None: ...

    def think(self, text: str) -> None: ...

    def update(self, status: str) -> None:
        self.terminal.progress(status)

    def clear(self) -> None:
        self.terminal.progress("")


@dataclass(slots=True)
class Events:
    """Writes each piece as JSON on a line of its own: {"type": "text" or "thinking", "text": ...}."""

    terminal: Terminal

    def write(self, text: str, *, underlined: bool = False) -> None:
        self.event({"type": "text", "text": text})

    def think(self, text: str) -> None:
        self.event({"type": "thinking", "text": text})

    def update(self, status: str) -> None: ...

    def clear(self) -> None: ...

    def event(self, told: Mapping[str, Any]) -> None:
        self.terminal.out.write(json.dumps(told, ensure_ascii=False) + "\n")
        self.terminal.out.flush()
