"""One file from the task to its bytes, with answers written here: what is asked, read, and written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.edit import files, flow
from localspec.edit.confirm import Accepted, Decision, Declined, Retry
from localspec.edit.diff import hunks, select
from localspec.edit.flow import Outcome, Proposal, Reply, Wrong
from localspec.edit.given import Given
from localspec.edit.parts import Part, Room, Task, parts_of, request_for
from localspec.edit.regions import Region
from localspec.edit.request import Format, Request, Source, messages
from localspec.edit.undo import entries, undo, write
from localspec.errors import FileChanged, NotApplied, UsageError

CODE = """import math


def circle(r):
    return math.pi * r * r


def square(a):
    return a * a
"""
RENAMED = CODE.replace("square", "area")
BLOCK = """<<<<<<< SEARCH
def square(a):
=======
def area(a):
>>>>>>> REPLACE
"""


def whole(text: str) -> str:
    return f"```python\n{text}```\n"


@dataclass
class Script:
    """An author with answers to give, one after another; remembers what it was asked."""

    replies: list[str | Reply]
    format: Format = "whole"
    regions: Callable[[Task], Sequence[Region]] = lambda task: [task.region]
    asked: list[tuple[Request, Wrong | None]] = field(default_factory=list)

    def parts(self, task: Task) -> tuple[Sequence[Part], str]:
        return [Part(region, self.format) for region in self.regions(task)], "why so"

    def answer(self, request: Request, wrong: Wrong | None) -> Reply:
        self.asked.append((request, wrong))
        reply = self.replies.pop(0)
        return Reply(reply) if isinstance(reply, str) else reply

    def summary(self) -> str:
        return "quick"

    def stats(self) -> dict[str, Any] | None:
        return None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "shapes.py"
    path.write_text(CODE)
    return path


def task(path: Path, instruction: str = "rename square to area", **more: Any) -> Task:
    return Task(files.read(str(path)), instruction, **more)


def yes(found: Proposal) -> Decision:
    return Accepted(found.after)


def no(_: Proposal) -> Decision:
    return Declined()


def carry_out(
    what: Task, author: Script | Given, decide: flow.Decide = yes, notes: list[str] | None = None
) -> Outcome:
    return flow.run(what, author, decide, write, (notes if notes is not None else []).append)


def test_a_complete_text_is_written_and_can_be_undone(path: Path) -> None:
    notes: list[str] = []
    outcome = carry_out(task(path), Script([whole(RENAMED)]), notes=notes)
    assert path.read_text() == RENAMED
    assert (outcome.status, outcome.lines_added, outcome.lines_removed, outcome.concerns) == (
        "written",
        1,
        1,
        (),
    )
    assert [entry.id for entry in entries()] == [outcome.undo]
    assert notes == ["why so", "quick"]
    undo(str(path))
    assert path.read_text() == CODE


def test_blocks_are_applied(path: Path) -> None:
    outcome = carry_out(task(path), Script([BLOCK], "blocks"))
    assert (outcome.status, path.read_text()) == ("written", RENAMED)


def test_declined_is_untouched_and_tells_what_it_would_have_been(path: Path) -> None:
    outcome = carry_out(task(path), Script([whole(RENAMED)]), no)
    assert (outcome.status, outcome.after, path.read_text(), entries()) == ("declined", RENAMED, CODE, [])


def test_nothing_to_change_asks_nobody(path: Path) -> None:
    outcome = carry_out(task(path), Script([whole(CODE)]), lambda _: pytest.fail("asked"))
    assert (outcome.status, entries()) == ("unchanged", [])


ODD = {
    "CRLF": (CODE.replace("\n", "\r\n").encode(), RENAMED.replace("\n", "\r\n").encode()),
    "CR": (CODE.replace("\n", "\r").encode(), RENAMED.replace("\n", "\r").encode()),
    "BOM": (b"\xef\xbb\xbf" + CODE.encode(), b"\xef\xbb\xbf" + RENAMED.encode()),
    "no newline at the end": (CODE.rstrip("\n").encode(), RENAMED.rstrip("\n").encode()),
    "UTF-16": (CODE.encode("utf-16"), RENAMED.encode("utf-16")),
    "mixed ends": (CODE.replace("\n\n", "\r\n\n").encode(), RENAMED.replace("\n\n", "\r\n\n").encode()),
}


@pytest.mark.parametrize(("before", "after"), ODD.values(), ids=ODD)
def test_bytes_that_nobody_asked_to_change_stay(before: bytes, after: bytes, path: Path) -> None:
    path.write_bytes(before)
    script = Script([whole(RENAMED)])
    carry_out(task(path), script)
    assert path.read_bytes() == after
    assert "\r" not in script.asked[0][0].text


def test_the_final_newline_comes_and_goes_when_asked_for(path: Path) -> None:
    path.write_text("a = 1")
    assert carry_out(task(path, "add a final newline"), Script(["```\na = 1\n```"])).status == "written"
    assert path.read_text() == "a = 1\n"
    carry_out(task(path, "remove the trailing newline"), Script(["```\na = 1\n```"]))
    assert path.read_text() == "a = 1"


def test_an_answer_that_cannot_be_used_is_given_back_once_with_the_reason(path: Path) -> None:
    bad = BLOCK.replace("square(a)", "sqare(a)")
    script = Script([bad, BLOCK], "blocks")
    assert carry_out(task(path), script).status == "written"
    (first, none), (second, wrong) = script.asked
    assert (first, none) == (second, None)
    assert wrong is not None
    assert wrong.reply == bad
    assert "SEARCH lines of block 1 are not in the text" in wrong.reason
    assert "def square(a):" in wrong.reason


def test_after_two_unusable_answers_nothing_is_written(path: Path) -> None:
    script = Script(["I cannot do that.", "Sorry."])
    with pytest.raises(NotApplied, match="the answer cannot be used: The answer has no code block"):
        carry_out(task(path), script)
    assert (len(script.asked), path.read_text(), entries()) == (2, CODE, [])


@pytest.mark.parametrize("reason", ["length", "context"])
def test_an_answer_that_was_cut_off_is_not_asked_for_again(reason: str, path: Path) -> None:
    script = Script([Reply("```python\n", reason)])
    with pytest.raises(NotApplied, match=r"longest|full"):
        carry_out(task(path), script)
    assert (len(script.asked), path.read_text()) == (1, CODE)


@pytest.mark.parametrize("reason", ["length", "context"])
def test_a_text_that_was_cut_off_raises_a_concern(reason: str, path: Path) -> None:
    half = CODE[: len(CODE) // 2]
    outcome = carry_out(task(path), Script([Reply(f"```python\n{half}", reason)]), no)
    assert outcome.concerns[0].kind == "truncated"


def test_some_blocks_that_fail_fail_all(path: Path) -> None:
    script = Script([BLOCK + BLOCK.replace("square", "cube")] * 2, "blocks")
    with pytest.raises(NotApplied, match="block 2"):
        carry_out(task(path), script)
    assert path.read_text() == CODE


def test_a_retry_asks_with_more_instruction_and_then_in_another_way(path: Path) -> None:
    decisions: list[Decision] = [Retry("call it area"), Retry(""), Retry("now")]
    script = Script([whole(CODE.replace("square", f"f{i}")) for i in range(4)])
    outcome = carry_out(
        task(path), script, lambda found: decisions.pop(0) if decisions else Accepted(found.after)
    )
    first, *others = (request.instruction for request, _ in script.asked)
    assert first == "rename square to area"
    assert others == [
        f"{first}\ncall it area",
        f"{first}\ncall it area\n(This is attempt 3: do it in another way.)",
        f"{first}\ncall it area\nnow",
    ]
    assert (outcome.status, path.read_text()) == ("written", CODE.replace("square", "f3"))


def test_what_is_written_is_what_was_decided_on_to_the_byte(path: Path) -> None:
    path.write_bytes(CODE.replace("\n", "\r\n").encode())

    def some(found: Proposal) -> Decision:
        return Accepted(select(found.before, hunks(found.before, found.after, 0), [1]))

    new = CODE.replace("pi", "tau").replace("square", "area")
    outcome = carry_out(task(path), Script([whole(new)]), some)
    assert path.read_bytes() == RENAMED.replace("\n", "\r\n").encode()
    assert (outcome.lines_added, outcome.lines_removed) == (1, 1)


def test_choosing_nothing_of_it_is_no_edit(path: Path) -> None:
    outcome = carry_out(task(path), Script([whole(RENAMED)]), lambda found: Accepted(found.before))
    assert (outcome.status, entries()) == ("unchanged", [])


def test_a_file_that_changed_while_it_was_looked_at_is_left_alone(path: Path) -> None:
    def slow(found: Proposal) -> Decision:
        path.write_text("mine\n")
        return Accepted(found.after)

    with pytest.raises(FileChanged):
        carry_out(task(path), Script([whole(RENAMED)]), slow)
    assert (path.read_text(), entries()) == ("mine\n", [])


def test_a_text_the_encoding_has_no_bytes_for_is_refused_before_it_is_shown(path: Path) -> None:
    path.write_bytes("# é\nx = 1\n".encode("cp1252"))
    wanted = Task(files.read(str(path), "cp1252"), "add an arrow")
    with pytest.raises(NotApplied, match="U\\+2192"):
        carry_out(wanted, Script([whole("# é →\nx = 1\n")]), lambda _: pytest.fail("shown"))


def test_only_the_lines_asked_for_are_given_and_changed(path: Path) -> None:
    script = Script([whole("def area(a):\n    return a**2\n")])
    carry_out(task(path, lines="8-9", context=(Source("other.py", "x"),)), script)
    assert path.read_text() == CODE.replace(
        "def square(a):\n    return a * a", "def area(a):\n    return a**2"
    )
    request = script.asked[0][0]
    assert (request.text, request.tail) == ("def square(a):\n    return a * a\n", "")
    assert request.lead == CODE[: CODE.index("def square")]
    assert "Lines 8-9 of" in messages(request)[0].content
    assert "other.py" in messages(request)[0].content


def test_a_part_is_judged_as_a_part(path: Path) -> None:
    many = "".join(f"v{i} = {i}\n" for i in range(400))
    path.write_text(many)
    gone = Script([whole("v100 = 100\n")])
    concerns = carry_out(task(path, "rename v100", lines="101-130"), gone, no).concerns
    assert [concern.kind for concern in concerns] == ["deletion"]
    invalid = Script([whole("v10 = (\n")])
    concerns = carry_out(task(path, "x", lines="11"), invalid, no).concerns
    assert [concern.kind for concern in concerns] == ["syntax"]


def test_concerns_are_about_the_text_they_are_asked_for(path: Path) -> None:
    broken = CODE.replace("math.pi * r", "math.pi * (r").replace("square", "area")
    found = flow.propose(task(path), Script([whole(broken)]), lambda _: None)
    assert [concern.kind for concern in found.concerns(found.after)] == ["syntax"]
    assert found.concerns(RENAMED) == ()
    assert [concern.kind for concern in found.concerns("")] == ["empty"]


def halves(what: Task) -> list[Region]:
    lines = what.text.splitlines(keepends=True)
    half = len(lines) // 2
    return [Region(1, half, "".join(lines[:half])), Region(half + 1, len(lines), "".join(lines[half:]))]


def test_parts_are_put_together_and_each_is_judged(path: Path) -> None:
    text = "".join(f"v{i} = {i}\n" for i in range(100))
    path.write_text(text)
    first, second = text[: text.index("v50")], text[text.index("v50") :]
    script = Script([whole(first.replace("v7 ", "w7 ")), whole(second.replace("v70", "w70"))], regions=halves)
    outcome = carry_out(task(path), script)
    assert path.read_text() == text.replace("v7 ", "w7 ").replace("v70", "w70")
    assert outcome.concerns == ()
    path.write_text(text)
    lazy = Script([whole("v0 = 0\n" + "".join(f"v{i} = {i}\n" for i in range(25, 50))), whole(second)])
    lazy.regions = halves
    assert [c.kind for c in carry_out(task(path), lazy, no).concerns] == ["deletion"]


def test_an_answer_that_was_given_is_said_once(path: Path) -> None:
    assert carry_out(task(path, ""), Given(BLOCK)).status == "written"
    path.write_text(CODE)
    assert carry_out(task(path, ""), Given(whole(RENAMED))).status == "written"
    path.write_text(CODE)
    with pytest.raises(NotApplied, match="no code block"):
        carry_out(task(path, ""), Given("Sorry."))
    with pytest.raises(NotApplied, match="given beforehand"):
        carry_out(task(path, ""), Given(whole(RENAMED)), lambda _: Retry(""))
    assert path.read_text() == CODE


def room(n_ctx: int, n_parameters: int = 10**9) -> Room:
    """Tokens are words and line ends; what a prompt adds is not far from the truth."""

    def count(text: str) -> int:
        return len(text.split()) + text.count("\n")

    return Room(n_ctx, n_parameters, count, lambda request: count(messages(request)[0].content) + 10)


def test_a_file_that_fits_is_asked_for_whole(path: Path) -> None:
    (part,), why = parts_of(task(path), room(4000))
    assert (part.region.text, part.format) == (CODE, "whole")
    assert "complete text" in why


def test_a_large_model_writes_blocks_for_a_long_file(path: Path) -> None:
    path.write_text("x = 1\n" * 3000)
    (part,), _ = parts_of(task(path), room(16_000, 10**10))
    assert part.format == "blocks"


def long_file(path: Path, functions: int) -> str:
    text = "".join(f"def f{i}(a, b):\n    c = a + b\n    return c * {i}\n\n\n" for i in range(functions))
    path.write_text(text)
    return text


def test_a_small_model_gets_parts_that_fit_with_their_answers(path: Path) -> None:
    text = long_file(path, 300)
    what, small = task(path), room(1500)
    parts, why = parts_of(what, small)
    assert "".join(part.region.text for part in parts) == text
    assert len(parts) > 3
    assert f"{len(parts)} parts" in why
    for part in parts:
        assert part.format == "whole"
        assert part.region.text.startswith("def ")
        assert small.prompt(request_for(what, part)) + 1.125 * small.count(part.region.text) <= 1500
        assert (
            f"Lines {part.region.first}-{part.region.last} of" in messages(request_for(what, part))[0].content
        )


def test_parts_are_smaller_where_their_prompts_are_longer(path: Path) -> None:
    long_file(path, 300)
    usual = room(1500)
    what, dear = (
        task(path),
        replace(usual, prompt=lambda request: usual.prompt(request) + 400 * bool(request.lead)),
    )
    parts, _ = parts_of(what, dear)
    assert len(parts) > len(parts_of(what, usual)[0])
    for part in parts:
        assert dear.prompt(request_for(what, part)) + 1.125 * dear.count(part.region.text) <= 1500


def test_long_lines_around_a_part_leave_it_room(path: Path) -> None:
    text = "".join(f"{i} " * 60 + "\n" for i in range(200))
    path.write_text(text)
    what, small = task(path), room(1500)
    parts, _ = parts_of(what, small)
    assert "".join(part.region.text for part in parts) == text
    middle = messages(request_for(what, parts[1]))[0].content
    assert f"Lines {parts[1].region.first}-{parts[1].region.last} of" in middle
    assert f"{parts[1].region.first - 2} " * 60 in middle


def test_what_cannot_be_cut_up_is_refused_with_its_tokens(path: Path) -> None:
    path.write_text("def f():\n" + "    x = 1\n" * 3000)
    with pytest.raises(UsageError, match=r"belong together and are 120\d\d tokens"):
        parts_of(task(path), room(1500))
    with pytest.raises(UsageError, match="12003 tokens"):
        parts_of(task(path), room(300))
    for more in ({"lines": "1-2000"}, {"format": "blocks"}):
        with pytest.raises(UsageError, match="do not fit"):
            parts_of(task(path, **more), room(1500))


@given(
    st.lists(st.text(st.sampled_from("ab (\t\r"), max_size=30), max_size=20),
    st.sampled_from([1, 10, 40]),
    st.integers(250, 1500),
    st.sampled_from(["\n", "\r\n"]),
)
@settings(max_examples=150, deadline=None)
def test_answers_that_change_nothing_change_nothing(
    lines: list[str], times: int, n_ctx: int, end: str
) -> None:
    raw = end.join(lines * times).encode()
    file = files.TextFile("a.txt", Path("/a.txt"), raw, "", 0, 1, raw.decode(), "utf-8", b"")
    what = Task(file, "do nothing")
    try:
        parts, _ = parts_of(what, room(n_ctx))
    except UsageError:
        return
    script = Script([whole(part.region.text.removesuffix("\n") + "\n") for part in parts])
    script.regions = lambda _: [part.region for part in parts]
    assert "".join(part.region.text for part in parts) == what.text
    try:
        found = flow.propose(what, script, lambda _: None)
    except NotApplied:  # a text of blank lines only is no answer
        return
    assert found.after == file.text
