"""The commands that measure and prove: bench, verify."""

from __future__ import annotations

from typing import Annotated

import typer

from localspec.cli.common import (
    Ctx,
    Exact,
    FlashAttn,
    GpuLayers,
    KvType,
    Model,
    Quiet,
    Seed,
    Threads,
    Tokens,
    Verbose,
    open_terminal,
    option,
    outcome,
)


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command(epilog=BENCH_EPILOG)(bench)
    app.command(epilog=VERIFY_EPILOG)(verify)


VERIFY_EPILOG = """
Example: localspec verify -m model-q4_k_m.gguf --exact --temps 0,0.8 --json

Exit codes: 0 identical but for near ties, 1 DEFECT or error, others as for chat.
"""


def verify(
    model: Model = None,
    draft: Annotated[str | None, option("Who guesses, as for chat. [default: auto]")] = None,
    draft_len: Annotated[int | None, option("As for chat.")] = None,
    accept: Annotated[str | None, option("coupled or rejection. [default: coupled]")] = None,
    temps: Annotated[str, typer.Option(help="Temperatures.")] = "0,0.8",
    tokens: Tokens = None,
    prompts: Annotated[
        str | None, typer.Option(help="A file of prompts, JSON lines. [default: one of each family]")
    ] = None,
    seed: Seed = None,
    ctx: Ctx = None,
    threads: Threads = None,
    gpu_layers: GpuLayers = None,
    kv_type: KvType = None,
    flash_attn: FlashAttn = None,
    exact: Exact = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Does guessing change the text? Decode prompts with and without, and certify what came of it."""
    given = dict(locals())
    from localspec import config

    terminal = open_terminal(verbosity=-1 if quiet else verbose)
    with outcome(terminal):
        settings = config.load({name: given[name] for name in config.names() if name in given})
        terminal.progress("loading ...")
        from pathlib import Path

        from localspec.bench import check
        from localspec.bench.workloads import parse_temps

        file = Path(prompts) if prompts else None
        wanted = check.Wanted(parse_temps(temps), tokens or settings.max_tokens or 200, file)
        raise typer.Exit(check.verify(settings, terminal, wanted, as_json=json))


BENCH_EPILOG = """
Examples:

  localspec bench -m model-q8_0.gguf --draft ngram,model-q4_0.gguf --family code --family chat

  localspec bench -m model-q8_0.gguf --force answers.jsonl --curves machines.json --json

  localspec bench --pairs built-in

Prompts: JSON lines with "prompt" or "turns"; for --force with "prompt" and "output"; for --pairs with "name",
"instruction", "before" and "after". Curves: {"NAME": {"T":
{"1": 1.0, "2": 1.1}, "draft": 0.1}}, in passes over one token.
"""


def bench(
    model: Model = None,
    draft: Annotated[
        str | None,
        option("Who guesses, as for chat; PATH@greedy also guesses greedily. [default: auto]"),
    ] = None,
    prompts: Annotated[str | None, typer.Option(help="A file of prompts. [default: built-in ones]")] = None,
    force: Annotated[str | None, typer.Option(help="A file of prompts with the answers to take.")] = None,
    pairs: Annotated[
        list[str] | None,
        typer.Option(help="Rewrite these files instead: JSON lines, or built-in. Repeatable."),
    ] = None,
    family: Annotated[list[str] | None, typer.Option(help="Only prompts of this family. Repeatable.")] = None,
    temps: Annotated[str | None, typer.Option(help="Temperatures. [default: 0,0.8, with --force 0]")] = None,
    tokens: Tokens = None,
    per_family: Annotated[
        int | None, typer.Option(min=1, help="Prompts of each family. [default: 1; all of a file]")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each setting.")] = 1,
    settings: Annotated[
        str | None, typer.Option(help="none, ngram-7, draft-4, hybrid, auto, ... [default: all usual ones]")
    ] = None,
    curves: Annotated[str | None, typer.Option(help="Cost tables for virtual clocks.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    png: Annotated[str | None, typer.Option(help="Also draw the measurements into this file.")] = None,
    seed: Seed = None,
    ctx: Ctx = None,
    threads: Threads = None,
    gpu_layers: GpuLayers = None,
    kv_type: KvType = None,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """How fast is each way of guessing here, against plain decoding and against the possible?"""
    given = dict(locals())
    from localspec import config

    terminal = open_terminal(verbosity=-1 if quiet else verbose)
    with outcome(terminal):
        wishes = config.load({name: given[name] for name in config.names() if name in given})
        terminal.progress("loading ...")
        if pairs:
            from localspec.bench.rewrites import bench_pairs

            raise typer.Exit(bench_pairs(pairs, curves, wishes, terminal, as_json=json))
        from localspec.bench import run
        from localspec.bench.workloads import parse_temps

        options = run.Options(
            prompts=prompts,
            force=force,
            families=tuple(family or ()),
            temps=parse_temps(temps) if temps is not None else None,
            tokens=tokens or wishes.max_tokens or 200,
            per_family=per_family or (None if prompts or force else 1),
            repeats=repeats,
            names=tuple(name.strip() for name in settings.split(",")) if settings is not None else None,
            curves=curves,
        )
        raise typer.Exit(run.bench(options, wishes, terminal, as_json=json, png=png))
