"""Schemas and grammars: what they let through, what is refused before anything is generated, and why."""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import Iterator
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import EXACT
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.engine.types import Constraint
from localspec.errors import UsageError
from localspec.llama.grammar import Grammar, read_grammar
from localspec.llama.model import LlamaModel
from localspec.llama.schema import gbnf_of

PERSON = {
    "title": "Person",
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "kind": {"enum": ["a", 'quo"te', "back\\slash", "new\nline", "é", 3, None]},
        "age": {"type": "integer"},
        "size": {"type": ["number", "null"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 1, "maxItems": 3},
        "pair": {"prefixItems": [{"type": "boolean"}, {"const": "x"}]},
    },
    "required": ["name", "kind", "tags"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value", "next"],
        }
    },
}


@pytest.fixture(scope="module")
def shared_model(tiny_path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(tiny_path, EXACT) as model:
        yield model


def say(model: LlamaModel, schema: Any, text: str) -> bool:
    """Whether the text, token by token, is a whole answer."""
    state: Constraint | None = Grammar.start(model.vocab, gbnf_of(json.dumps(schema)))
    for token in model.vocab.tokenize(text, special=False):
        state = state and state.after(token)
        if state is None:
            return False
    return bool(state and state.allowed(np.array([model.vocab.eos]))[0])


GOOD = [
    (PERSON, '{"name": "Ann", "kind": "a", "tags": ["x"]}'),
    (PERSON, '{"name":"A","kind":null,"age":-12,"size":1.5e3,"tags":["", "abc"],"pair":[true, "x"]}'),
    (PERSON, '{\n  "name": "\\u00e9\\n",\n  "kind": "quo\\"te",\n  "size": null,\n  "tags": ["é"]\n}'),
    (PERSON, '{"name": "Ann", "kind": "back\\\\slash", "tags": ["x"]}'),
    (PERSON, '{"name": "Ann", "kind": "new\\nline", "tags": ["x"]}'),
    (PERSON, '{"name": "Ann", "kind": "é", "tags": ["x"]}'),
    (TREE, '{"value": 1, "next": {"value": 2, "next": null}}'),
    ({}, '[1, {"a": [true, null, "x"]}, 2.5]'),
    (True, "null"),
    ({"type": "object"}, '{"any": {"thing": []}}'),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"a": 1, "b": 2}'),
    ({"type": "object", "additionalProperties": False}, "{}"),
    ({"type": "array", "maxItems": 0}, "[]"),
    ({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "null"}}]}, "[null, null]"),
    ({"allOf": [{"type": "boolean"}]}, "true"),
    ({"enum": [1, 2], "type": "integer"}, "2"),
    ({"properties": {"a~b/c": {"type": "null"}, "d": {"$ref": "#/properties/a~0b~1c"}}}, '{"d": null}'),
    ({"type": "string", "format": "date"}, '"2024-02-28"'),
    ({"type": "string", "format": "time"}, '"23:59:59Z"'),
    ({"type": "string", "format": "date-time"}, '"2024-12-31T00:00:00.5+01:00"'),
    ({"type": "string", "format": "uuid"}, '"123e4567-e89b-12d3-a456-426614174000"'),
]
BAD = [
    (PERSON, '{"kind": "a", "name": "Ann", "tags": ["x"]}'),
    (PERSON, '{"name": "Ann", "kind": "b", "tags": ["x"]}'),
    (PERSON, '{"name": "Ann", "kind": "a", "tags": []}'),
    (PERSON, '{"name": "Ann", "kind": "a", "tags": ["x"], "more": 1}'),
    (PERSON, '{"name": "", "kind": "a", "tags": ["x"]}'),
    (PERSON, '{"name": "Ann", "kind": "a", "tags": ["x"]'),
    (PERSON, '{"name": "Ann", "kind": "a", "tags": ["x"]}}'),
    (PERSON, '{"name": "Ann", "kind": "a", "age": 01, "tags": ["x"]}'),
    (PERSON, '{"name": "a\nb", "kind": "a", "tags": ["x"]}'),
    (PERSON, '{"name": "\\ud83d\\ude00", "kind": "a", "tags": ["x"]}'),
    (PERSON, '{"name": "1234567890123", "kind": "a", "tags": ["x"]}'),
    (TREE, '{"value": 1, "next": {"value": 2}}'),
    ({"type": "string", "format": "date"}, '"2024-02-30"'),
    ({"type": "string", "format": "date"}, '"2024-04-31"'),
    ({"type": "string", "format": "time"}, '"24:00:00Z"'),
    ({"enum": [1, 2]}, "3"),
    ({"type": "string"}, '"<|im_end|>'),
]


@pytest.mark.parametrize(("schema", "text"), GOOD)
def test_lets_through(tiny_model: LlamaModel, schema: Any, text: str) -> None:
    json.loads(text)
    assert say(tiny_model, schema, text)


@pytest.mark.parametrize(("schema", "text"), BAD)
def test_lets_not_through(tiny_model: LlamaModel, schema: Any, text: str) -> None:
    assert not say(tiny_model, schema, text)


REFUSED = [
    ({"type": "string", "pattern": "^a$"}, "pattern"),
    ({"type": "string", "format": "email"}, "format"),
    ({"type": "string", "format": "date", "maxLength": 3}, "format"),
    ({"type": "integer", "minimum": 3}, "minimum"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": {}}, "contains"),
    ({"type": "object", "patternProperties": {}}, "patternProperties"),
    ({"type": "object", "minProperties": 1}, "minProperties"),
    ({"type": "object", "required": ["a"]}, "required"),
    ({"type": "object", "properties": []}, "properties"),
    ({"not": {}}, "not"),
    ({"if": {}}, "if"),
    ({"unheard-of": 1}, "unheard-of"),
    ({"type": "date"}, "type"),
    ({"type": 5}, "type"),
    ({"type": "string", "minItems": 1}, "minItems"),
    ({"type": "string", "minLength": -1}, "minLength"),
    ({"type": "string", "minLength": True}, "minLength"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "maxLength"),
    ({"type": "string", "minLength": 10**9}, "minLength"),
    ({"type": "array", "prefixItems": [], "minItems": 1}, "prefixItems"),
    ({"type": "array", "prefixItems": [True], "minItems": 2}, "prefixItems"),
    ({"type": "array", "prefixItems": [True], "items": {}}, "prefixItems"),
    ({"anyOf": []}, "anyOf"),
    ({"anyOf": [{"type": "null"}], "type": "object"}, "type"),
    ({"allOf": [{"type": "null"}, {"type": "null"}]}, "allOf"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ({"oneOf": [{"const": 1}, {"const": 1}]}, "oneOf"),
    ({"enum": [1, "a"], "type": "string"}, "type"),
    ({"enum": []}, "enum"),
    ({"$ref": "https://example.org/s.json"}, "$ref"),
    ({"$ref": "file:///etc/passwd"}, "$ref"),
    ({"$ref": "other.json#/x"}, "$ref"),
    ({"$ref": "#/nowhere"}, "$ref"),
    ({"$ref": "#"}, "$ref"),
    ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "$ref"),
    ({"$ref": "#/$defs/a", "type": "null", "$defs": {"a": {}}}, "type"),
    ({"type": "array", "items": False}, "false"),
    (False, "false"),
    ([], "[]"),
]


@pytest.mark.parametrize(("schema", "keyword"), REFUSED)
def test_refused_by_name(schema: Any, keyword: str) -> None:
    with pytest.raises(UsageError, match=rf"cannot be enforced: {re.escape(keyword)} ") as caught:
        gbnf_of(json.dumps(schema))
    assert caught.value.exit_status == 2


def forks(levels: int) -> dict[str, Any]:
    """A schema whose text may be read in 2^levels ways for as long as it goes on opening brackets."""
    kinds: dict[str, Any] = {"d0": {"type": "null"}}
    for i in range(levels):
        item = {"items": {"$ref": f"#/$defs/d{i}"}}
        kinds[f"d{i + 1}"] = {"anyOf": [{**item, "minItems": 1}, {**item, "minItems": 2}]}
    return {"$ref": f"#/$defs/d{levels}", "$defs": kinds}


BOTH = {"items": {"$ref": "#"}}
HOSTILE = {
    "no JSON": "{",
    "an infinite number": '{"const": NaN}',
    "a larger number": '{"const": 1e999}',
    "a number of a million digits": '{"const": ' + "9" * 100_000 + "}",
    "half a pair": '{"const": "\\ud800"}',
    "half a pair as a name": '{"properties": {"\\udfff": {}}}',
    "nested JSON": "[" * 100_000,
    "nested schema": '{"items": ' * 40 + "true" + "}" * 40,
    "large": json.dumps({"enum": ["x" * 300_000]}),
    "many rules": json.dumps({"enum": list(range(5000))}),
    "much counting": json.dumps(
        {"prefixItems": [{"type": "string", "maxLength": 900 + i} for i in range(9)]}
    ),
    "forks": json.dumps(forks(10)),
    "endless forks": json.dumps({"anyOf": [{**BOTH, "minItems": 1}, {**BOTH, "minItems": 2}]}),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_schema(text: str) -> None:
    with pytest.raises(UsageError):
        gbnf_of(text)


def test_names_and_values_never_become_grammar(tiny_model: LlamaModel) -> None:
    for text in (
        '"',
        "\\",
        '"\nroot ::= "x',
        "a-b",
        "space",
        "r0",
        "root",
        "]",
        "\x7f\x1b[31m\u202e",
        "{{}}",
        "\\x41",
    ):
        schema = {"properties": {text: {"const": text}}, "required": [text]}
        assert say(tiny_model, schema, json.dumps({text: text}, ensure_ascii=False))
        assert not say(tiny_model, schema, json.dumps({text: "x"}, ensure_ascii=False))


def test_large_limits_hold_as_smaller_ones(tiny_model: LlamaModel) -> None:
    schema = {"type": "string", "maxLength": 10**6}
    assert say(tiny_model, schema, '"' + "x" * 1000 + '"')
    assert not say(tiny_model, schema, '"' + "x" * 1001 + '"')


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


def schemas() -> st.SearchStrategy[Any]:
    leaves = st.one_of(
        st.sampled_from([{"type": t} for t in ("integer", "number", "boolean", "null")]),
        st.sampled_from([{"type": "string", "format": f} for f in ("date", "time", "date-time", "uuid")]),
        st.integers(0, 4).map(lambda n: {"type": "string", "minLength": n // 2, "maxLength": n}),
        st.lists(st.one_of(WORDS, st.integers(), st.none()), min_size=1, max_size=3).map(
            lambda v: {"enum": v}
        ),
    )
    return st.recursive(leaves, deeper, max_leaves=6)


def deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def made(properties: dict[str, Any], optional: int) -> dict[str, Any]:
        names = list(properties)
        return {"type": "object", "properties": properties, "required": names[optional:]}

    return st.one_of(
        st.builds(made, st.dictionaries(WORDS, inner, min_size=1, max_size=3), st.integers(0, 3)),
        st.builds(lambda i, n: {"items": i, "minItems": n // 2, "maxItems": n}, inner, st.integers(0, 3)),
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"prefixItems": parts}),
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"anyOf": parts}),
    )


PYTHON: dict[str, Any] = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "string": str,
}
READ: dict[str, Any] = {
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "date-time": datetime.fromisoformat,
    "uuid": uuid.UUID,
}


def valid(value: Any, schema: Any) -> bool:
    """JSON Schema by the book, for the keywords of `schemas`."""
    if "anyOf" in schema:
        return any(valid(value, part) for part in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"] and not isinstance(value, bool)
    if "prefixItems" in schema:
        parts = schema["prefixItems"]
        return isinstance(value, list) and len(value) == len(parts) and all(map(valid, value, parts))
    if "items" in schema:
        inside = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
        return bool(inside) and all(valid(item, schema["items"]) for item in value)
    if schema["type"] == "object":
        known = schema["properties"]
        named = isinstance(value, dict) and set(schema["required"]) <= set(value) <= set(known)
        return named and all(valid(item, known[name]) for name, item in value.items())
    kind = schema["type"]
    if not isinstance(value, PYTHON[kind]) or isinstance(value, bool) != (kind == "boolean"):
        return False
    if "format" in schema:
        try:
            return bool(READ[schema["format"]](value))
        except ValueError:
            return False
    return kind != "string" or bool(schema["minLength"] <= len(value) <= schema["maxLength"])


def wander(model: LlamaModel, state: Grammar, choice: random.Random) -> str:
    """An answer of tokens chosen at random from those allowed; "" if it does not end."""
    said = b""
    everything = np.arange(model.n_vocab)
    for _ in range(600):
        ids = everything[state.allowed(everything)]
        assert len(ids), said
        token = int(choice.choice(ids))
        if model.vocab.is_end(token):
            return said.decode("utf-8")
        said += model.vocab.piece(token)
        after = state.after(token)
        assert isinstance(after, Grammar)
        state = after
    return ""


@settings(max_examples=60, deadline=None)
@given(schema=schemas(), seed=st.integers(0, 2**16))
def test_whatever_comes_is_valid(shared_model: LlamaModel, schema: Any, seed: int) -> None:
    """A model that says anything it may still says valid JSON, in valid UTF-8, of the schema."""
    text = wander(
        shared_model, Grammar.start(shared_model.vocab, gbnf_of(json.dumps(schema))), random.Random(seed)
    )
    if text:
        assert valid(json.loads(text), schema)


GRAMMARS = {
    "no rule": "root ::= foo\n",
    "no root": 'a ::= "x"\n',
    "no grammar": 'root = "x"\n',
    "an escape": 'root ::= "\\q\x1b[31m"\n',
    "left recursion": 'root ::= root "a" | "b"\n',
    "hidden left recursion": 'root ::= "q" bad\nbad ::= a bad "x" | "y"\na ::= b\nb ::= "" | "z"\n',
    "five to two": 'root ::= "a"{5,2}\n',
    "often": 'root ::= "a"{2001}\n',
    "nested": "root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000,
    "empty": " \n",
    "only remarks": "# nothing\n",
    "a token": "root ::= <|im_end|>\n",
    "a token's number": "root ::= !<[2]>\n",
    "an open string": 'root ::= "a',
}


@pytest.mark.parametrize("text", GRAMMARS.values(), ids=GRAMMARS.keys())
def test_bad_grammar(tmp_path: Path, text: str) -> None:
    """Refused before anything is loaded, and without harm to this process."""
    path = tmp_path / "bad.gbnf"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"^bad\.gbnf ") as caught:
        read_grammar(None, path)
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("raw", [b"\xff", b'root ::= "a\0"', b" " * 300_000])
def test_bad_file(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "bad"
    path.write_bytes(raw)
    for files in ((path, None), (None, path)):
        with pytest.raises(UsageError):
            read_grammar(*files)


def test_reads(tmp_path: Path, tiny_model: LlamaModel) -> None:
    schema, grammar = tmp_path / "s.json", tmp_path / "g.gbnf"
    schema.write_text(json.dumps(PERSON), encoding="utf-8-sig")
    grammar.write_bytes(b'root ::= "<" a "!"  # "<\r\na ::= [<!]{1,3}\r\n')
    assert read_grammar(None, None) is None
    assert read_grammar(schema, None) == gbnf_of(json.dumps(PERSON))
    with pytest.raises(UsageError, match="both"):
        read_grammar(schema, grammar)
    with pytest.raises(UsageError, match="cannot be read"):
        read_grammar(tmp_path, None)
    text = read_grammar(None, grammar)
    assert text
    state: Constraint | None = Grammar.start(tiny_model.vocab, text)
    for token in tiny_model.vocab.tokenize("<<!!", special=False):
        assert state
        state = state.after(token)
    assert state is not None


@pytest.mark.parametrize("text", ["", "root ::= foo"])
def test_a_grammar_llama_cannot_follow_is_not_none(tiny_model: LlamaModel, text: str) -> None:
    with pytest.raises(UsageError):
        Grammar.start(tiny_model.vocab, text)


def test_tokens_that_are_no_text(tiny_model: LlamaModel) -> None:
    """Control tokens say nothing, and bytes that are no UTF-8 are no characters."""
    vocab = tiny_model.vocab
    start = Grammar.start(vocab, "root ::= [^\\x01] .*")
    control = [token for token in range(vocab.n_tokens) if not vocab.piece(token)]
    assert len(control) >= 3
    assert not start.allowed(np.array(control)).any()
    state: Constraint | None = start.after(byte(tiny_model, 0xE0))
    assert state is not None
    assert not state.allowed(np.array(control)).any()
    assert not state.allowed(np.array([byte(tiny_model, 0xA2 - 0x22)]))[0], "an overlong quotation mark"
    assert not state.allowed(np.array([vocab.eos]))[0]
    for part in (0xA4, 0x95):
        state = state.after(byte(tiny_model, part)) if state is not None else None
    assert state is not None
    assert state.allowed(np.array([vocab.eos]))[0]


def byte(model: LlamaModel, value: int) -> int:
    return next(token for token in range(model.n_vocab) if model.vocab.piece(token) == bytes([value]))


def test_refused_tokens_and_ids_past_the_vocabulary_do_no_harm(tiny_model: LlamaModel) -> None:
    vocab = tiny_model.vocab
    start = Grammar.start(vocab, 'root ::= "a"')
    a, b = (vocab.tokenize(char, special=False)[0] for char in "ab")
    assert start.allowed(np.array([a, b, vocab.n_tokens, 10**6, vocab.eos])).tolist() == [True, *[False] * 4]
    assert start.after(b) is start.after(vocab.eos) is start.after(10**6) is None
    done = start.after(a)
    assert done
    assert done.allowed(np.array([a, b, vocab.eos])).tolist() == [False, False, True]
    assert done.after(vocab.eos) is None
    assert start.allowed(np.array([a]))[0], "a state never changes"
