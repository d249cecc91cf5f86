"""The catalogue: models by name, from models.toml and the user's own file of the same format.

Strict: whatever an entry has that is not understood is an error that names the file and the line, because
the names in it become addresses and paths. The user's entries are added to the shipped ones and replace
those of the same name as a whole. Knows no network and does not look whether a file is there.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import localspec
from localspec import config
from localspec.errors import ModelNotFound, UsageError
from localspec.models import names
from localspec.models.names import CatalogRef

GIB = 2**30
TAGS = ("chat", "code", "edit", "tools", "reasoning", "draft", "test")
HEADS = ("mtp", "eagle3", "dflash", "dspark")
MEMORY_CLASSES = (2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@dataclass(frozen=True, slots=True)
class CatalogFile:
    """One quantisation. `file`: its path in the repository, of a set the first shard. `gib`: rounded."""

    quant: str
    file: str
    gib: float | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """A file that guesses for the entry's model and is no model itself."""

    kind: str
    repo: str
    file: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One model. None or "": not known. `parameters`, `active`: 10^9; `context`: trained tokens.

    `memory_gib` holds the first file, an F16 cache of 8,192 tokens and 1 GiB for computing. `draft` is a
    name of the catalogue. `suggest` ranks what is offered when no model is named, 0 is never.
    """

    name: str
    repo: str
    files: tuple[CatalogFile, ...]
    licence: str = ""
    gated: bool = False
    parameters: float | None = None
    active: float | None = None
    context: int | None = None
    memory_gib: float | None = None
    good_for: tuple[str, ...] = ()
    suggest: int = 0
    draft: str | None = None
    heads: tuple[Head, ...] = ()

    @property
    def memory_class(self) -> int | None:
        """The smallest usual memory size, in GiB, of which the model needs at most 94 %."""
        if self.memory_gib is None:
            return None
        return next((size for size in MEMORY_CLASSES if self.memory_gib <= 0.94 * size), None)

    def wanted(self, quant: str | None) -> str:
        """What to look for in the repository: the file of `quant` if listed here, else `quant` itself."""
        if quant is None:
            return self.files[0].file
        return next((f.file for f in self.files if quant.lower() == f.quant), quant)


def load() -> dict[str, Entry]:
    """The shipped catalogue with the user's own on top. Raises UsageError with file and line."""
    shipped = read(shipped_file())
    own = config.catalog_file()
    return {**shipped, **read(own, known=shipped)} if own.exists() else shipped


def shipped_file() -> Path:
    """models.toml: inside the installed package, or at the top of a checkout."""
    package = Path(localspec.__file__).parent
    installed = package / "models.toml"
    return installed if installed.exists() else package.parent / "models.toml"


def find(catalog: Mapping[str, Entry], ref: CatalogRef) -> Entry:
    """The entry `ref` names; raises ModelNotFound with the nearest names."""
    if ref.name in catalog:
        return catalog[ref.name]
    near = difflib.get_close_matches(ref.name, catalog, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}" if near else "`localspec models list` shows the names"
    raise ModelNotFound(
        f"no model {ref.name!r} in the catalogue", f"{hint}; a file needs its path: ./FILE.gguf"
    )


def best_entry(catalog: Mapping[str, Entry], budget_bytes: int, max_active: float = math.inf) -> Entry | None:
    """The highest ranked entry that fits into `budget_bytes`, or None.

    `max_active`: at most this many 10^9 parameters at work for a token; without a GPU a large dense model
    fits and is useless.
    """
    fits = [
        entry
        for entry in catalog.values()
        if entry.suggest > 0
        and entry.memory_gib is not None
        and entry.memory_gib * GIB <= budget_bytes
        and (entry.active or entry.parameters or 0) <= max_active
    ]
    return max(fits, key=lambda entry: entry.suggest, default=None)


def read(path: Path, known: Collection[str] = ()) -> dict[str, Entry]:
    """The entries of one file by name. `known`: names of other files that `draft` may refer to."""
    try:
        text = path.read_text(encoding="utf-8")
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"cannot read {path}: {error}", "mend the file or move it away") from error
    source = _Source(path, text, raw)
    values = source.table(raw, {"model": _Field(_is_tables)}, ())
    entries: dict[str, Entry] = {}
    for i, table in enumerate(values.get("model", [])):
        entry = _entry(source, table, ("model", i))
        if entry.name in entries:
            source.fail(("model", i, "name"), f"{entry.name!r} stands here a second time")
        entries[entry.name] = entry
    for i, entry in enumerate(entries.values()):
        if entry.draft is not None and (entry.draft == entry.name or entry.draft not in {*entries, *known}):
            source.fail(("model", i, "draft"), f"{entry.draft!r} is no other model of the catalogue")
    return entries


def _entry(source: _Source, table: dict[str, Any], at: _At) -> Entry:
    values = source.table(table, _MODEL, at)
    for key, fields, kind in (("files", _FILE, CatalogFile), ("heads", _HEAD, Head)):
        rows = []
        for i, row in enumerate(values.get(key, [])):
            rows.append(source.table(row, fields, (*at, key, i)))
            for unique in {"quant", "file"} & row.keys():
                if any(row[unique] == earlier[unique] for earlier in rows[:-1]):
                    source.fail((*at, key, i, unique), f"{row[unique]!r} stands here a second time")
        values[key] = tuple(kind(**row) for row in rows)
    return Entry(**{**values, "good_for": tuple(values.get("good_for", ()))})


_At = tuple[str | int, ...]
"""Where a value stands: ("model", 3, "files", 0, "gib")."""


@dataclass(frozen=True, slots=True)
class _Field:
    """A key of a table. `problem`: what is wrong with a value, "" if nothing."""

    problem: Callable[[Any], str]
    required: bool = False


@dataclass(frozen=True, slots=True)
class _Source:
    """A file as text and as parsed, for the error that every check below raises."""

    path: Path
    text: str
    raw: dict[str, Any]

    def table(self, raw: dict[str, Any], fields: Mapping[str, _Field], at: _At) -> dict[str, Any]:
        """A copy of `raw` in which every key is one of `fields` and every value passes its check."""
        for key, value in raw.items():
            if key not in fields:
                self.fail((*at, key), f"unknown key {key!r}", f"known keys: {', '.join(fields)}")
            if problem := fields[key].problem(value):
                self.fail((*at, key), f"{key} = {value!r:.80} {problem}")
        for key, field in fields.items():
            if field.required and key not in raw:
                self.fail(at, f"there is no {key!r}")
        return dict(raw)

    def fail(self, at: _At, what: str, hint: str = "mend the file or move it away") -> NoReturn:
        lines = _line_numbers(self.text, self.raw)
        line = next((lines[at[:n]] for n in range(len(at), 0, -1) if at[:n] in lines), 1)
        raise UsageError(f"{self.path}, line {line}: {what}", hint)


def _line_numbers(text: str, raw: dict[str, Any]) -> dict[_At, int]:
    """The line of every key, and of every table's first key. tomllib tells none.

    Keys stand in the text in the order of the parsed tables, so each is looked for after the one before.
    One that is not found (out of order, or with escapes in it) is left to the table around it.
    """
    lines: dict[_At, int] = {}
    cursor = 0

    def visit(value: Any, at: _At) -> None:
        nonlocal cursor
        if isinstance(value, list):
            for i, item in enumerate(value):
                visit(item, (*at, i))
        if isinstance(value, dict):
            for key, item in value.items():
                written = rf"(?:^|[\[{{,.])[ \t]*[\"']?({re.escape(key)})[\"']?\s*[=.\]]"
                found = re.compile(written, re.MULTILINE).search(text, cursor)
                if found:
                    cursor = found.end()
                    lines[(*at, key)] = text.count("\n", 0, found.start(1)) + 1
                    lines.setdefault(at, lines[(*at, key)])
                visit(item, (*at, key))

    visit(raw, ())
    return lines


def _text(allowed: Callable[[str], bool], words: str) -> Callable[[Any], str]:
    return lambda value: "" if isinstance(value, str) and allowed(value) else f"is not {words}"


def _size(value: Any) -> str:
    right = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
    return "" if right else "is not a number, 0 or more"


def _count(value: Any) -> str:
    right = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return "" if right else "is not a whole number, 0 or more"


def _path(value: Any) -> str:
    if not isinstance(value, str) or not value.lower().endswith(".gguf"):
        return "is not the name of a .gguf file"
    return names.unsafe(value)


def _is_tables(value: Any) -> str:
    right = isinstance(value, list) and value and all(isinstance(item, dict) for item in value)
    return "" if right else "is not a list of tables"


def _is_tags(value: Any) -> str:
    right = isinstance(value, list) and all(tag in TAGS for tag in value)
    return "" if right else f"is not a list of {', '.join(TAGS)}"


_REPO = _text(names.is_repo, "org/repo")
_NAME = _text(names.is_catalog_name, "a name of lower-case letters, digits, dots and dashes")
_MODEL = {
    "name": _Field(_NAME, required=True),
    "repo": _Field(_REPO, required=True),
    "licence": _Field(_text(str.isprintable, "a text on one line")),
    "gated": _Field(lambda value: "" if isinstance(value, bool) else "is not true or false"),
    "parameters": _Field(_size),
    "active": _Field(_size),
    "context": _Field(_count),
    "memory_gib": _Field(_size),
    "good_for": _Field(_is_tags),
    "suggest": _Field(_count),
    "draft": _Field(_NAME),
    "files": _Field(_is_tables, required=True),
    "heads": _Field(_is_tables),
}
_FILE = {
    "quant": _Field(
        _text(lambda text: names.is_quant(text) and text == text.lower(), "a quantisation in lower case"),
        required=True,
    ),
    "file": _Field(_path, required=True),
    "gib": _Field(_size),
}
_HEAD = {
    "kind": _Field(_text(HEADS.__contains__, f"one of {', '.join(HEADS)}"), required=True),
    "repo": _Field(_REPO, required=True),
    "file": _Field(_path, required=True),
}
