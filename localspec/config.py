"""Settings: flags over LOCALSPEC_* variables over config.toml over defaults, checked, in one frozen value.

What is wrong is named as it was given: the flag, the variable, or the key and the file. Also knows where
localspec's own folders are.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.errors import UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set for a run. None: decided by the program (the default is said in --help)."""

    model: str | None = None
    draft: str = "auto"
    draft_len: int | None = None
    accept: str = "coupled"
    threads: int | None = None
    gpu_layers: int | None = None
    kv_type: str | None = None
    flash_attn: str = "auto"
    exact: bool = False
    ctx: int | None = None
    max_tokens: int | None = None
    temp: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    seed: int | None = None
    system: str | None = None
    stop: tuple[str, ...] = ()
    color: str = "auto"
    plain: bool = False
    think: bool | None = None
    vi: bool = False
    save: bool = True

    def __post_init__(self) -> None:
        for name in _RULES:
            _check(name, getattr(self, name), flag_of(name))


@dataclass(frozen=True, slots=True)
class _Rule:
    words: str
    test: Callable[[Any], bool]


def _between(low: float, high: float) -> _Rule:
    return _Rule(f"a number from {low} to {high}", lambda x: low <= x <= high)


def _one_of(*names: str) -> _Rule:
    return _Rule(f"one of {', '.join(names)}", lambda x: x in names)


def is_text(value: str) -> bool:
    """Whether a tokenizer can take `value`: no NUL, and no argument in another encoding than UTF-8."""
    return not any(char == "\0" or "\ud800" <= char <= "\udfff" for char in value)


_NO_NUL = _Rule("a text without NUL bytes", lambda x: "\0" not in x)

_RULES = {
    "model": _NO_NUL,
    "draft": _NO_NUL,
    "draft_len": _between(1, 47),
    "accept": _one_of("coupled", "rejection"),
    "threads": _between(1, 512),
    "gpu_layers": _between(-1, 100_000),
    "kv_type": _one_of("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"),
    "flash_attn": _one_of("auto", "on", "off"),
    "ctx": _between(16, 2**24),
    "max_tokens": _between(1, 2**24),
    "temp": _between(0, 100),
    "top_k": _between(0, 2**31),
    "top_p": _Rule("a number above 0, at most 1", lambda x: 0 < x <= 1),
    "min_p": _between(0, 1),
    "repeat_penalty": _Rule("a number above 0", lambda x: math.isfinite(x) and x > 0),
    "presence_penalty": _between(-100, 100),
    "seed": _between(0, 2**63 - 1),
    "system": _Rule("a text in UTF-8, without NUL bytes", is_text),
    "stop": _Rule("texts that are not empty, in UTF-8", lambda x: all(x) and all(map(is_text, x))),
    "color": _one_of("auto", "always", "never"),
}


_SIZES = {"ctx"}
"""Settings that may be written as 32k."""
_LONGEST_SIZE = 24
_SWITCH = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)


def names() -> list[str]:
    """Every setting's name, as Settings spells it."""
    return [field.name for field in dataclasses.fields(Settings)]


def flag_of(name: str) -> str:
    """The command-line spelling of a setting."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return f"LOCALSPEC_{name.upper()}"


def load(flags: Mapping[str, Any], path: Path | None = None) -> Settings:
    """Merge `flags` (None: not given) over variables over the config file at `path` over the defaults."""
    given = {name: value for name, value in flags.items() if value is not None and value != []}
    if isinstance(given.get("stop"), list):
        given["stop"] = tuple(given["stop"])
    file = path or config_file()
    values: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for found, spell in (
        (_read(file), lambda name: f"{file}: {name}"),
        (_environment(), variable_of),
        (given, flag_of),
    ):
        values |= found
        spelled |= {name: spell(name) for name in found}
    for name in _SIZES & values.keys():
        if isinstance(values[name], str):
            values[name] = parse_size(values[name], spelled[name])
    for name, value in values.items():
        _check(name, value, spelled[name])
    return Settings(**values)


def parse_size(text: str, what: str) -> int:
    """A number such as "7", "32k" or "8G", in binary units. Raises UsageError, which calls it `what`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", text.strip(), re.IGNORECASE)
    if not found or len(text) > _LONGEST_SIZE:
        raise UsageError(f"{what} is {text[:_LONGEST_SIZE]!r}", "give a number, or one as 32k or 8G")
    return int(float(found[1]) * 1024 ** "_kmgt".index(found[2].lower() or "_"))


def _check(name: str, value: Any, spelled: str) -> None:
    """UsageError, which calls the setting as it was `spelled`, if it may not have this value."""
    allowed = _RULES.get(name)
    if value is None or allowed is None or allowed.test(value):
        return
    if isinstance(value, tuple):  # show the one that is wrong
        value = next((item for item in value if not allowed.test((item,))), value)
    raise UsageError(f"{spelled} is {value!r}", f"give {allowed.words}")


def _environment() -> dict[str, Any]:
    """Settings that LOCALSPEC_* variables give; lists have none."""
    kinds = typing.get_type_hints(Settings)
    values: dict[str, Any] = {}
    for name in names():
        text = os.environ.get(variable_of(name))
        kind = (typing.get_args(kinds[name]) or (kinds[name],))[0]
        if text and kind in (str, int, float, bool):
            try:
                as_text = kind is str or name in _SIZES
                values[name] = text if as_text else _SWITCH[text.lower()] if kind is bool else kind(text)
            except (ValueError, KeyError) as error:
                wanted = "1 or 0" if kind is bool else "a number"
                raise UsageError(f"{variable_of(name)} is {text!r}", f"give {wanted}") from error
    return values


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"cannot read {path}: {error}", "mend the file or move it away") from error
    kinds = typing.get_type_hints(Settings)
    values = {}
    for key, value in raw.items():
        name = key.replace("-", "_")
        if name not in names():
            raise UsageError(f"{path}: unknown key {key!r}", f"known keys: {', '.join(names())}")
        as_text = name in _SIZES and isinstance(value, str)
        values[name] = value if as_text else _typed(value, kinds[name], f"{path}: {key}")
    return values


def _typed(value: Any, kind: Any, where: str) -> Any:
    """`value` as the setting's type; a whole number may stand for a fraction, nothing else is converted."""
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if kinds[0] == tuple[str, ...]:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise UsageError(f"{where} is {value!r}", "give a list of texts")
    if kinds[0] is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, bool) != (kinds[0] is bool) or not isinstance(value, kinds[0]):
        names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
        raise UsageError(f"{where} is {value!r}", f"give {names[kinds[0]]}")
    return value


def config_file() -> Path:
    """LOCALSPEC_HOME/config.toml if that variable is set, else in the user's config folder."""
    return _folder("config") / "config.toml"


def catalog_file() -> Path:
    """Where a user's own catalogue stands: models.toml beside config.toml."""
    return _folder("config") / "models.toml"


def models_folder() -> Path:
    """Our downloads: LOCALSPEC_HOME/models, else `models` in the user's data folder. May not exist yet."""
    return _folder("data") / "models"


def cache_folder() -> Path:
    """What can be made again: LOCALSPEC_HOME/cache, else the user's cache folder. May not exist yet."""
    folder = _folder("cache")
    return folder / "cache" if os.environ.get("LOCALSPEC_HOME") else folder


def sessions_folder() -> Path:
    """Conversations: LOCALSPEC_HOME/sessions, else `sessions` in the data folder. May not exist yet."""
    return _folder("data") / "sessions"


def state_folder() -> Path:
    """What is kept between runs but is no document: LOCALSPEC_HOME/state, else the user's state folder."""
    folder = _folder("state")
    return folder / "state" if os.environ.get("LOCALSPEC_HOME") else folder


def _folder(kind: str) -> Path:
    """LOCALSPEC_HOME, or the user's "config", "data", "cache" or "state" folder for localspec."""
    home = os.environ.get("LOCALSPEC_HOME")
    if home:
        return Path(os.path.expanduser(home))
    if sys.platform == "win32":
        from platformdirs.windows import Windows as System
    else:
        from platformdirs.unix import Unix as System  # XDG on macOS too: a terminal program
    return Path(getattr(System("localspec", appauthor=False), f"user_{kind}_dir"))
