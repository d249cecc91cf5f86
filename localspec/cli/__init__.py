"""The command line: every command's flags, a module for each group of them, and where errors are printed.

Commands import what they run when they run: --help is quick.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from localspec import __version__
from localspec.cli import chat, edit, measure, models
from localspec.cli.common import open_terminal, outcome

_ROOT_OPTIONS = not sys.argv[1:] or sys.argv[1].startswith("-")
"""Whether options before the command can be meant. Merely having them costs each command the import of
pydantic, by which typer finds that they were not given."""

app = typer.Typer(
    name="localspec",
    help="Run a local GGUF model as fast as this machine allows, without changing what it says.",
    epilog='Example: localspec chat "Why is the sky blue?"',
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=_ROOT_OPTIONS,
    add_help_option=_ROOT_OPTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"localspec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


chat.register(app)
edit.register(app)
models.register(app)
measure.register(app)


def main() -> None:
    """The console script. Without arguments: the help."""
    with outcome(open_terminal()):
        status = app(sys.argv[1:] or ["--help"], prog_name="localspec", standalone_mode=False)
    sys.exit(status)
