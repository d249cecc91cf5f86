"""Reading a JSON schema: which keywords may stand where, and what they say.

Refuses what cannot be enforced, by name and place. Knows nothing of grammars.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

from localspec.errors import UsageError

MOST_TIMES = 1000
"""Times a part may be repeated. A larger `maxItems` or `maxLength` is enforced as this: each time is a rule
of its own in llama.cpp, which drops limits above 2000 without a word."""
REMARKS = {
    *("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default"),
    *("examples", "deprecated", "readOnly", "writeOnly"),
}
"""Keywords that allow and forbid nothing."""
KEYWORDS = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "format"},
    **{kind: set[str]() for kind in ("integer", "number", "boolean", "null")},
}
"""What may stand beside each type."""
ALONE = ("$ref", "anyOf", "oneOf", "allOf", "const", "enum")
"""Keywords that must stand alone, but for a type beside the last two."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the schema. `open`: references followed since the last character of text."""

    path: str = "#"
    depth: int = 0
    open: frozenset[str] = frozenset()

    def down(self, step: str, *, consumed: bool) -> Place:
        shown = repr(step)[1:-1][:40]
        return Place(f"{self.path}/{shown}", self.depth + 1, frozenset() if consumed else self.open)

    def refuse(self, keyword: str, why: str) -> NoReturn:
        raise UsageError(
            f"the schema cannot be enforced: {keyword} at {self.path[-200:]} {why}", "change the schema"
        )


def types(schema: dict[str, Any], said: set[str], at: Place) -> list[str]:
    """The types a schema asks for, or that its keywords imply; refuses keywords of none of them."""
    asked = schema.get("type")
    types = asked if isinstance(asked, list) else [asked] if asked else []
    if not types:
        types = [kind for kind, keywords in KEYWORDS.items() if keywords & said]
    for kind in types:
        if not isinstance(kind, str) or kind not in KEYWORDS:
            at.refuse("type", f"{json.dumps(kind)[:40]} is not known")
    if foreign := said - {"type"} - {keyword for kind in types for keyword in KEYWORDS[kind]}:
        at.refuse(min(foreign), "is not supported" + (f" for {types[0]}" if types else ""))
    if not types:
        at.refuse("type", "names no type")
    return [kind for kind in types if kind != "integer" or "number" not in types]


def looks(schema: Any, at: Place) -> frozenset[str]:
    """The types of a schema that is still in the making: all, unless it names them."""
    said = schema.keys() - REMARKS if isinstance(schema, dict) else set()
    kinds = list(KEYWORDS) if not said or said & set(ALONE) else types(schema, said, at)
    return frozenset("number" if kind == "integer" else kind for kind in kinds)


def is_a(value: Any, kind: str) -> bool:
    """Whether a JSON value is of that type."""
    if isinstance(value, bool) or kind == "boolean":
        return isinstance(value, bool) and kind == "boolean"
    python = {"object": dict, "array": list, "string": str, "integer": int, "null": type(None)}
    return isinstance(value, python.get(kind, (int, float)))


def bounds(schema: dict[str, Any], low: str, high: str, at: Place) -> tuple[int, int | None]:
    """How often a part may occur, `high` cut to what llama.cpp can count."""
    least, most = schema.get(low, 0), schema.get(high)
    for keyword, value in ((low, least), (high, least if most is None else most)):
        if not is_a(value, "integer") or value < 0:
            at.refuse(keyword, "is not a whole number")
    if least > MOST_TIMES:
        at.refuse(low, f"is more than {MOST_TIMES}")
    if most is not None and most < least:
        at.refuse(high, f"is less than {low}")
    return least, None if most is None else min(most, MOST_TIMES)


def target(schema: Any, ref: str, at: Place) -> Any:
    """What `ref`, a JSON pointer behind "#", points at."""
    for step in (step.replace("~1", "/").replace("~0", "~") for step in ref.split("/")[1:]):
        if not isinstance(schema, dict) or step not in schema:
            at.refuse("$ref", "points at nothing")
        schema = schema[step]
    return schema
