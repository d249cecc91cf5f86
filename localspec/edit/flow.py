"""One file from the task to its new bytes: ask, read the answer, look at it, have it confirmed, write.

Pure but for the functions it is given: an Author answers, `decide` confirms, `write` writes. Which file is
written comes with the task, never from an answer, and what is written is what was decided on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from localspec.edit import files, guards, undo
from localspec.edit.apply import apply
from localspec.edit.confirm import Accepted, Decision, Retry
from localspec.edit.diff import hunks
from localspec.edit.files import TextFile
from localspec.edit.guards import Concern
from localspec.edit.lines import lf, restore, split
from localspec.edit.parts import Part, Task, request_for
from localspec.edit.regions import splice
from localspec.edit.reply import BadReply, Notes, parse_blocks, parse_whole, short
from localspec.edit.request import Request, final_newline
from localspec.errors import NotApplied

Status = Literal["written", "unchanged", "declined"]

CUT_OFF = {
    "length": ("the answer reached its longest allowed length", "give a larger --max-tokens, or --lines"),
    "context": ("the context is full", "give a larger --ctx, or --lines for a part of the file"),
}


@dataclass(frozen=True, slots=True)
class Reply:
    """What was answered. `finish_reason`: as in `chat.turn.Answer`."""

    text: str
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True)
class Wrong:
    """An answer that could not be used, and the reason, as the author is told."""

    reply: str
    reason: str


class Author(Protocol):
    """Who answers: a model, or somebody whose answer was given beforehand."""

    def parts(self, task: Task) -> tuple[Sequence[Part], str]:
        """What to ask for, and why so, "" if there is nothing to say. Raises UsageError if it cannot be."""

    def answer(self, request: Request, wrong: Wrong | None) -> Reply:
        """The answer, after one that was `wrong` another.

        Raises NotApplied where there is no other, KeyboardInterrupt when it was stopped.
        """

    def summary(self) -> str:
        """What the answers to the last task cost, in a line; or ""."""

    def stats(self) -> dict[str, Any] | None:
        """The same as JSON."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A part with the text an answer gives it, and what is known about that answer."""

    part: Part
    text: str
    notes: Notes
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """The text that is proposed for the file of a task, to the character, and what speaks against it."""

    task: Task
    after: str
    rewritten: tuple[Rewritten, ...]
    suspicions: tuple[Concern, ...] = ()

    @property
    def before(self) -> str:
        return self.task.file.text

    def concerns(self, text: str) -> tuple[Concern, ...]:
        """What speaks against `text`: all of the proposal, some of it, or what a person made of it."""
        return self.suspicions if text == self.after else self._examined(text)

    def examined(self) -> Proposal:
        """The same with its suspicions."""
        found = self._examined(self.after)
        known = {concern.kind for concern in found}
        more = self._concerns_of_parts() if len(self.rewritten) > 1 else ()
        return replace(self, suspicions=(*found, *(concern for concern in more if concern.kind not in known)))

    def _examined(self, text: str) -> tuple[Concern, ...]:
        before, after, around = self._compared(lf(text))
        return guards.examine(
            before,
            after,
            name=self.task.file.name,
            reply_notes=self._notes,
            finish_reason=_worst(self.rewritten),
            instruction=self.task.instruction,
            around=around,
        )

    @property
    def _notes(self) -> Notes:
        remarks = (remark for one in self.rewritten for remark in one.notes.remarks)
        return Notes(tuple(remarks), any(one.notes.truncated for one in self.rewritten))

    def _compared(self, after: str) -> tuple[str, str, tuple[str, str]]:
        """Old and new text of the lines that were asked for, and what is around them; else of the file."""
        request = request_for(self.task, self.rewritten[0].part)
        lead, tail = request.lead, request.tail
        outside = len(lead) + len(tail)
        alone = len(self.rewritten) == 1 and len(after) >= outside
        if alone and after.startswith(lead) and after.endswith(tail):
            return request.text, after[len(lead) : len(after) - len(tail)], (lead, tail)
        return self.task.text, after, ("", "")

    def _concerns_of_parts(self) -> tuple[Concern, ...]:
        """What only shows beside the old text of a part: how much of it is gone."""
        found = (
            guards.examine(
                one.part.region.text,
                one.text,
                name="",
                reply_notes=one.notes,
                finish_reason=one.finish_reason,
                instruction=self.task.instruction,
            )
            for one in self.rewritten
        )
        first = {concern.kind: concern for concerns in found for concern in reversed(concerns)}
        return tuple(first.values())


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a file. `after`: the text it has now, or would have. `undo`: the edit's id, or ""."""

    file: TextFile
    status: Status
    after: str
    lines_added: int = 0
    lines_removed: int = 0
    concerns: tuple[Concern, ...] = ()
    undo: str = ""


Decide = Callable[[Proposal], Decision]
Write = Callable[[TextFile, bytes], undo.Entry | None]


def run(task: Task, author: Author, decide: Decide, write: Write, note: Callable[[str], None]) -> Outcome:
    """Carry out `task`. Raises NotApplied if no answer can be used, and what `decide` and `write` raise."""
    instruction, tries = task.instruction, 1
    while True:
        proposal = propose(task, author, note)
        if proposal.after == proposal.before:
            return Outcome(task.file, "unchanged", proposal.after)
        decision = decide(proposal)
        if isinstance(decision, Retry):
            tries += 1
            instruction = "\n".join(filter(None, (instruction, decision.instruction)))
            again = "" if decision.instruction else f"\n(This is attempt {tries}: do it in another way.)"
            task = replace(task, instruction=instruction + again)
            continue
        if not isinstance(decision, Accepted):
            return _outcome(proposal, "declined", proposal.after)
        raw = files.encode(task.file, decision.text)
        if raw == task.file.raw:
            return Outcome(task.file, "unchanged", decision.text)
        outcome = _outcome(proposal, "written", decision.text)
        entry = write(task.file, raw)
        return replace(outcome, undo=entry.id) if entry else outcome


def _outcome(proposal: Proposal, status: Status, text: str) -> Outcome:
    found = hunks(proposal.before, text, 0)
    signs = Counter(sign for hunk in found for sign, _ in hunk.lines)
    return Outcome(proposal.task.file, status, text, signs["+"], signs["-"], proposal.concerns(text))


def propose(task: Task, author: Author, note: Callable[[str], None]) -> Proposal:
    """What the author makes of the file. Raises NotApplied if that cannot be used."""
    parts, why = author.parts(task)
    if why:
        note(why)
    try:
        rewritten = tuple(_rewritten(task, part, author) for part in parts)
    finally:
        if summary := author.summary():
            note(summary)
    for remark in dict.fromkeys(remark for one in rewritten for remark in one.notes.remarks):
        note(remark)
    new = splice(task.text, {one.part.region: one.text for one in rewritten})
    reaches_end = rewritten[-1].part.region.last == len(split(task.text))
    wanted = final_newline(task.instruction) if reaches_end else None
    after = restore(task.file.text, new, wanted)
    files.encode(task.file, after)  # refused now, not when it was looked at
    return Proposal(task, after, rewritten).examined()


def _rewritten(task: Task, part: Part, author: Author) -> Rewritten:
    """The new text of a part; an answer that cannot be used is given back once, with the reason."""
    request = request_for(task, part)
    wrong: Wrong | None = None
    while True:
        reply = author.answer(request, wrong)
        try:
            return _read(part, request.text, reply)
        except BadReply as error:
            if reply.finish_reason in CUT_OFF:  # it would be again
                raise NotApplied(*CUT_OFF[reply.finish_reason]) from error
            if wrong:
                what = f"the answer cannot be used: {first_line(error.reason)}"
                raise NotApplied(what, "a larger model may do better, or --lines for a part") from error
            wrong = Wrong(reply.text, error.reason)


def _read(part: Part, before: str, reply: Reply) -> Rewritten:
    """What a reply says. Raises BadReply."""
    if part.format == "whole":
        whole = parse_whole(reply.text, before)
        return Rewritten(part, whole.text, whole.notes, reply.finish_reason)
    blocks = parse_blocks(reply.text, before)
    applied = apply(before, blocks.blocks)
    notes = replace(blocks.notes, remarks=(*blocks.notes.remarks, *applied.notes))
    return Rewritten(part, applied.text, notes, reply.finish_reason)


def _worst(rewritten: Sequence[Rewritten]) -> str:
    return next((one.finish_reason for one in rewritten if one.finish_reason != "stop"), "stop")


def first_line(text: str) -> str:
    """Of what an author is told, as much as goes into a line."""
    return short(text.partition("\n")[0], 160)
