"""What is suspicious about a change a model proposes, in words for the user.

Looks at texts only. A concern never stops a change by itself: it makes "no" the answer that is taken when
none is given. Everything here is hostile: the file, the new text, and what the standard library's parsers
are fed with it.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from localspec.edit.fences import FENCE
from localspec.edit.reply import DIVIDER, HEAD, NUMBER, TAIL, Notes, chatty, short

Kind = Literal[
    "truncated", "empty", "lazy", "deletion", "syntax", "prose", "numbers", "fences", "tokens", "invisible"
]

_MOST_PARSED = 1_000_000  # characters
_MOST_DOTS = 200  # in a line of TOML: the library's time grows faster than a dotted key's square

_LEADERS = r"(?:#|//+|/\*+|\*|<!--|--|;+|%+|\"\"\"|\'\'\'|\{/\*|\{#|\(\*|\[|\(|<|REM\b|-)"
_COMMENT = re.compile(rf"\s*(?:{_LEADERS}\s*)+(.*?)[\s*/#>\])}}\-\"']*$", re.IGNORECASE)
_TRAILING = re.compile(r"(?:\s#|//|/\*|<!--|\s--)\s*([^#/]{3,80}?)[\s*/>\-]*$")
_DOTS = re.compile(r"\.{3,}|…")
_DOTS_FIRST = re.compile(r"(?:\.{3,}|…)(?:\s|$)")
_CODE = re.compile(r"[=;{}]|\w\(")
_ALONE = re.compile(
    r"(?:unchanged|unmodified|untouched|omitted|elided|snip|snipped|truncated|skipped)[.!]?", re.I
)
_REST = re.compile(
    r"\b(?:rest|remainder|remaining|existing|previous|others?|same|as before|original|unchanged|unmodified|"
    r"untouched|omitted|elided|snip|snipped|truncated|abbreviated|skipped|"
    r"(?:code|implementation|logic|content) (?:goes |continues |remains )?here)\b",
    re.IGNORECASE,
)
_FILLER = re.compile(
    r"rest|remainder|remaining|existing|previous|others?|same|before|original|unchanged|unmodified|untouched|"
    r"omitted|elided|snip|snipped|truncated|abbreviated|skipped|code|files?|functions?|methods?|class|classes|"
    r"contents?|lines?|imports?|implementations?|logic|definitions?|tests?|parts?|sections?|body|blocks?|text|"
    r"items?|entry|entries|elements?|fields?|config|configuration|settings|options|script|program|module|"
    r"document|components?|handlers?|variables?|statements?|property|properties|rows?|records?|data|routes?|"
    r"is|are|was|were|remains?|stays?|left|kept|keeps?|go|goes|continues?|follows?|following|insert|add|put|"
    r"includes?|here|there|above|below|as|it|its|the|of|your|this|that|these|all|in|from|with|and|for|no|not|"
    r"any|changes?|changed|needed|to|be|exactly|everything|else|more|brevity|version|placeholder|todo|so|on"
)
_SHRINKS = re.compile(
    r"\b(?:delet(?:e|ing)|remov(?:e|ing|al)|drop|strip|shorten|shorter|simplify|simpler|shrink|reduce|condense|"
    r"summari[sz]e|trim|clean[ -]?up|dedup|deduplicate|duplicates?|compact|extract|minify|merge|collapse|"
    r"get rid|eliminate|prune|truncate|discard|without|(?:keep|leave) only|cut)\b",
    re.IGNORECASE,
)
_REWRITES = re.compile(
    r"\b(?:re-?writ|translat|convert|port\b|replac|re-?format|re-?structur|into\b)", re.IGNORECASE
)
_TOKEN = re.compile(
    r"<\|[A-Za-z0-9_]{1,40}\|>|<\uff5c[^\s<>]{1,40}\uff5c>|</?(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>|"
    r"</?(?:think|thinking|thought|reasoning|tool_call|tool_response|eos|bos)>|</s>"
)
_MARKUP = frozenset((".md", ".markdown", ".mdx", ".rst", ".txt", ".qmd", ".adoc", ""))
_JOINERS = "\u200c\u200d"
_INVISIBLE = frozenset("\u00ad\u034f\u115f\u1160\u3164\uffa0\u2028\u2029")


@dataclass(frozen=True, slots=True)
class Concern:
    """One reason to look twice. `words`: a line for the user; may quote hostile text."""

    kind: Kind
    words: str


def examine(
    before: str,
    after: str,
    *,
    name: str,
    reply_notes: Notes,
    finish_reason: str,
    instruction: str,
    around: tuple[str, str] = ("", ""),
) -> tuple[Concern, ...]:
    """Concerns about turning `before` into `after`, the worst first; none if they are the same.

    `around`: where these are a part of the file, what comes before and after it. `finish_reason`: as in
    `chat.turn.Answer`. The file's `name` tells how it is parsed.
    """
    if before == after:
        return ()
    if not after.strip():
        return (Concern("empty", "nothing is left of the text"),) if before.strip() else ()
    old, new = before.split("\n"), after.split("\n")
    suffix = PurePath(name).suffix.lower()
    found: list[tuple[Kind, str]] = [
        ("truncated", _truncated(reply_notes, finish_reason)),
        ("syntax", _syntax(before, after, suffix, around)),
        ("lazy", _lazy(old, new, suffix)),
        ("deletion", _deletion(old, new, instruction)),
        ("tokens", _tokens(before, after)),
        ("invisible", _invisible(before, after)),
        ("fences", _fences(old, new, suffix)),
        ("prose", _prose(old, new)),
        ("numbers", _numbers(old, new)),
    ]
    return tuple(Concern(kind, words) for kind, words in found if words)


def _truncated(notes: Notes, finish_reason: str) -> str:
    reasons = {
        "length": "the answer was cut off at its longest allowed length",
        "context": "the answer was cut off where the context was full",
        "cancelled": "the answer was stopped before its end",
    }
    fence = "the answer's code block was never closed: its end may be missing" if notes.truncated else ""
    return reasons.get(finish_reason, fence)


def _lazy(old: Sequence[str], new: Sequence[str], suffix: str) -> str:
    known = {line.strip() for line in old}
    python_stub_ok = suffix in (".py", ".pyi") and len(new) >= len(old)
    places = [
        at
        for at, line in enumerate(new, 1)
        if line.strip() not in known and is_lazy(line) and not (python_stub_ok and line.strip() == "...")
    ]
    if not places:
        return ""
    more = f", and {len(places) - 1} more" if len(places) > 1 else ""
    line = short(new[places[0] - 1])
    return f'a placeholder stands for text that was left out: "{line}" (line {places[0]}{more})'


def is_lazy(line: str) -> bool:
    """Whether a line says "the rest stays" instead of the rest: bare, or as a comment of some language."""
    line = line[:200]
    if not (_DOTS.search(line) or _REST.search(line)):
        return False
    comment, trailing = _COMMENT.match(line), _TRAILING.search(line)
    return (
        _says_rest(line.strip(), least=3)
        or (comment is not None and _says_rest(comment[1], least=2))
        or (trailing is not None and _says_rest(trailing[1], least=2))
    )


def _says_rest(text: str, least: int) -> bool:
    """Whether `text` begins with dots, or says "the rest" in `least` or more words that say nothing else."""
    words = re.findall(r"[a-z]+", _DOTS.sub(" ", text).lower().replace("'s", ""))
    if _CODE.search(text) or len(words) > 14:
        return False
    if _DOTS_FIRST.match(text) or (least < 3 and _ALONE.fullmatch(text)):
        return True
    if not _REST.search(text) or len(words) < least:
        return bool(least < 3 and _DOTS.search(text) and _REST.search(text))
    return bool(_DOTS.search(text)) or all(_FILLER.fullmatch(word) for word in words)


def _deletion(old: Sequence[str], new: Sequence[str], instruction: str) -> str:
    if _SHRINKS.search(instruction):
        return ""
    had, has = (Counter(line.strip() for line in lines if line.strip()) for lines in (old, new))
    total, kept = had.total(), (had & has).total()
    gone = total - max(kept, has.total())
    if gone > 8 and gone > 0.3 * total:
        return f"{gone} of {total} lines are gone, and the instruction does not say so"
    if total - kept > 8 and kept < 0.2 * total and not _REWRITES.search(instruction):
        return f"only {kept} of {total} lines are left as they were"
    return ""


def _syntax(before: str, after: str, suffix: str, around: tuple[str, str]) -> str:
    parsers: dict[str, tuple[str, Callable[[str], object]]] = {
        ".py": ("Python", _parse_python),
        ".pyi": ("Python", _parse_python),
        ".json": ("JSON", json.loads),
        ".toml": ("TOML", _parse_toml),
    }
    if suffix not in parsers:
        return ""
    language, parse = parsers[suffix]
    lead, tail = around
    whole = lead + before + tail
    if whole.strip() and _fault(parse, whole) is not None:
        return ""
    fault = _fault(parse, lead + after + tail)
    return f"the new text is not valid {language}{fault}" if fault is not None else ""


def _fault(parse: Callable[[str], object], text: str) -> str | None:
    """What is wrong with `text`, or None if nothing is or it is too long to say."""
    if len(text) > _MOST_PARSED:
        return None
    try:
        parse(text)
    except (SyntaxError, ValueError) as error:  # json's and tomllib's errors are ValueErrors
        line = getattr(error, "lineno", None)
        what = getattr(error, "msg", None) or str(error)
        return f": {short(what)}" + (f" (line {line})" if line else "")
    except (RecursionError, MemoryError, OverflowError):
        return ": it is nested too deeply"
    return None


def _parse_python(text: str) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text.removeprefix("\ufeff"))


def _parse_toml(text: str) -> object:
    if any(line.count(".") > _MOST_DOTS for line in text.split("\n")):
        return None
    return tomllib.loads(text)


def _tokens(before: str, after: str) -> str:
    new = [token for token in dict.fromkeys(_TOKEN.findall(after)) if token not in before]
    if "</s>" in new and "<s>" in after:
        new.remove("</s>")
    return f"the model's own control tokens are in the text: {', '.join(new[:4])}" if new else ""


def _invisible(before: str, after: str) -> str:
    new = Counter(_unseen(after)) - Counter(_unseen(before))
    if not new:
        return ""
    char = min(new)
    line = after.count("\n", 0, after.index(char)) + 1
    title = unicodedata.name(char, "control character")
    more = f", and {new.total() - 1} more" if new.total() > 1 else ""
    return f"characters that cannot be seen are new: U+{ord(char):04X} {title} (line {line}{more})"


def _unseen(text: str) -> Iterable[str]:
    """Format and control characters, of which bidi overrides hide what code does (trojansource.codes)."""
    if text.isascii() and text.isprintable():
        return
    for at, char in enumerate(text):
        if char.isprintable() and char not in _INVISIBLE and not "\U000e0100" <= char <= "\U000e01ef":
            continue
        joins = char in _JOINERS and at and not text[at - 1].isascii()
        if char not in "\n\t\f " and not joins and unicodedata.category(char) not in ("Zs", "Cn", "Co"):
            yield char


def _fences(old: Sequence[str], new: Sequence[str], suffix: str) -> str:
    known, solid = set(old), [line for line in new if line.strip()]
    marks = [line for line in new if line not in known and (HEAD.match(line) or TAIL.match(line))]
    if suffix not in _MARKUP:
        marks += [line for line in new if line not in known and DIVIDER.match(line)]
    if marks:
        return f'a mark of the answer\'s form is in the text: "{short(marks[0])}"'
    edges = [bool(FENCE.match(line)) and line not in _edges(old) for line in (solid[0], solid[-1])]
    count = [sum(bool(FENCE.match(line)) for line in lines) for lines in (old, new)]
    wrapped = all(edges) and count[1] == count[0] + 2
    odd = any(edges) and (count[1] - count[0]) % 2
    if wrapped or odd or (any(edges) and suffix not in _MARKUP):
        return "a code fence is at the text's edge"
    return ""


def _edges(lines: Sequence[str]) -> set[str]:
    solid = [line for line in lines if line.strip()]
    return {solid[0], solid[-1]} if solid else set()


def _prose(old: Sequence[str], new: Sequence[str]) -> str:
    solid = [line for line in new if line.strip()]
    talk = [line for line in (*solid[:1], *solid[-1:]) if line not in old and chatty(line)]
    return f'the model talks in the text: "{short(talk[0])}"' if talk else ""


def _numbers(old: Sequence[str], new: Sequence[str]) -> str:
    shares = []
    for lines in (old, new):
        solid = [line for line in lines if line.strip()]
        shares.append(sum(bool(NUMBER.match(line)) for line in solid) / max(len(solid), 3))
    return "the lines begin with their numbers" if shares[1] >= 0.8 and shares[0] < 0.2 else ""
