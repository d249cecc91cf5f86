"""`localspec chat` on a screen of its own, with models that say what a test wants.

A grammar of one text makes any model say exactly that; what a run measures is masked. Knows the command
line and the screen, nothing of the program inside.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from screen import Screen

COMMAND = (sys.executable, "-m", "localspec")
TOOLBAR = re.compile(r"^(\d+ files? attached · )?\S+ · ctx ", re.MULTILINE)
ENV = {"PYTHONWARNINGS": "error,ignore::ResourceWarning"}  # llama_cpp leaves /dev/null open
_FIGURES = (
    (re.compile(r"^\d+\s+tokens\s+·.*?seed\s+\d+", re.MULTILINE | re.DOTALL), "FIGURES"),
    (re.compile(r"FIGURES\s+·\s+"), "FIGURES · "),
    (re.compile(r"( · ctx [\d.]+k?/[\d.]+k?) · .*", re.MULTILINE), r"\1 · …"),
    (re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}"), "SESSION"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d"), "WHEN"),
)


def saying(folder: Path, *texts: str) -> list[str]:
    """Options with which a model says one of `texts`, and nothing else."""
    quoted = (json.dumps(text, ensure_ascii=True) for text in texts)
    path = folder / "says.gbnf"
    path.write_text(f"root ::= {' | '.join(map(_in_gbnf, quoted))}\n")
    return ["--grammar", str(path)]


def _in_gbnf(literal: str) -> str:
    r"""JSON's escapes as GBNF has them: \n stays, \uXXXX is read, \b and \f are not."""
    wide = re.sub(
        r"\\u(d[89ab]..)\\u(d[c-f]..)",
        lambda pair: f"\\U{0x10000 + (int(pair[1], 16) - 0xD800 << 10) + int(pair[2], 16) - 0xDC00:08x}",
        literal,
    )
    return wide.replace("\\b", "\\x08").replace("\\f", "\\x0c")


@contextmanager
def chat(
    *options: str | Path,
    columns: int = 80,
    lines: int = 24,
    env: dict[str, str] | None = None,
) -> Iterator[Screen]:
    """`localspec chat OPTIONS` on one thread, when its prompt stands."""
    with begun(*options, columns=columns, lines=lines, env=env) as screen:
        prompted(screen)
        yield screen


def begun(
    *options: str | Path, columns: int = 80, lines: int = 24, env: dict[str, str] | None = None
) -> Screen:
    """`localspec chat OPTIONS` on one thread, as it starts."""
    command = [*COMMAND, "chat", "-t", "1", *map(str, options)]
    return Screen(command, columns=columns, lines=lines, env=ENV | (env or {}))


def prompted(screen: Screen) -> None:
    """Wait until an empty prompt stands above its toolbar, at the end of what is shown."""
    screen.wait(lambda: len(screen.rows) > 1 and screen.rows[-2] == ">" and is_toolbar(screen.rows[-1]))


def is_toolbar(row: str) -> bool:
    return TOOLBAR.match(row) is not None


def ask(screen: Screen, text: str) -> None:
    """Type `text`, Enter, and wait for the next prompt."""
    seen = screen.raw.count("\x1b[?2004h")
    screen.send(f"{text}\r")
    screen.wait(lambda: screen.raw.count("\x1b[?2004h") > seen)
    prompted(screen)


def leave(screen: Screen) -> None:
    """Ctrl-D at the prompt, which ends the program well."""
    screen.send("\x04")
    assert screen.exit_status() == 0, screen.picture()


def shown(screen: Screen) -> str:
    """All rows, those that were scrolled away too, without what a run measures."""
    return masked([*screen.scrolled, *screen.rows])


def masked(rows: Sequence[str]) -> str:
    text = "\n".join(rows)
    for pattern, instead in _FIGURES:
        text = pattern.sub(instead, text)
    return text
