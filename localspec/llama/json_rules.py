"""JSON in GBNF, llama.cpp's grammar language: the rules every schema's grammar shares, literals, repetition.

Stricter than JSON where that keeps texts readable by everyone: one code point a character, numbers that fit
a double, white space only behind brackets, commas and colons.
"""

from __future__ import annotations

import json
from typing import Any

from localspec.errors import UsageError

BASE = {
    "space": r'| " " | "\n" [ \t]{0,20}',
    "hex": "[0-9a-fA-F]",
    # no \u escapes of surrogates: two of them are one character
    "escape": r'["\\/bfnrt] | "u" ([0-9a-cefA-CEF] hex hex hex | [dD] [0-7] hex hex)',
    "char": r'[^"\\\x00-\x1F] | "\\" escape',
    "string": r'"\"" char* "\""',
    "integer": '"-"? ("0" | [1-9] [0-9]{0,15})',
    "number": 'integer ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "member": 'string ":" space value',
    "object": '"{" space (member ("," space member)* space)? "}"',
    "array": '"[" space (value ("," space value)* space)? "]"',
    "value": "object | array | string | number | boolean | null",
    "day": (  # every date there is but the 29th of February
        '[1-9] [0-9]{3} "-" ("02-" ("0" [1-9] | "1" [0-9] | "2" [0-8])'
        ' | ("0" [469] | "11") "-" ("0" [1-9] | [12] [0-9] | "30")'
        ' | ("0" [13578] | "1" [02]) "-" ("0" [1-9] | [12] [0-9] | "3" [01]))'
    ),
    "minute": '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9]',
    "clock": 'minute ":" [0-5] [0-9] ("." [0-9]{1,6})? ("Z" | [-+] minute)',
}
FORMATS = {
    "date": r'"\"" day "\""',
    "time": r'"\"" clock "\""',
    "date-time": r'"\"" day "T" clock "\""',
    "uuid": r'"\"" hex{8} "-" hex{4} "-" hex{4} "-" hex{4} "-" hex{12} "\""',
}


def times(item: str, least: int, most: int | None) -> str:
    return '""' if most == 0 else f"{item}{{{least},{'' if most is None else most}}}"


def literal(value: Any) -> str:
    """The one spelling of a JSON value as a GBNF literal. Raises UsageError if there is none."""
    try:
        spelt = json.dumps(value, ensure_ascii=False, allow_nan=False)
        spelt.encode()
    except ValueError:  # infinite, or half a surrogate pair
        raise UsageError("the schema holds a value that JSON cannot spell", "change the schema") from None
    return '"' + spelt.replace("\\", "\\\\").replace('"', '\\"') + '"'
