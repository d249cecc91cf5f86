"""`localspec edit`, `undo` and `edits`: from flags to exit codes.

A file that fails does not keep others from being edited; Ctrl-C does. Imports llama_cpp only where a model is
to answer.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from localspec.config import Settings
from localspec.edit import files, flow
from localspec.edit import undo as store
from localspec.edit.confirm import Accepted, AtTerminal, Change, Decision, Declined, Retry, confirm
from localspec.edit.files import TextFile
from localspec.edit.given import Given
from localspec.edit.guards import Concern, examine
from localspec.edit.inputs import Inputs, Options, gather
from localspec.edit.output import existing, patch, show_patch, write_bytes, write_to
from localspec.edit.reply import Notes, parse_whole
from localspec.edit.request import one_line
from localspec.errors import ExitStatus, LocalspecError, NotApplied, UsageError
from localspec.ui.keys import Keys, keyboard
from localspec.ui.terminal import Terminal


@dataclass(slots=True)
class _Run:
    """One call of the command: what its files have in common, and what became of each. `keys`: None, nobody
    can be asked."""

    options: Options
    inputs: Inputs
    terminal: Terminal
    keys: Keys | None
    results: list[dict[str, Any]] = field(default_factory=list)
    status: ExitStatus = ExitStatus.OK


def edit(options: Options, settings: Settings, terminal: Terminal) -> ExitStatus:
    """Change the files of `options` as they ask; the exit code is that of the first file which failed.

    Raises LocalspecError if nothing was begun, KeyboardInterrupt when stopped: that file is as it was.
    """
    with keyboard(sys.stdin) as keys, ExitStack() as stack:
        seen = keys if terminal.err_tty and not options.as_json else None
        run = _Run(options, gather(options, terminal, seen), terminal, seen)
        author = stack.enter_context(_author(run.inputs, settings, terminal))
        stack.callback(_report, run)
        for name in options.files:
            _one(run, name, author)
    return run.status


@contextmanager
def _author(inputs: Inputs, settings: Settings, terminal: Terminal) -> Iterator[flow.Author]:
    """Who answers. A model is loaded only here."""
    if inputs.reply is not None:
        yield Given(inputs.reply)
        return
    from localspec.edit.generate import opened

    terminal.progress("loading ...")
    with opened(settings, terminal, inputs.tokens) as author:
        yield author


def _one(run: _Run, name: str, author: flow.Author) -> None:
    """One file; what goes wrong with it is said, and the next one follows."""
    result: dict[str, Any] = {"file": name, "status": "failed"}
    run.results.append(result)
    try:
        task = run.inputs.task(
            run.options, name
        )  # anew: an edit of the file before may have been of this one
        _say_dirty(run, task.file)
        outcome = flow.run(task, author, _decide(run), _write(run), run.terminal.note)
        result |= _as_dict(outcome, author) if run.options.as_json else {}
        _conclude(run, outcome, result)
    except LocalspecError as error:
        run.terminal.complain(error.message, error.hint)
        result["error"] = error.message
        run.status = run.status or error.exit_status
    except KeyboardInterrupt:
        result["status"] = "stopped"
        run.terminal.note(f"stopped: {name} is as it was")
        raise


def _say_dirty(run: _Run, file: TextFile) -> None:
    writes = not (run.options.diff or run.options.filters or run.options.out)
    if writes and store.dirty(file.name):
        run.terminal.note(f"{file.name} has changes that git does not have yet")


def _decide(run: _Run) -> Callable[[flow.Proposal], Decision]:
    """Who confirms: a person, the flags, or nobody."""
    options, keys = run.options, run.keys
    if options.diff or not (options.yes or options.filters or keys):
        return lambda _: Declined()
    if options.yes or options.filters:
        return lambda found: (
            Declined() if found.concerns(found.after) and not options.force else Accepted(found.after)
        )

    def ask(found: flow.Proposal) -> Decision:
        assert keys is not None
        name = found.task.file.name
        change = Change(found.before, found.after, lambda text: _words(found.concerns(text)), one_line(name))
        return confirm(change, AtTerminal(run.terminal, keys, name))

    return ask


def _words(concerns: Iterable[Concern]) -> list[str]:
    return [one.words for one in concerns]


def _write(run: _Run) -> flow.Write:
    options, terminal = run.options, run.terminal

    def to_stdout(file: TextFile, raw: bytes) -> None:
        write_bytes(terminal, raw, file.encoding)

    if options.filters:
        return to_stdout
    if options.out:
        out = options.out
        return lambda file, raw: write_to(out, run.inputs.out, file, raw)
    return store.write


def _as_dict(outcome: flow.Outcome, author: flow.Author) -> dict[str, Any]:
    return {
        "status": outcome.status,
        "added": outcome.lines_added,
        "removed": outcome.lines_removed,
        "concerns": [{"kind": one.kind, "words": one.words} for one in outcome.concerns],
        "diff": patch(outcome.file, outcome.after),
        "undo": outcome.undo or None,
        "stats": author.stats(),
    }


def _conclude(run: _Run, outcome: flow.Outcome, result: dict[str, Any]) -> None:
    """Say what became of a file. Raises NotApplied where it should have been written and was not."""
    options, terminal, name = run.options, run.terminal, outcome.file.name
    if outcome.status == "written":
        if not options.filters:
            terminal.note(_written(run, outcome))
    elif outcome.status == "unchanged":
        terminal.note(f"{name}: nothing to change")
        there = run.inputs.out
        if options.filters or (options.out and (there is None or there.raw != outcome.file.raw)):
            _write(run)(outcome.file, outcome.file.raw)
    elif options.diff:
        result["status"] = "shown"
        _show(run, outcome)
    elif options.yes or options.filters:
        result["status"] = "refused"
        raise NotApplied(f"{name} is as it was: {outcome.concerns[0].words}", _look(options))
    elif run.keys:
        terminal.note(f"{name} is as it was")
        run.status = run.status or ExitStatus.NOT_APPLIED
    else:
        _show(run, outcome)
        raise NotApplied(f"{name} is as it was: nobody is there to confirm the change", "-y applies it")


def _look(options: Options) -> str:
    return (
        "look at it with --diff, or give --force"
        if options.filters
        else "look at it without -y, or add --force"
    )


def _show(run: _Run, outcome: flow.Outcome) -> None:
    for concern in outcome.concerns:
        run.terminal.note(f"{outcome.file.name}: {concern.words}")
    if not run.options.as_json:
        show_patch(run.terminal, outcome.file, outcome.after)


def _written(run: _Run, outcome: flow.Outcome) -> str:
    name, out = outcome.file.name, run.options.out
    counts = f"+{outcome.lines_added} -{outcome.lines_removed} lines"
    if out and not outcome.undo:
        return f"{name}: {counts}, written to {out}"
    written = out or name
    argument = ("-- " if written.startswith("-") else "") + shlex.quote(written)
    argument = (
        argument if argument.isprintable() else ""
    )  # it could not be typed: the last edit is the default
    return f"{written}: {counts}, undo with: localspec undo {argument}".rstrip()


def _report(run: _Run) -> None:
    """The JSON object, also when Ctrl-C ended it."""
    if run.options.as_json and run.results:
        run.terminal.write(json.dumps({"files": run.results}) + "\n")
        run.terminal.out.flush()


def take(name: str, reply: str, terminal: Terminal, keys: Keys) -> None:
    """The code in `reply` into the file `name`, which may be new: shown, confirmed, written.

    Raises LocalspecError when it cannot be used or was not confirmed.
    """
    if os.path.lexists(name):
        _one(_Run(Options((name,), ""), Inputs("", reply=reply), terminal, keys), name, Given(reply))
        return
    existing(name, may_replace=False)  # or it cannot be made
    found = parse_whole(reply, "")
    decision = confirm(
        Change("", found.text, lambda text: _words(_looks(name, text, found.notes)), one_line(name)),
        AtTerminal(terminal, keys, name),
    )
    if isinstance(decision, Retry):
        raise UsageError("the answer was given, there is no other", "/retry asks for another")
    if not isinstance(decision, Accepted):
        terminal.note(f"{one_line(name)} was not made")
        return
    write_to(name, None, files.nothing(name), decision.text.encode())
    terminal.note(f"{one_line(name)}: {len(decision.text.splitlines())} lines, a new file")


def _looks(name: str, text: str, notes: Notes) -> tuple[Concern, ...]:
    return examine("", text, name=name, reply_notes=notes, finish_reason="stop", instruction="")


def undo(name: str | None, terminal: Terminal) -> ExitStatus:
    """Take back the last edit of the file `name`, None: of any. Raises what `undo.undo` raises."""
    entry = store.undo(name)
    terminal.note(f"{entry.path} is as it was before the edit of {_when(entry)}: {entry.bytes_before} bytes")
    return ExitStatus.OK


def edits(terminal: Terminal, as_json: bool = False) -> ExitStatus:
    """Print the edits that can be taken back, the last one first."""
    found = store.entries()[::-1]
    if as_json:
        told = [
            {"id": entry.id, "file": entry.path, "time": entry.time}
            | {"bytes_before": entry.bytes_before, "bytes_after": entry.bytes_after}
            for entry in found
        ]
        terminal.write(json.dumps(told, indent=2) + "\n")
        return ExitStatus.OK
    if not found:
        terminal.note("there are no edits that could be taken back")
    for entry in found:
        sizes = f"{entry.bytes_before} -> {entry.bytes_after} bytes"
        terminal.write(f"{_when(entry)}  {sizes:>26}  {one_line(entry.path)}\n")
    return ExitStatus.OK


def _when(entry: store.Entry) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.time))
