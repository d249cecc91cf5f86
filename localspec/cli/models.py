"""The commands about models and this machine: models, plan, doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from localspec.cli.common import Ctx, GpuLayers, Json, KvType, Name, open_terminal, option, outcome, show


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(models_app, name="models")
    app.command()(plan)
    app.command()(doctor)


models_app = typer.Typer(rich_markup_mode=None, invoke_without_command=True)


@models_app.callback()
def _models(context: typer.Context) -> None:
    """The models there are: listed, described, fetched, deleted, paired."""
    if context.invoked_subcommand is None:
        models_list()


@models_app.command("list")
def models_list(
    here: Annotated[bool, typer.Option("--here", help="Only what is on this machine.")] = False,
    json: Json = False,
) -> None:
    """The catalogue, and what is on this machine."""
    terminal = open_terminal()
    with outcome(terminal):
        from localspec import manage

        table = [row for row in manage.rows() if row.get("path") or not here]
        show(terminal, table if json else manage.list_lines(table), as_json=json)


@models_app.command("info")
def models_info(name: Name, json: Json = False) -> None:
    """What a model is, read from its header: here, or on the Hub without fetching its weights."""
    terminal = open_terminal()
    with outcome(terminal):
        from localspec import manage

        told = manage.info(manage.know(name, terminal))
        show(terminal, told if json else (f"{key:<20} {value}" for key, value in told.items()), as_json=json)


@models_app.command("pull")
def models_pull(name: Name) -> None:
    """Fetch a model. An interrupted download goes on where it was."""
    terminal = open_terminal()
    with outcome(terminal):
        from localspec import obtain

        terminal.write(f"{obtain.obtain(name, terminal, yes=True)}\n")


@models_app.command("rm")
def models_rm(name: Name) -> None:
    """Delete a model's download and its low-bit copies; of a path only the copies."""
    terminal = open_terminal()
    with outcome(terminal):
        from localspec import manage

        for path in manage.remove(name):
            terminal.write(f"{path}\n")


@models_app.command("pairs")
def models_pairs(
    name: Name,
    temp: Annotated[float, typer.Option(help="Temperature the expectation is for.")] = 0.8,
    json: Json = False,
) -> None:
    """What could guess for a model, best first, with the speed expected of each."""
    terminal = open_terminal()
    with outcome(terminal):
        from localspec import manage

        told = manage.drafts_for(manage.know(name, terminal), temp, terminal)
        rows = (f"{row['draft']:<24} {row['expected']:>5.2f}x  {row['why']}" for row in told)
        show(terminal, told if json else rows, as_json=json)


def plan(
    name: Annotated[str | None, typer.Argument(help="Catalogue name, org/repo[:QUANT] or path.")] = None,
    vram: Annotated[
        str | None, typer.Option(help="What if there were one GPU of this size, as in 8G.")
    ] = None,
    ctx: Ctx = None,
    kv_type: KvType = None,
    gpu_layers: GpuLayers = None,
    draft: Annotated[str | None, option("What may guess: auto, none, ngram, self or a model.")] = None,
    json: Json = False,
) -> None:
    """How a model would run on this machine, and why; nothing is loaded."""
    terminal = open_terminal()
    with outcome(terminal):
        from localspec import config, manage, obtain
        from localspec.loading import budget

        given = {"ctx": ctx, "kv_type": kv_type, "gpu_layers": gpu_layers, "draft": draft, "model": name}
        settings = config.load(given)
        known = manage.know(settings.model or str(obtain.default_model(terminal, *budget())), terminal)
        found = manage.plan_for(known, settings, vram, terminal)
        show(terminal, manage.plan_dict(found) if json else found.why, as_json=json)


def doctor(json: Json = False) -> None:
    """What this machine can do, what is wrong, and one fix for each."""
    terminal = open_terminal()
    with outcome(terminal):
        from localspec import config
        from localspec import doctor as doctor_

        report = doctor_.examine()
        findings = doctor_.diagnose(report, config.load({}))
        told = {**report.as_dict(), "findings": [{"problem": f.problem, "fix": f.fix} for f in findings]}
        show(terminal, told if json else doctor_.lines(report, findings), as_json=json)
