"""What a user may call a model, and which files of a repository that means. Pure: no disk, no network.

Three ways to name one: `qwen3-8b[:QUANT]` from the catalogue, `org/repo[:QUANT]` on the Hub, a path. Every
name that reaches the network or becomes a path of ours has passed `parse_name` or `unsafe` first.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import ModelNotFound, UsageError

USUAL_QUANTS = ("q4_k_m", "q4_0", "q8_0")
"""Tried in this order where a repository has several files and the user named none."""

_CATALOG_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
_REPO = re.compile(r"(?=.{1,96}$)\w([\w.-]*\w)?/\w([\w.-]*\w)?", re.ASCII)
_QUANT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_URL = re.compile(r"(?i)[a-z][a-z0-9+.-]*://|(file|https?|data):")
_PATH_START = re.compile(r"[/~]|\.{1,2}([/\\]|$)|[A-Za-z]:[/\\]")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
_SIDECAR = re.compile(
    r"(?i)(^|/)(mmproj|imatrix|mtp-|eagle3-|dflash-|dspark-)[^/]*$|mmproj\.gguf$|imatrix\.gguf$|(^|/)(mtp|drafts?)/"
)
_TYPE = r"I?Q\d|TQ\d|B?F16|F32|MXFP|NVFP"  # how a quantisation begins; only these may follow an underscore


@dataclass(frozen=True, slots=True)
class CatalogRef:
    """A name of the catalogue, in lower case. `quant`: a quantisation or a file of its repository."""

    name: str
    quant: str | None = None

    def __str__(self) -> str:
        return f"{self.name}:{self.quant}" if self.quant else self.name


@dataclass(frozen=True, slots=True)
class HubRef:
    """A repository on the Hub. `quant`: a quantisation or the path of a file in it."""

    repo: str
    quant: str | None = None

    def __str__(self) -> str:
        return f"{self.repo}:{self.quant}" if self.quant else self.repo


@dataclass(frozen=True, slots=True)
class PathRef:
    """A file of the user's own, as written: `~` is not yet expanded."""

    path: Path


def parse_name(text: str) -> CatalogRef | HubRef | PathRef:
    """Which of the three `text` is; raises UsageError for anything else.

    A path starts with `/`, `./`, `../`, `~` or a drive letter, or ends in .gguf. It is never sent anywhere.
    """
    if not text.strip() or any(unicodedata.category(c) == "Cc" for c in text):
        raise UsageError(f"the model name {text!r} is empty or has control characters", _WAYS)
    if _URL.match(text):
        raise UsageError(f"{text!r} is an address, not a model", _WAYS)
    name, colon, quant = text.partition(":")
    named = is_repo(name) or is_catalog_name(name.lower())
    if _PATH_START.match(text) or (text.lower().endswith(".gguf") and not (colon and named)):
        return PathRef(Path(text))
    if colon and not (_QUANT.fullmatch(quant) or (quant.lower().endswith(".gguf") and not unsafe(quant))):
        raise UsageError(f"{quant!r} in {text!r} is neither a quantisation nor a file name", _WAYS)
    if is_repo(name):
        return HubRef(name, quant or None)
    if is_catalog_name(name.lower()):
        return CatalogRef(name.lower(), quant or None)
    raise UsageError(f"{text!r} is not a model name", _WAYS)


_WAYS = "give a catalogue name (qwen3-8b), org/repo[:QUANT] on Hugging Face, or the path of a GGUF"


def is_catalog_name(text: str) -> bool:
    return bool(_CATALOG_NAME.fullmatch(text))


def is_repo(text: str) -> bool:
    """Whether the Hub would allow `text` as the id of a repository with its owner."""
    return bool(_REPO.fullmatch(text)) and not re.search(r"--|\.\.|\.git$", text)


def is_quant(text: str) -> bool:
    return bool(_QUANT.fullmatch(text))


def unsafe(path: str) -> str:
    """Why `path` may not name a file inside a repository, or "" if it may."""
    bad = next((c for c in path if c in '\\:*?"<>|' or unicodedata.category(c).startswith("C")), None)
    if bad is not None:
        return f"has the character {bad!r}"
    for part in path.split("/"):
        if not part or part.startswith("~") or part.endswith(".") or part != part.strip():  # so no . or ..
            return "must be a plain relative path, such as folder/file.gguf"
    return ""


def shard_names(name: str) -> tuple[str, ...]:
    """Every file of the set `name` belongs to, in order: ("a-00001-of-00002.gguf", ...), or (name,)."""
    shard = _SHARD.search(name)
    if shard is None or int(shard[2]) == 0:
        return (name,)
    count = int(shard[2])
    return tuple(f"{name[: shard.start()]}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1))


def pick(names: Iterable[str], wanted: str | None, where: str) -> tuple[str, ...]:
    """The files of the one model in `names` that `wanted` means: its shards in order, or a single file.

    `wanted`: a file's exact path, or a quantisation, or None for the only model or one of USUAL_QUANTS.
    Files that are no model of their own (projectors, heads) are found by exact path only. `where` is the
    repository, for messages. Raises ModelNotFound without a match, UsageError with more than one.
    """
    usable = [name for name in names if name.lower().endswith(".gguf") and not unsafe(name)]
    if wanted is not None and (named := _by_name(usable, wanted)):
        return _whole_set(named, usable, where)
    models = [name for name in usable if _is_model(name)]
    hits = _matches(models, wanted)
    if len(hits) == 1:
        return _whole_set(hits[0], usable, where)
    if hits:
        raise UsageError(f"{where}:{wanted} fits {len(hits)} files", f"name one: {_listed(hits)}")
    if models and not wanted:
        raise UsageError(f"{where} has {len(models)} models", f"name one: {_listed(models)}")
    has = f"it has {_listed(models)}" if models else "it has no GGUF model: take another repository"
    raise ModelNotFound(f"{where} has no file for {wanted}" if wanted else f"nothing to run in {where}", has)


def _by_name(names: Sequence[str], wanted: str) -> str | None:
    """The file called `wanted`; publishers change the case of names, so a single other spelling counts."""
    alike = [name for name in names if name.lower() == wanted.lower()]
    return wanted if wanted in alike else alike[0] if len(alike) == 1 else None


def _is_model(name: str) -> bool:
    """Neither a companion of another file nor a later shard of a set."""
    shard = _SHARD.search(name)
    return not _SIDECAR.search(name) and (shard is None or int(shard[1]) == 1)


def _matches(models: Sequence[str], wanted: str | None) -> list[str]:
    if wanted is not None:
        return match_quant(models, wanted)
    if len(models) == 1:
        return list(models)
    return next((hits for quant in USUAL_QUANTS if (hits := match_quant(models, quant))), [])


def match_quant(names: Sequence[str], quant: str) -> list[str]:
    """The names of which `quant` is a whole part: f16 is not in bf16, q4_k not in q4_k_m (any case).

    Without "ud-" in `quant`, files of Unsloth's dynamic types only count where no plain one does.
    """
    part = re.compile(rf"(?i)(^|[-./]|_(?={_TYPE})){re.escape(quant)}(?=[-./]|$)")
    hits = [name for name in names if part.search(_SHARD.sub("", name)[: -len(".gguf")])]
    plain = [name for name in hits if "ud-" not in name.lower()]
    return plain if plain and "ud-" not in quant.lower() else hits


def _whole_set(name: str, names: Sequence[str], where: str) -> tuple[str, ...]:
    shards = shard_names(name)
    missing = sorted(set(shards) - set(names))
    if missing:
        raise ModelNotFound(f"{where} lacks {len(missing)} shards of {name}", f"the first is {missing[0]}")
    return shards


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(names[:12]) + more
