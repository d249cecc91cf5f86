"""What a benchmark asks: the built-in prompts by family, and files of a user's own.

A file is JSON Lines, an object a line, and not to be trusted: its size, types and texts are checked here.
Knows no models and no templates: a prompt is text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.errors import UsageError, reason

FAMILIES = ("chat", "code", "reasoning", "summary", "rewrite", "mixed")

BYTES_LINE = 1 << 20
BYTES_FILE = 1 << 26
PROMPTS_FILE = 10_000
_CHARACTERS_LABEL = 64

_DATA = Path(__file__).parent / "data"
_HINT_PROMPTS = 'each line is an object like {"prompt": "..."} or {"turns": ["...", "..."]}'
_HINT_FORCED = 'each line is an object like {"prompt": "...", "output": "..."}'


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one session asks: `turns` in order, each answered before the next.

    `id` is unique within its family. `output`: the answer to take instead of the model's own, or None.
    """

    id: str
    family: str
    turns: tuple[str, ...]
    output: str | None = None


class _BadLine(Exception):
    """What is wrong with a line; where is added by the one who reads the file."""


def built_in(family: str | None = None) -> list[Prompt]:
    """The prompts that come with the program: of one family, or of all in the order of FAMILIES.

    Raises UsageError when there is no such family.
    """
    if family is not None and family not in FAMILIES:
        raise UsageError(f"no prompts of family {family!r}", f"take one of {', '.join(FAMILIES)}")
    chosen = FAMILIES if family is None else (family,)
    return [prompt for name in chosen for prompt in read_prompts(_DATA / f"{name}.jsonl")]


def read_prompts(path: str | Path) -> list[Prompt]:
    """Prompts of a file of objects with `prompt` or `turns`, and perhaps `id` and `family`.

    Other keys are ignored, empty lines too. Family "prompts" and an id of family and line number where there
    are none. Raises UsageError with file and line number.
    """
    return _read(Path(path), _prompt, _HINT_PROMPTS)


def read_forced(path: str | Path) -> list[Prompt]:
    """Prompts with the answer to take: objects with `prompt` and `output`, and perhaps `id` and `family`.

    As `read_prompts`; the family is "forced" where there is none.
    """
    return _read(Path(path), _forced, _HINT_FORCED)


def _prompt(item: dict[str, Any], number: int) -> Prompt:
    if ("prompt" in item) == ("turns" in item):
        raise _BadLine('needs either "prompt" or "turns"')
    if "prompt" in item:
        turns: tuple[str, ...] = (_text(item["prompt"], '"prompt"'),)
    else:
        if not isinstance(item["turns"], list) or not item["turns"]:
            raise _BadLine('"turns" must be a list with at least one text')
        turns = tuple(_text(turn, f"turn {i}") for i, turn in enumerate(item["turns"], 1))
    family = _label(item.get("family", "prompts"), '"family"')
    return Prompt(_id(item, f"{family}-{number}"), family, turns)


def _forced(item: dict[str, Any], number: int) -> Prompt:
    for key in ("prompt", "output"):
        if key not in item:
            raise _BadLine(f'has no "{key}"')
    family = _label(item.get("family", "forced"), '"family"')
    name = _id(item, f"{family}-{number}")
    turns = (_text(item["prompt"], '"prompt"'),)
    return Prompt(name, family, turns, _text(item["output"], '"output"'))


def _read(path: Path, parse: Callable[[dict[str, Any], int], Prompt], hint: str) -> list[Prompt]:
    prompts: list[Prompt] = []
    lines: dict[tuple[str, str], int] = {}
    number = 0
    try:
        for number, raw in _lines(path):
            prompt = parse(_object(raw), number)
            first = lines.setdefault((prompt.family, prompt.id), number)
            if first != number:
                raise _BadLine(f"has the id {prompt.id!r} of line {first}")
            prompts.append(prompt)
            if len(prompts) > PROMPTS_FILE:
                raise _BadLine(f"is prompt {len(prompts)}, at most {PROMPTS_FILE} are read")
    except _BadLine as error:
        raise UsageError(f"{path}, line {number}: {error}", hint) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise UsageError(f"cannot read {path}: {reason(error)}", "give a file of JSON lines") from error
    if not prompts:
        raise UsageError(f"{path}, line 1: no prompt in the whole file", hint)
    return prompts


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Line numbers from 1 and lines that are not empty; a line too long comes cut, with a byte too many."""
    room = BYTES_FILE
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(BYTES_LINE + 2):  # with its newline, and one byte more
            number += 1
            room -= len(raw)
            if room < 0:
                raise ValueError(f"more than {BYTES_FILE >> 20} MiB")
            if raw.strip():
                yield number, raw.removesuffix(b"\n")


def _object(raw: bytes) -> dict[str, Any]:
    if len(raw) > BYTES_LINE:
        raise _BadLine(f"longer than {BYTES_LINE >> 20} MiB")
    try:
        item = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _BadLine(f"not UTF-8 at byte {error.start + 1}") from error
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        detail = error.msg if isinstance(error, json.JSONDecodeError) else "too deep or a number too long"
        raise _BadLine(f"not JSON ({detail})") from error
    if not isinstance(item, dict):
        raise _BadLine("not an object")
    return item


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise _BadLine(f"{what} must be a text")
    if not value.strip():
        raise _BadLine(f"{what} is empty")
    if "\0" in value:
        raise _BadLine(f"{what} contains a NUL character")
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise _BadLine(f"{what} contains half a surrogate pair")
    return value


def _id(item: dict[str, Any], default: str) -> str:
    """The prompt's own id, a text or a whole number, or `default`."""
    found = item.get("id", default)
    return _label(str(found) if isinstance(found, int) and not isinstance(found, bool) else found, '"id"')


def _label(value: object, what: str) -> str:
    """A name for tables and terminals: short, printable, and not that of the row that pools all."""
    label = _text(value, what)
    if len(label) > _CHARACTERS_LABEL or not label.isprintable():
        raise _BadLine(f"{what} must be at most {_CHARACTERS_LABEL} printable characters")
    if label == "all":
        raise _BadLine(f'{what} must not be "all", which stands for all families together')
    return label


def parse_temps(text: str) -> tuple[float, ...]:
    """Different temperatures out of a comma-separated list. Raises UsageError."""
    try:
        found = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        found = ()
    if not found or not all(0 <= temperature <= 100 for temperature in found):
        raise UsageError(f"--temps {text!r}", "give numbers from 0 to 100, as in 0,0.8")
    return found
