"""What a model's answer says: a new text, or search/replace blocks.

Pure text in, values out. Tolerates what small models get wrong where only one reading is left, and says
what it tolerated; otherwise raises BadReply, whose text can be given back to the model. Never takes a file
name from an answer. Texts have \\n line ends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from localspec.edit.fences import FENCE, Fenced, fences_of, longest_fence
from localspec.errors import LocalspecError

HEAD = re.compile(r" {0,3}<{5,9} ?(?:SEARCH|ORIGINAL)[ >:]*$", re.IGNORECASE)
DIVIDER = re.compile(r" {0,3}={5,9} *$")
TAIL = re.compile(r" {0,3}(?:>{5,9} ?(?:REPLACE|UPDATED)?|<{5,9} ?(?:REPLACE|UPDATED)) *$", re.IGNORECASE)
NUMBER = re.compile(r" *(\d{1,7})(\t| ?[|│:→])")
_CHATTY = re.compile(
    r"\s*(?:sure\b|certainly\b|of course\b|okay\b|absolutely\b|here(?:'s| is| are)\b|below (?:is|are)\b|"
    r"as an ai\b|i(?:'m|'ve|'ll|'d| am| have| will| can| would|) [a-z]|"
    r"to (?:do|make|fix|achieve) (?:this|that)\b|you can\b|let me\b|let's\b|hope (?:this|that)\b|"
    r"(?:the|this|these) (?:updated|modified|new|revised|corrected|changes?|above|code|version)\b.*[.:!]\s*$|"
    r"note(?: that|:)|explanation\b|changes made\b|in this (?:version|code)\b)",
    re.IGNORECASE,
)
_THOUGHT = r"think|thinking|thought|reasoning"
_THINKS = re.compile(rf"\s*(?:<({_THOUGHT})>|\[(THINK)\])", re.IGNORECASE)
_THOUGHT_END = re.compile(rf"(?:</(?:{_THOUGHT})>|\[/THINK\])[ \t]*(?:\n|$)", re.IGNORECASE)


class BadReply(LocalspecError):
    """An answer that cannot be used. `truncated`: it stops in the middle, so asking again needs more room."""

    def __init__(self, reason: str, *, truncated: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.truncated = truncated


@dataclass(frozen=True, slots=True)
class Notes:
    """What was tolerated. `remarks`: lines for the user. `truncated`: the fence was never closed."""

    remarks: tuple[str, ...] = ()
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Whole:
    """The complete new text."""

    text: str
    notes: Notes


@dataclass(frozen=True, slots=True)
class Block:
    """Lines to find and lines to put in their place, without line ends."""

    search: tuple[str, ...]
    replace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Blocks:
    """At least one block, in the order of the answer."""

    blocks: tuple[Block, ...]
    notes: Notes


def parse_whole(reply: str, before: str) -> Whole:
    """The new text in an answer of the whole form. `before`: the text it replaces.

    The state of the final newline, which a fence cannot show, is that of `before`.
    """
    lines, remarks = _after_thinking(reply, before)
    fences = fences_of(lines)
    if not fences or _only_closes(fences, lines):
        body = _bare(lines[: fences[0].first - 1] if fences else lines, before)
        return _whole(
            body, before, (*remarks, "the answer had no code block: taken as the text itself"), False
        )
    fence, remark = _choose(fences, lines, before)
    body = lines[fence.first : fence.end]
    if outside := _solid([*lines[: fence.first - 1], *lines[fence.end + 1 :]]):
        remarks = (*remarks, f'left out what stood around the code block: "{short(outside[0])}"')
    remarks = (*remarks, *([remark] if remark else []))
    if fence.closed:
        return _whole(body, before, remarks, False)
    body, glued = _unglued(body, fence.mark)
    if not _solid(body):
        raise BadReply("The answer stops after the beginning of its code block.", truncated=True)
    remarks = (*remarks, *(["the closing fence stood at the end of a line"] if glued else []))
    return _whole(body, before, remarks, not glued)


def parse_blocks(reply: str, before: str) -> Blocks:
    """The search/replace blocks of an answer. `before`: the text they are for.

    What stands outside of blocks (file names, fences, prose) means nothing.
    """
    lines, remarks = _after_thinking(reply, before)
    sections = _sections(lines)
    problems: list[str] = []
    blocks: list[Block] = []
    tolerated: list[str] = []
    for number, section in enumerate(sections, 1):
        divider = _divider(section, before)
        if isinstance(divider, str):
            problems.append(f"Block {number} {divider}")
            continue
        search, replace = section[:divider], section[divider + 1 :]
        for repair, words in ((_unfenced, "code fences"), (_without_numbers, "line numbers")):
            if (repaired := repair(search, before)) is not None:
                search, replace = repaired, repair(replace, before) or replace
                tolerated.append(f"took {words} off block {number}")
        blocks.append(Block(tuple(search), tuple(replace)))
    if problems:
        raise BadReply("\n".join(problems))
    return Blocks(tuple(blocks), Notes((*remarks, *tolerated)))


def has_markers(text: str) -> bool:
    """Whether `text` has lines that would be taken for a block's beginning or end."""
    return any(HEAD.match(line) or TAIL.match(line) for line in text.split("\n"))


def unnumbered(lines: Sequence[str]) -> list[str] | None:
    """`lines` without their numbers, if all begin with consecutive ones ("7 | x", "7: x", "7<tab>x")."""
    found = [NUMBER.match(line) for line in lines]
    if len(lines) < 2 or not all(found):
        return None
    marks = [match for match in found if match]
    first = int(marks[0][1])
    if len({match[2] for match in marks}) > 1 or any(int(m[1]) != first + i for i, m in enumerate(marks)):
        return None
    rest = [line[match.end() :] for line, match in zip(lines, marks, strict=True)]
    spaced = marks[0][2] != "\t" and all(not line or line.startswith(" ") for line in rest)
    return [line[1:] for line in rest] if spaced else rest


def chatty(line: str) -> bool:
    """Whether a line reads like the model talking about its answer."""
    return bool(_CHATTY.match(line[:300].replace("\u2019", "'")))


def short(line: str, limit: int = 60) -> str:
    """The beginning of a line, for a message."""
    line = line.strip()
    return line if len(line) <= limit else f"{line[:limit]}…"


def _after_thinking(reply: str, before: str) -> tuple[list[str], tuple[str, ...]]:
    """The answer's lines after the thinking, and a remark if there was any."""
    if "\r" not in before:
        reply = reply.replace("\r\n", "\n")
    if begun := _THINKS.match(reply):
        end = re.compile(rf"</{begun[1]}>" if begun[1] else r"\[/THINK\]", re.IGNORECASE).search(
            reply, begun.end()
        )
        if not end:
            raise BadReply("The answer stops before the thinking does.", truncated=True)
        return reply[end.end() :].split("\n"), ("left out the thinking",)
    end = _THOUGHT_END.search(reply)  # templates may have begun the thinking in the prompt
    if end and not _inside(reply[: end.start()].split("\n")):
        return reply[end.end() :].split("\n"), ("left out the thinking",)
    return reply.split("\n"), ()


def _inside(lines: Sequence[str]) -> bool:
    """Whether a fence or a block is open after these lines."""
    open_blocks = sum(bool(HEAD.match(line)) - bool(TAIL.match(line)) for line in lines)
    return open_blocks > 0 or any(not fence.closed for fence in fences_of(lines))


def _only_closes(fences: Sequence[Fenced], lines: Sequence[str]) -> bool:
    """Whether the one fence is a closing one whose opening the model forgot."""
    fence, *more = fences
    if more or fence.closed or _solid(lines[fence.first : fence.end]):
        return False
    above = lines[: fence.first - 1]
    return lines[fence.first - 1].strip() == fence.mark and bool(_solid(above)) and not _prose(above)


def _choose(fences: Sequence[Fenced], lines: Sequence[str], before: str) -> tuple[Fenced, str]:
    """Which fenced piece is the text, and a remark. Raises BadReply if that is not clear."""
    first, last = fences[0], fences[-1]
    if len(fences) == 1:
        return first, ""
    if longest_fence(before.split("\n"), first.mark[0]) >= len(first.mark) and last.mark[0] == first.mark[0]:
        joined = Fenced(first.first, last.end, first.mark, last.closed)
        return joined, "the text has fences of its own: taken from the first fence to the last"
    wanted = frozenset(_solid(before.split("\n")))
    pieces = {tuple(lines[fence.first : fence.end]): fence for fence in fences}
    own = pieces.pop(tuple(before.removesuffix("\n").split("\n")), None)
    ranked = sorted(
        ((_likeness(piece, wanted), fence.first, fence) for piece, fence in pieces.items()), reverse=True
    )
    likeness = [rank[0] for rank in ranked]
    remark = f"the answer had {len(fences)} code blocks: took the one most like the file"
    if (likeness[:1] >= [0.5] and likeness[1:2] <= [likeness[0] / 2]) or (len(ranked) == 1 and not own):
        return ranked[0][2], remark
    if own:
        return own, remark
    raise BadReply(
        f"The answer has {len(fences)} code blocks, and it is not clear which one is the complete new text. "
        "Write exactly one."
    )


def _bare(lines: Sequence[str], before: str) -> list[str]:
    """An answer without a fence, if it is the text itself. Raises BadReply if it reads like talk."""
    solid = [at for at, line in enumerate(lines) if line.strip()]
    if not solid:
        raise BadReply("The answer is empty.")
    body = list(lines[solid[0] : solid[-1] + 1])
    wanted = frozenset(_solid(before.split("\n")))
    if _prose(body) or (len(wanted) > 3 and _likeness(body, wanted) < 0.3):
        raise BadReply("The answer has no code block. Write the complete new text in one code block.")
    return body


def _prose(lines: Sequence[str]) -> bool:
    solid = _solid(lines)
    return bool(solid) and (chatty(solid[0]) or chatty(solid[-1]))


def _likeness(lines: Sequence[str], wanted: frozenset[str]) -> float:
    """The share of the `wanted` lines that are among `lines`."""
    return len(wanted.intersection(_solid(lines))) / max(len(wanted), 1)


def _solid(lines: Sequence[str]) -> list[str]:
    return [line.strip() for line in lines if line.strip()]


def _unglued(body: Sequence[str], mark: str) -> tuple[list[str], bool]:
    """`body` without a closing fence that stands at the end of its last line."""
    end = max((at for at, line in enumerate(body) if line.strip()), default=-1)
    last = body[end].rstrip() if end >= 0 else ""
    if not last.endswith(mark) or mark in last.removesuffix(mark):
        return list(body), False
    return [*body[:end], last.removesuffix(mark)], True


def _whole(body: Sequence[str], before: str, remarks: tuple[str, ...], truncated: bool) -> Whole:
    if (bare := _without_numbers(body, before)) is not None:
        body, remarks = bare, (*remarks, "took line numbers off every line")
    text = "".join(f"{line}\n" for line in body)
    ends = before.endswith("\n") or (not before and text != "\n")
    return Whole(text if ends else text.removesuffix("\n"), Notes(remarks, truncated))


def _without_numbers(lines: Sequence[str], before: str) -> list[str] | None:
    if any(NUMBER.match(line) for line in before.split("\n")):
        return None
    return unnumbered(lines)


def _unfenced(lines: Sequence[str], before: str) -> list[str] | None:
    """`lines` without fences around them, if the text has no such line."""
    if len(lines) < 2 or not (FENCE.match(lines[0]) and FENCE.match(lines[-1])):
        return None
    return None if lines[0] in before.split("\n") else list(lines[1:-1])


def _sections(lines: Sequence[str]) -> list[list[str]]:
    """What stands between each SEARCH line and its REPLACE line."""
    sections: list[list[str]] = []
    start: int | None = None
    for at, line in enumerate(lines):
        if HEAD.match(line):
            if start is not None:
                raise BadReply(
                    f"Block {len(sections) + 1} has no line >>>>>>> REPLACE before the next block."
                )
            start = at + 1
        elif start is not None and TAIL.match(line):
            sections.append(list(lines[start:at]))
            start = None
    if start is not None:
        raise BadReply(f"Block {len(sections) + 1} has no line >>>>>>> REPLACE at its end.", truncated=True)
    if not sections:
        raise BadReply("The answer has no block that begins with a line <<<<<<< SEARCH.")
    return sections


def _divider(section: Sequence[str], before: str) -> int | str:
    """Where the ======= line is, or what is wrong. A text may have such lines itself (headings)."""
    places, text = [at for at, line in enumerate(section) if DIVIDER.match(line)], f"\n{before}\n"
    if 1 < len(places) <= 50:
        places = [at for at in places if at and f"\n{chr(10).join(section[:at])}\n" in text][-1:] or places
    if len(places) == 1:
        return places[0]
    return "has more than one line =======." if places else "has no line ======= in its middle."
