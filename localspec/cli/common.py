"""What commands share: options, how results are printed, and how errors become exit codes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from localspec.errors import ExitStatus, LocalspecError
from localspec.ui.terminal import Terminal, silence

_BadCommandLine: Any = typer.BadParameter.__mro__[2]  # click's ClickException: typer may bring its own click


def setting(name: str, text: str, *flags: str) -> Any:
    """An option that LOCALSPEC_NAME can give as well."""
    return typer.Option(*flags, help=text, envvar=f"LOCALSPEC_{name.upper()}", show_envvar=False)


Model = Annotated[
    str | None,
    setting(
        "model", "Catalogue name, org/repo[:QUANT] or path. [default: the best one here]", "-m", "--model"
    ),
]
Ctx = Annotated[int | None, setting("ctx", "Context. [default: the model's, at most 8192]")]
Threads = Annotated[int | None, setting("threads", "[default: physical cores]", "-t", "--threads")]
GpuLayers = Annotated[int | None, setting("gpu_layers", "Layers on the GPU. [default: what fits]")]
KvType = Annotated[str | None, setting("kv_type", "Cache: f16, q8_0, bf16, ... [default: what fits]")]
FlashAttn = Annotated[str | None, setting("flash_attn", "auto, on or off. [default: auto]")]
Tokens = Annotated[
    int | None, typer.Option(min=1, max=100_000, help="Longest answer. [default: 200, or max_tokens if set]")
]
Seed = Annotated[int | None, setting("seed", "[default: 0]")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Nothing on stderr but errors.")]
Verbose = Annotated[
    int,
    typer.Option("-v", "--verbose", count=True, help="-v: how the model was loaded. -vv: llama.cpp's log."),
]
Exact = Annotated[
    bool | None,
    setting("exact", "Guess only where passes are proven to compute the same, bit for bit.", "--exact"),
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
        terminal.complain(f"cannot go on: {error}")
    try:
        terminal.out.flush()
    except OSError:
        silence(terminal.out)
    sys.exit(status)
