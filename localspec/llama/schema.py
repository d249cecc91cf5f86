"""JSON schemas as grammars: what a schema asks for, written in GBNF, llama.cpp's grammar language.

Everything the grammar lets through is valid under the schema; where the two languages do not meet, less is
let through (an object with named properties has no others), never more. A keyword that cannot be enforced
is refused by name. Nothing is fetched, no text of a schema becomes a rule's name, and literals are escaped:
a schema is a file from anywhere. Knows no llama.cpp.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from localspec.errors import UsageError
from localspec.llama.json_rules import BASE, FORMATS, literal, times
from localspec.llama.keywords import ALONE, KEYWORDS, REMARKS, Place, bounds, is_a, looks, target, types

MOST_BYTES, DEEPEST, MOST_RULES = 256 * 1024, 32, 4000
MOST_READINGS = 64
"""Ways in which a text may be read while alternatives have not parted: each is followed at every token."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A rule, the types of the values it allows, and in how many ways a text may be read by it at once."""

    rule: str
    kinds: frozenset[str]
    readings: int = 1


ANYTHING = _Made("value", frozenset(KEYWORDS) - {"integer"})


def gbnf_of(text: str) -> str:
    """The grammar of a JSON schema. Raises UsageError where it is damaged, too large, or not enforceable."""
    if len(text) > MOST_BYTES:
        raise UsageError(f"the schema is larger than {MOST_BYTES // 1024} KB", "use a smaller schema")
    try:
        schema = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise UsageError("the schema is nested too deep", "flatten it") from None
    except ValueError as error:
        raise UsageError(
            f"the schema is not valid JSON: {error}", "check it with: python -m json.tool"
        ) from None
    return _Converter(schema).grammar()


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


class _Converter:
    """One conversion. Rules are named by number, in the order of their making."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self.names: dict[str, str] = {}  # of rules, by what they say
        self.refs: dict[str, _Made] = {}  # those in the making too, as what their schema seems to be
        self.making: set[str] = set()
        self.loops: dict[str, str] = {}  # names of rules that are used in their own making, and what they say
        self.size = 0

    def grammar(self) -> str:
        root = self.visit(self.schema, Place()).rule
        rules = {"root": root, **{name: said for said, name in self.names.items()}, **self.loops}
        unread = list(rules.values())
        while unread:
            for word in re.findall("[a-z]+", unread.pop()):
                if word in BASE and word not in rules:
                    rules[word] = BASE[word]
                    unread.append(BASE[word])
        return "\n".join(f"{name} ::= {said}" for name, said in rules.items())

    def rule(self, said: str, weight: int = 1) -> str:
        """The name of a rule that says this, which llama.cpp makes into `weight` rules."""
        if said not in self.names:
            self.size += weight
            if self.size > MOST_RULES:
                raise UsageError(
                    "the schema is too large to be checked at every token", "use a smaller schema"
                )
            self.names[said] = f"r{len(self.names)}"
        return self.names[said]

    def visit(self, schema: Any, at: Place) -> _Made:
        if at.depth > DEEPEST:
            raise UsageError(f"the schema is nested deeper than {DEEPEST} levels", "flatten it")
        if schema is True:
            return ANYTHING
        if not isinstance(schema, dict):
            at.refuse(json.dumps(schema)[:40], "is not a schema that text can meet")
        said = schema.keys() - REMARKS
        for keyword in ALONE:
            if keyword in said:
                beside = said - {keyword} - ({"type"} if keyword in ("const", "enum") else set())
                if beside:
                    at.refuse(min(beside), f"stands beside {keyword}")
                return self._alone(keyword, schema, at)
        if not said:
            return ANYTHING
        return self._either([self._typed(kind, schema, at) for kind in types(schema, said, at)], at, "type")

    def _alone(self, keyword: str, schema: dict[str, Any], at: Place) -> _Made:
        value = schema[keyword]
        if keyword == "$ref":
            return self._ref(value, at)
        if keyword == "const":
            value = [value]
        if not isinstance(value, list) or not value:
            at.refuse(keyword, "is not a list")
        if keyword in ("const", "enum"):
            return self._constants(value, schema, at)
        if keyword == "allOf" and len(value) > 1:
            at.refuse(keyword, "joins several schemas")
        found = [self.visit(part, at.down(keyword, consumed=False)) for part in value]
        return self._either(found, at, keyword)

    def _either(self, found: Sequence[_Made], at: Place, keyword: str) -> _Made:
        """Any of `found`. The first character tells types apart; those of one type stay open together."""
        if keyword == "oneOf" and any(sum(kind in m.kinds for m in found) > 1 for kind in KEYWORDS):
            at.refuse(keyword, "has alternatives of the same type (anyOf may do)")
        found = list({made.rule: made for made in found}.values())
        readings = {kind: sum(made.readings for made in found if kind in made.kinds) for kind in KEYWORDS}
        most = max(readings.values())
        if most > MOST_READINGS:
            at.refuse(keyword, "leaves too many ways to read a text")
        rule = found[0].rule if len(found) == 1 else self.rule(" | ".join(made.rule for made in found))
        return _Made(rule, frozenset[str]().union(*(made.kinds for made in found)), most)

    def _ref(self, ref: Any, at: Place) -> _Made:
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            at.refuse("$ref", "leads out of the file, and nothing is fetched")
        if ref in at.open:
            at.refuse("$ref", "leads back to itself")
        if ref in self.making:
            self.loops[self.refs[ref].rule] = ""
        if ref in self.refs:
            return self.refs[ref]
        pointed = target(self.schema, ref, at)
        place = replace(at.down(ref, consumed=False), open=at.open | {ref})
        name = f"loop{len(self.refs)}"
        self.refs[ref] = _Made(name, looks(pointed, place))
        self.making.add(ref)
        made = self.visit(pointed, place)
        self.making.remove(ref)
        if name in self.loops:
            if made.readings > 1:
                at.refuse("$ref", "leads back to alternatives of one type, which need not end")
            self.loops[name] = made.rule
        self.refs[ref] = made
        return made

    def _constants(self, values: Sequence[Any], schema: dict[str, Any], at: Place) -> _Made:
        kinds = types(schema, {"type"}, at) if "type" in schema else list(KEYWORDS)
        found = []
        for value in values:
            if not any(is_a(value, kind) for kind in kinds):
                at.refuse("type", f"excludes {json.dumps(value)[:40]}")
            kind = "number" if is_a(value, "number") else next(kind for kind in KEYWORDS if is_a(value, kind))
            found.append(_Made(literal(value), frozenset({kind})))
        rule = self.rule(" | ".join(dict.fromkeys(made.rule for made in found)), len(found))
        return _Made(rule, frozenset[str]().union(*(made.kinds for made in found)))

    def _typed(self, kind: str, schema: dict[str, Any], at: Place) -> _Made:
        if kind == "object":
            return self._object(schema, at)
        if kind == "array":
            return self._array(schema, at)
        rule = self._string(schema, at) if kind == "string" else kind
        return _Made(rule, frozenset({"number" if kind == "integer" else kind}))

    def _string(self, schema: dict[str, Any], at: Place) -> str:
        least, most = bounds(schema, "minLength", "maxLength", at)
        if "format" in schema:
            known = FORMATS.get(str(schema["format"]))
            if known is None or least or most is not None:
                at.refuse(
                    "format", f"{json.dumps(schema['format'])[:40]} is not known, or has a length beside it"
                )
            return self.rule(known, 20)
        if not least and most is None:
            return "string"
        return self.rule(f'"\\"" {times("char", least, most)} "\\""', most or least)

    def _array(self, schema: dict[str, Any], at: Place) -> _Made:
        least, most = bounds(schema, "minItems", "maxItems", at)
        if "prefixItems" in schema:
            return self._tuple(schema, least, most, at)
        if most == 0:
            return _Made(self.rule('"[" space "]"'), frozenset({"array"}))
        made = self.visit(schema.get("items", True), at.down("items", consumed=True))
        more = self.rule(f'"," space {made.rule}')
        some = f"{made.rule} {times(more, max(least - 1, 0), None if most is None else most - 1)} space"
        rule = self.rule(f'"[" space {some} "]"' if least else f'"[" space ({some})? "]"', most or least or 1)
        return _Made(rule, frozenset({"array"}), made.readings)

    def _tuple(self, schema: dict[str, Any], least: int, most: int | None, at: Place) -> _Made:
        """All of `prefixItems` and nothing behind them."""
        parts = schema["prefixItems"]
        if not isinstance(parts, list) or not parts or schema.get("items", False) is not False:
            at.refuse("prefixItems", "is not a list of schemas, or has items behind it")
        if not least <= len(parts) <= (len(parts) if most is None else most):
            at.refuse("prefixItems", "is not as long as minItems and maxItems ask")
        place = at.down("prefixItems", consumed=True)
        found = [self.visit(part, place.down(str(i), consumed=True)) for i, part in enumerate(parts)]
        items = ' "," space '.join(made.rule for made in found)
        return _Made(
            self.rule(f'"[" space {items} space "]"'), frozenset({"array"}), max(m.readings for m in found)
        )

    def _object(self, schema: dict[str, Any], at: Place) -> _Made:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            at.refuse("properties", "and required must be an object and a list")
        if missing := [name for name in required if name not in properties]:
            at.refuse(
                "required", f"asks for {json.dumps(missing[0])[:40]}, which is not among the properties"
            )
        if not properties:
            return self._map(schema, at)
        # from the last property to the first: what may follow, with something before it and with nothing
        behind, first, readings = "space", '""', 1
        for name, said in reversed(properties.items()):
            made = self.visit(said, at.down(name, consumed=True))
            readings = max(readings, made.readings)
            pair, behind = f'{literal(name)} ":" space {made.rule}', self.rule(behind)
            if name in required:
                first, behind = f"{pair} {behind}", f'"," space {pair} {behind}'
            else:
                first = self.rule(f"{pair} {behind} | {first}")
                behind = f'("," space {pair})? {behind}'
        return _Made(self.rule(f'"{{" space {first} "}}"'), frozenset({"object"}), readings)

    def _map(self, schema: dict[str, Any], at: Place) -> _Made:
        """An object without named properties: any names."""
        more = schema.get("additionalProperties", True)
        if more is False:
            return _Made(self.rule('"{" space "}"'), frozenset({"object"}))
        made = self.visit(more, at.down("additionalProperties", consumed=True))
        member = self.rule(f'string ":" space {made.rule}')
        rule = self.rule(f'"{{" space ({member} ("," space {member})* space)? "}}"')
        return _Made(rule, frozenset({"object"}), made.readings)
