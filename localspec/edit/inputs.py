"""What `localspec edit` is told and reads, all of it before a model is loaded: what can be refused, is.

The only place of `edit` that reads stdin. Knows neither models nor what becomes of a file.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from localspec.config import is_text
from localspec.edit.files import LIMIT_BYTES, RawFile, TextFile, read
from localspec.edit.output import existing
from localspec.edit.parts import Task
from localspec.edit.request import Format, Source
from localspec.errors import UsageError, reason
from localspec.ui.keys import Keys
from localspec.ui.terminal import Terminal, read_stdin

STDIN = "-"
MOST_TOKENS = 200_000
"""About so many tokens of a file are rewritten at most: with more a model is busy for hours."""
_BYTES_PER_TOKEN = 3


@dataclass(frozen=True, slots=True)
class Options:
    """The flags of `localspec edit`. `files`: paths, or only "-" for stdin to stdout.

    `instruction`: None, asked for. `lines`: as in "40-90". `context`: files to be read only. `out`: where the
    result goes instead. `reply`: a file, or "-", with the answer a model gave.
    """

    files: tuple[str, ...]
    instruction: str | None = None
    lines: str | None = None
    context: tuple[str, ...] = ()
    diff: bool = False
    yes: bool = False
    force: bool = False
    format: str = "auto"
    out: str | None = None
    reply: str | None = None
    encoding: str | None = None
    as_json: bool = False

    @property
    def filters(self) -> bool:
        return self.files == (STDIN,)

    @property
    def form(self) -> Format | None:
        found: dict[str, Format] = {name: name for name in get_args(Format)}
        return found.get(self.format)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What was read for a run. `sent`: the text from stdin that is to be changed. `out`: what stands where
    the result goes. `reply`: the answer that was given, None: a model is to be asked. `tokens`: about so many
    are to be read for the longest of the files.
    """

    instruction: str
    context: tuple[Source, ...] = ()
    sent: TextFile | None = None
    out: RawFile | None = None
    reply: str | None = None
    tokens: int = 0

    def task(self, options: Options, name: str) -> Task:
        """The task for one file, which is read anew."""
        file = self.sent or read(name, options.encoding)
        return Task(file, self.instruction, options.lines, self.context, options.form)


def gather(options: Options, terminal: Terminal, keys: Keys | None) -> Inputs:
    """Read all that is to be read. `keys`: to ask for an instruction. Raises UsageError."""
    _check(options)
    sent = _from_stdin(options.encoding) if options.filters else None
    found = Inputs("", sent=sent)
    tokens = max(_tokens(found.task(options, name), options) for name in options.files)
    out = existing(options.out, may_replace=options.yes) if options.out else None
    context = tuple(_source(name) for name in options.context)
    reply = _reply(options.reply) if options.reply is not None else None
    instruction = _instruction(options, terminal, keys)
    tokens += sum(_estimate(source.text) for source in context)
    return Inputs(instruction, context, sent, out, reply, tokens)


def _check(options: Options) -> None:
    """Raises UsageError for flags that contradict each other."""
    if options.format not in ("auto", *get_args(Format)):
        raise UsageError(f"--format is {options.format!r}", "give whole, blocks or auto")
    if not options.files:
        raise UsageError("no file is named", 'for example: localspec edit notes.py -i "add type hints"')
    reads_stdin = [*options.files, *options.context, options.reply or ""].count(STDIN)
    if reads_stdin > 1:
        raise UsageError("stdin can be read only once", "name files for the others")
    if STDIN in options.files and not options.filters:
        raise UsageError("- stands for stdin and goes alone", "edit the files in a call of their own")
    if options.filters and (options.out or options.as_json):
        raise UsageError("- writes its result to stdout", "leave out --out and --json, or name the file")
    if len(options.files) > 1 and (options.lines or options.out or options.reply):
        raise UsageError("--lines, --out and --reply are for one file", "edit the files one by one")
    if options.out and options.diff:
        raise UsageError("--diff writes nothing", "leave out --out, or send the patch there: --diff > FILE")


def _source(name: str) -> Source:
    if name == STDIN:
        return Source("stdin", read_stdin() or "")
    try:
        return Source(name, read(name).text)
    except UsageError as error:
        raise UsageError(error.message, "--file takes text files") from error


def _from_stdin(encoding: str | None) -> TextFile:
    """What came on stdin, under the rules for files."""
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("nothing comes on stdin", 'send a text: localspec edit - -i "..." < FILE')
    with tempfile.TemporaryDirectory(prefix="localspec-") as folder:
        path = Path(folder, "stdin")
        path.write_bytes(sys.stdin.buffer.read(LIMIT_BYTES + 1))
        try:
            return replace(read(str(path), encoding), name="stdin")
        except UsageError as error:
            raise UsageError(error.message.replace(str(path), "stdin"), error.hint) from error


def _tokens(task: Task, options: Options) -> int:
    """About how many tokens are to be changed. Raises UsageError if that would take a model hours."""
    tokens = _estimate(task.region.text)
    if tokens > MOST_TOKENS and options.reply is None:
        raise UsageError(
            f"{task.file.name} has about {tokens:,} tokens, at most {MOST_TOKENS:,} are rewritten",
            "change a part of it: --lines 1-400",
        )
    return tokens


def _estimate(text: str) -> int:
    return max(len(text.encode(errors="replace")) // _BYTES_PER_TOKEN, 2 * text.count("\n"))


def _instruction(options: Options, terminal: Terminal, keys: Keys | None) -> str:
    """From the flag, a pipe or the keyboard. With an answer given it only tells what to expect of it."""
    given = options.instruction
    if given is None and options.reply is not None:
        return ""
    if given is None and STDIN not in (*options.files, *options.context):
        given = read_stdin()
    if given is None and keys and not options.as_json:
        terminal.say("What should be changed? ")
        given = keys.line()
    if given is None or not given.strip():
        raise UsageError("there is no instruction", 'say what to change: -i "rename f to area"')
    if not is_text(given):
        raise UsageError("the instruction has NUL bytes or is not UTF-8", "only text can be asked for")
    return given.strip()


def _reply(name: str) -> str:
    if name == STDIN and sys.stdin is None:
        raise UsageError("nothing comes on stdin", "send the answer: --reply - < ANSWER")
    try:
        with nullcontext(sys.stdin.buffer) if name == STDIN else open(name, "rb") as stream:
            raw = stream.read(LIMIT_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"cannot read the answer in {name}: {why}", "give a text file, or -") from error
    if len(raw) > LIMIT_BYTES:
        raise UsageError(
            f"the answer in {name} is longer than any file that is edited", "give the answer only"
        )
    return text
