"""What commands share: options, how results are printed, and how errors become exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from localspec.errors import ExitStatus, LocalspecError, reason
from localspec.ui.terminal import Terminal, silence

_BadCommandLine: Any = typer.BadParameter.__mro__[2]  # click's ClickException: typer may bring its own click


def option(text: str, *flags: str) -> Any:
    """An option whose help is `text`; without `flags` it is called as its parameter."""
    return typer.Option(*flags, help=text)


Model = Annotated[
    str | None,
    option("Catalogue name, org/repo[:QUANT] or path. [default: the best one here]", "-m", "--model"),
]
Ctx = Annotated[str | None, option("Context in tokens, as in 32k. [default: the model's, at most 8192]")]
Threads = Annotated[int | None, option("[default: physical cores]", "-t", "--threads")]
GpuLayers = Annotated[int | None, option("Layers on the GPU. [default: what fits]")]
KvType = Annotated[str | None, option("Cache: f16, q8_0, bf16, ... [default: what fits]")]
FlashAttn = Annotated[str | None, option("auto, on or off. [default: auto]")]
Tokens = Annotated[
    int | None, typer.Option(min=1, max=100_000, help="Longest answer. [default: 200, or max_tokens if set]")
]
Seed = Annotated[int | None, option("[default: 0]")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Nothing on stderr but errors.")]
Verbose = Annotated[
    int,
    typer.Option("-v", "--verbose", count=True, help="-v: how the model was loaded. -vv: llama.cpp's log."),
]
Exact = Annotated[
    bool | None,
    option("Guess only where passes are proven to compute the same, bit for bit.", "--exact"),
]
Name = Annotated[str, typer.Argument(help="Catalogue name, org/repo[:QUANT] or path.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def show(terminal: Terminal, told: Any, *, as_json: bool) -> None:
    """The result on stdout: JSON, or lines."""
    if as_json:
        from json import dumps

        terminal.write(dumps(told, ensure_ascii=False, indent=2) + "\n")
    else:
        terminal.write("".join(f"{line}\n" for line in told))


def open_terminal(color: str | None = None, verbosity: int = 0) -> Terminal:
    """The process's streams; until the settings are read, coloured as the flag or the variable says."""
    return Terminal.standard(color or os.environ.get("LOCALSPEC_COLOR") or "auto", verbosity)


@contextmanager
def outcome(terminal: Terminal) -> Iterator[None]:
    """The one place where an error becomes a line on stderr and an exit code."""
    status = ExitStatus.ERROR
    try:
        yield
        terminal.out.flush()
        return
    except LocalspecError as error:
        terminal.complain(error.message, error.hint)
        status = error.exit_status
    except _BadCommandLine as error:
        command = error.ctx.command_path if error.ctx else "localspec"
        terminal.complain(error.format_message().removesuffix("."), f"try {command} -h")
        status = ExitStatus.USAGE
    except KeyboardInterrupt:
        status = ExitStatus.INTERRUPTED
    except BrokenPipeError:
        status = ExitStatus.BROKEN_PIPE
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        terminal.complain(f"cannot go on: {where}{reason(error)}")
    try:
        terminal.out.flush()
    except OSError:
        silence(terminal.out)
    sys.exit(status)
