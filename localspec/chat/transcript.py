"""A conversation as lines of JSON: what was said, and events that change it. Lines are only ever added.

Folding the lines gives the conversation as it stands. Pure: knows no files. A line may come from a damaged
or forged file, so everything in it is checked; ValueError says what is wrong in words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from localspec.chat.prompt import Message, unquoted
from localspec.chat.window import older_length, summary_pair

VERSION = 1
TITLE = 80
"""Characters of the first question that a list of sessions shows."""
ROLES = ("user", "assistant")


class TooNew(ValueError):
    """Written by a later localspec."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first line. `model`: its path or name; `created`: seconds since 1970; `title`: the first words."""

    model: str
    fingerprint: str
    system: str
    created: float
    title: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """A message, and how it came about.

    `stopped`: the user cut it short; `time`: seconds since 1970;
    `fingerprint`: the model it was said to or by, whose token ids `message.tokens` are.
    """

    message: Message
    stopped: bool = False
    seed: int | None = None
    time: float = 0.0
    fingerprint: str = ""


@dataclass(slots=True)
class Transcript:
    """The conversation as it stands. `system`, `model`, `fingerprint`: those in force now.

    `floor`: messages that only `clear` takes away, since a summary is all that is left of what they were.
    """

    header: Header
    system: str = field(init=False)
    model: str = field(init=False)
    fingerprint: str = field(init=False)
    said: list[Said] = field(default_factory=list)
    floor: int = 0

    def __post_init__(self) -> None:
        self.system, self.model = self.header.system, self.header.model
        self.fingerprint = self.header.fingerprint

    def apply(self, line: dict[str, Any]) -> None:
        """Take in one line after the header."""
        kinds: dict[str, Callable[[dict[str, Any]], None]] = {
            "role": self._say,
            "undo": self._undo,
            "clear": self._clear,
            "summary": self._summarise,
            "system": self._set_system,
            "model": self._set_model,
        }
        kind = next((kind for kind in kinds if kind in line), None)
        if kind is None:
            raise ValueError("is no message and no change to one")
        kinds[kind](line)

    def after(self, line: dict[str, Any]) -> Transcript:
        """A copy that has taken in `line`."""
        changed = replace(self, said=list(self.said))
        changed.system, changed.model, changed.fingerprint = self.system, self.model, self.fingerprint
        changed.apply(line)
        return changed

    def messages(self, fingerprint: str, n_vocab: int) -> list[Message]:
        """The conversation for a model: whole turns, so without an `unanswered` question.

        Token ids that are another model's, or no model's, are left out.
        """
        system = [Message("system", self.system)] if self.system else []
        whole = self.said if self.unanswered is None else self.said[:-1]
        return [*system, *(_for_model(said, fingerprint, n_vocab) for said in whole)]

    @property
    def unanswered(self) -> str | None:
        """The question at the end that never got its answer, if there is one."""
        last = self.said[-1].message if self.said else None
        return last.content if last and last.role == "user" else None

    def _say(self, line: dict[str, Any]) -> None:
        role, tokens = _text(line, "role"), line.get("tokens")
        if role not in ROLES:
            raise ValueError(f"has the role {role[:20]!r}")
        if tokens is not None and not _are_tokens(tokens):
            raise ValueError("has tokens that are none")
        own = tuple(tokens) if tokens is not None and role == "assistant" else None
        seed, stopped = line.get("seed"), line.get("stopped", False)
        if (seed is not None and type(seed) is not int) or type(stopped) is not bool:
            raise ValueError("has a seed or mark that is none")
        message = Message(role, _text(line, "content"), own, _text(line, "thinking", ""))
        if (
            role == "user" and self.unanswered is not None
        ):  # chat templates want questions and answers by turns
            self.said.pop()
        self.said.append(Said(message, stopped, seed, _number(line, "time", 0.0), self.fingerprint))

    def _undo(self, line: dict[str, Any]) -> None:
        left = line["undo"]
        if type(left) is not int or left < 1:
            raise ValueError("undoes no number of turns")
        while left and len(self.said) > self.floor:
            left -= self.said.pop().message.role == "user"

    def _clear(self, line: dict[str, Any]) -> None:
        self.said, self.floor = [], 0

    def _summarise(self, line: dict[str, Any]) -> None:
        keep = line.get("keep")
        if type(keep) is not int or keep < 1:
            raise ValueError("keeps no number of turns")
        cut = older_length([said.message for said in self.said], keep)
        pair = [
            Said(message, time=_number(line, "time", 0.0)) for message in summary_pair(_text(line, "summary"))
        ]
        if cut:
            self.said, self.floor = [*pair, *self.said[cut:]], len(pair)

    def _set_system(self, line: dict[str, Any]) -> None:
        self.system = _text(line, "system")

    def _set_model(self, line: dict[str, Any]) -> None:
        self.model, self.fingerprint = _text(line, "model"), _text(line, "fingerprint")


def message_line(message: Message, stopped: bool = False, seed: int | None = None) -> dict[str, Any]:
    """The line of a message; what says nothing is left out."""
    line: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tokens is not None:
        line["tokens"] = list(message.tokens)
    if message.thinking:
        line["thinking"] = message.thinking
    if stopped:
        line["stopped"] = True
    return line if seed is None else line | {"seed": seed}


def header_line(header: Header) -> dict[str, Any]:
    return {
        "localspec": VERSION,
        "model": header.model,
        "fingerprint": header.fingerprint,
        "system": header.system,
        "created": header.created,
        "title": header.title,
    }


def read_header(line: dict[str, Any]) -> Header:
    """The header in `line`. ValueError when it is none, or one of a later version."""
    version = line.get("localspec")
    if type(version) is not int or version < 1:
        raise ValueError("is not the beginning of a session")
    if version > VERSION:
        raise TooNew(f"is of version {version}, and this localspec knows {VERSION}")
    model, fingerprint, system = (_text(line, name) for name in ("model", "fingerprint", "system"))
    return Header(model, fingerprint, system, _number(line, "created"), _text(line, "title", "")[:TITLE])


def dump(line: dict[str, Any]) -> bytes:
    """`line` as bytes, its end included. What is no Unicode (lone surrogates) becomes question marks."""
    text = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace") + b"\n"


def parse(raw: bytes) -> dict[str, Any]:
    """The object in a line. ValueError when there is none."""
    try:
        line = json.loads(raw.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError("is not JSON") from error
    if not isinstance(line, dict):
        raise ValueError("is no JSON object")
    return line


def as_json(found: Transcript) -> str:
    said = [message_line(s.message, s.stopped, s.seed) for s in found.said]
    about = {"created": found.header.created, "model": found.model, "system": found.system}
    return json.dumps(about | {"messages": said}, ensure_ascii=False, indent=1) + "\n"


def as_text(found: Transcript) -> str:
    """Questions quoted with "> ", answers as they are."""

    def one(said: Said) -> str:
        text = said.message.content
        return f"{_quoted(text)}\n" if said.message.role == "user" else f"{text}{_ending(said)}\n"

    return "\n".join(map(one, found.said))


def as_markdown(found: Transcript) -> str:
    system = f"{_quoted(found.system)}\n\n" if found.system else ""
    said = (
        f"## {'You' if said.message.role == 'user' else 'Model'}\n\n{said.message.content}{_ending(said)}\n"
        for said in found.said
    )
    return f"# {found.header.title}\n\n{system}" + "\n".join(said)


def title_of(text: str) -> str:
    """The first words of `text` behind its files, on one line, without anything that does not print."""
    words = " ".join(unquoted(text)[: 8 * TITLE].split())
    return "".join(char if char.isprintable() else "?" for char in words)[:TITLE]


def _for_model(said: Said, fingerprint: str, n_vocab: int) -> Message:
    tokens = said.message.tokens
    if tokens is None or (
        fingerprint and fingerprint == said.fingerprint and all(t < n_vocab for t in tokens)
    ):
        return said.message
    return replace(said.message, tokens=None)


def _are_tokens(raw: object) -> bool:
    return isinstance(raw, list) and all(type(t) is int and 0 <= t < 2**31 for t in raw)


def _text(line: dict[str, Any], name: str, default: str | None = None) -> str:
    value = line.get(name, default)
    if not isinstance(value, str) or not _is_unicode(value):
        raise ValueError(f"has no {name}")
    return value


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _number(line: dict[str, Any], name: str, default: float | None = None) -> float:
    value = line.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= 1e12:  # nor is NaN
        raise ValueError(f"has no {name}")
    return float(value)


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def fold(lines: Sequence[bytes]) -> Transcript:
    """The conversation in `lines`. ValueError names the first line that cannot be read."""
    transcript: Transcript | None = None
    for number, raw in enumerate(lines, 1):
        try:
            line = parse(raw)
            if transcript is None:
                transcript = Transcript(read_header(line))
            else:
                transcript.apply(line)
        except ValueError as error:
            raise type(error)(f"line {number} {error}") from error
    if transcript is None:
        raise ValueError("has no beginning")
    return transcript


def _ending(said: Said) -> str:
    return " (stopped)" if said.stopped else ""


def _quoted(text: str) -> str:
    return "> " + text.rstrip("\n").replace("\n", "\n> ")
