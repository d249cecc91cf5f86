"""The program of the process that runs a model's chat template: a template is a stranger's program.

Started by template.py as a script, isolated, with the folders of jinja2 and markupsafe as arguments. Frames
of 4 bytes (big endian length) and JSON: an empty frame says that it is ready; a request holds `source`,
`variables`, `now` (ISO, the caller's clock) and `most` (characters); a reply `text`, or `error` in words.
Knows nothing of localspec. What it takes is limited before the first template runs; time is the parent's.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path += sys.argv[1:]

import contextlib
import json
import pprint
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, BinaryIO

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

BYTES_MEMORY = 512 << 20
SECONDS_CPU = 4  # for one request: only counts when nobody is left to stop it sooner
WARM_UP = """
{%- macro m(x) %}{{ x | trim | upper | pprint }}{% endmacro %}{% set ns = namespace(n=0) %}
{%- for x in [1, 2] %}{% if loop.last %}{% break %}{% endif %}{{ m('é') }}{% endfor %}{{ [1] | tojson }}
{%- generation %}{{ strftime_now('%d %B %Y') }}{% endgeneration %}{{ raise_exception('\x1b') }}"""


class Generation(Extension):
    """`{% generation %}`: marks what a model was trained on, and changes nothing."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 reads the class)

    def parse(self, parser: Parser) -> nodes.Node:
        scope = nodes.Scope(lineno=next(parser.stream).lineno)
        scope.body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return scope


class Templates:
    """Renders templates as transformers does, for which they are written. Compiles the last once."""

    def __init__(self) -> None:
        self._now = datetime.now()
        self._source = ""
        self._template: Template | None = None
        self._environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
        )
        self._environment.filters["tojson"] = _to_json
        self._environment.globals["raise_exception"] = _raise
        self._environment.globals["strftime_now"] = self._strftime_now

    def render(self, source: str, variables: dict[str, Any], now: str, most: int) -> str:
        """Raises whatever the template does, ValueError when it writes more than `most` characters."""
        if self._template is None or source != self._source:
            self._template, self._source = self._environment.from_string(source), source
        self._now = datetime.fromisoformat(now)
        parts, size = [], 0
        for part in self._template.generate(variables):
            size += len(part)
            if size > most:
                raise ValueError(f"it writes more than {most} characters")
            parts.append(part)
        return "".join(parts)

    def _strftime_now(self, form: str) -> str:
        return self._now.strftime(form)


def reply(request: bytes, render: Callable[..., str]) -> bytes:
    """The answer to one request, whatever the template raises."""
    try:
        answer = {"text": render(**json.loads(request))}
        return json.dumps(answer).encode()
    except MemoryError:
        error = f"it needs more than {BYTES_MEMORY >> 20} MB"
    except RecursionError:
        error = "it calls itself without end"
    except Exception as raised:
        error = str(raised)[:1000] or type(raised).__name__
    return json.dumps({"error": error}).encode()


def receive(stream: BinaryIO) -> bytes | None:
    """The next frame, None when there is none."""
    head = stream.read(4)
    return stream.read(int.from_bytes(head, "big")) if len(head) == 4 else None


def send(stream: BinaryIO, frame: bytes) -> None:
    stream.write(len(frame).to_bytes(4, "big") + frame)
    stream.flush()


def limit() -> None:
    """No more memory, no file, no other process, no core; nothing on systems without such limits."""
    try:
        import resource
    except ImportError:
        return
    limits = {"AS": BYTES_MEMORY, "DATA": BYTES_MEMORY, "FSIZE": 0, "NPROC": 0, "NOFILE": 0, "CORE": 0}
    for name, most in limits.items():
        with contextlib.suppress(AttributeError, OSError, ValueError):
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def limit_cpu(seconds: int) -> None:
    """Ends this process after `seconds` more, where the system can."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + seconds, hard))


def main() -> None:
    templates = Templates()
    now = datetime.now().isoformat()
    with contextlib.suppress(TemplateError):  # what is imported late is imported now: no file opens later
        templates.render(WARM_UP, {}, now, 1000)
    pprint.pformat(now)
    limit()
    send(sys.stdout.buffer, b"")
    while (request := receive(sys.stdin.buffer)) is not None:
        limit_cpu(SECONDS_CPU)
        send(sys.stdout.buffer, reply(request, templates.render))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: Any) -> None:
    raise TemplateError(str(message))


if __name__ == "__main__":
    main()
