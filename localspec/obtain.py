"""From what the user calls a model to a file on this machine: found, or fetched after asking.

The one place where commands may cause a download. Nothing is fetched without a yes: asked for on a
terminal, given by --yes, or said by the command itself (`localspec models pull`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.config import Settings
from localspec.errors import BadModelFile, DownloadError, ModelNotFound
from localspec.loading import Machine, make_plan
from localspec.models import catalog, hub
from localspec.models.catalog import Entry
from localspec.models.facts import ModelFacts, model_facts
from localspec.models.find import check_file, packaged_model
from localspec.models.gguf import read_header
from localspec.models.names import CatalogRef, HubRef, PathRef, parse_name
from localspec.ui.terminal import Terminal

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model by repository and file, with its catalogue entry if it has one."""

    name: str
    repo: str
    file: str | None
    entry: Entry | None


def obtain(name: str, terminal: Terminal, *, yes: bool = False) -> Path:
    """The file of the model `name` (catalogue name, org/repo[:QUANT] or path), fetched if need be.

    Raises ModelNotFound when it is not here and nobody said yes, DownloadError when it cannot be fetched.
    """
    ref = read_name(name)
    if isinstance(ref, PathRef):
        return check_file(ref.path)
    wanted = resolve(ref, catalog.load())
    found = hub.find_local(wanted.repo, wanted.file)
    return check_file(found) if found else fetch(wanted, terminal, yes=yes)


def default_model(terminal: Terminal, budget_bytes: int, max_active: float) -> Path:
    """What runs when no model is named: the best one here, the packaged one, or the best for this machine.

    The last is fetched after asking. `budget_bytes` of memory may be used, `max_active` 10^9 parameters a
    token.
    """
    entries = catalog.load()
    cached = best_cached(entries, budget_bytes, max_active)
    if cached:
        entry, path = cached
        terminal.note(f"model: {entry.name} (the best one here; choose another with -m)")
        return path
    packaged = packaged_model()
    if packaged:
        terminal.note(f"model: {packaged.stem} (packaged; choose another with -m)")
        return packaged
    entry_fit = catalog.best_entry(entries, budget_bytes, max_active)
    if entry_fit is None:
        raise ModelNotFound(
            "no model named, none here, and none of the catalogue fits this machine",
            "give a small GGUF with -m FILE.gguf",
        )
    if not terminal.can_ask:
        raise ModelNotFound(
            "no model named and none on this machine",
            f"`localspec models pull {entry_fit.name}` fetches the best for it, "
            "`pip install 'localspec[demo]'` a small one; or give -m FILE.gguf",
        )
    return fetch(resolve(CatalogRef(entry_fit.name), entries), terminal)


def best_cached(
    entries: Mapping[str, Entry], budget_bytes: int, max_active: float
) -> tuple[Entry, Path] | None:
    """The highest ranked catalogue model on this machine that fits, with its file."""
    here = {entry.name: path for entry in entries.values() if (path := local_file(entry))}
    ranked = {name: entry for name, entry in entries.items() if name in here}
    best = catalog.best_entry(ranked, budget_bytes, max_active)
    return (best, here[best.name]) if best else None


def local_file(entry: Entry) -> Path | None:
    """A file of `entry` on this machine, the usual quantisation first."""
    return next((path for f in entry.files if (path := hub.find_local(entry.repo, f.file))), None)


def read_name(name: str) -> CatalogRef | HubRef | PathRef:
    """What `name` means here: a file of that name comes before a catalogue name, and `~` is expanded."""
    ref = parse_name(name)
    if isinstance(ref, CatalogRef) and Path(name).is_file():
        return PathRef(Path(name))
    # Path.expanduser raises on an unknown ~user
    return PathRef(Path(os.path.expanduser(ref.path))) if isinstance(ref, PathRef) else ref


def resolve(ref: CatalogRef | HubRef, entries: Mapping[str, Entry]) -> Wanted:
    """The repository and file that `ref` means."""
    if isinstance(ref, HubRef):
        return Wanted(str(ref), ref.repo, ref.quant, None)
    entry = catalog.find(entries, ref)
    return Wanted(str(ref), entry.repo, entry.wanted(ref.quant), entry)


def fetch(wanted: Wanted, terminal: Terminal, *, yes: bool = False) -> Path:
    """Download `wanted` after saying its size and licence and hearing yes."""
    pull = f"localspec models pull {wanted.name}"
    if not yes and not terminal.can_ask:
        raise ModelNotFound(f"{wanted.name} is not on this machine", f"fetch it with `{pull}`")
    offer = hub.look_up(wanted.repo, wanted.file)
    hub.check(offer)
    licence = offer.licence or (wanted.entry.licence if wanted.entry else "") or "not stated"
    what = f"{offer.repo}/{offer.files[0].path}: {hub.bytes_missing(offer) / GIB:.2f} GiB, licence {licence}"
    if not yes:
        _show_plan(offer, terminal)
    if not yes and not terminal.ask(f"Fetch {what}?"):
        raise ModelNotFound(f"{wanted.name} was not fetched", f"`{pull}` fetches it without asking")
    terminal.note(f"fetching {what}")
    try:
        path = hub.fetch(
            offer,
            on_bytes=lambda done, total: terminal.progress(
                f"{100 * done / max(1, total):.0f} % of {total / GIB:.2f} GiB"
            ),
            note=terminal.note,
        )
    except KeyboardInterrupt:
        terminal.note(f"stopped; `{pull}` goes on where it was")
        raise
    except DownloadError:
        terminal.progress("")
        raise
    terminal.progress("")
    return path


def _show_plan(offer: hub.Offer, terminal: Terminal) -> None:
    """How the model would run here, from its header, before anything is fetched. Raises NoFit."""
    try:
        facts = remote_facts(offer)
    except BadModelFile:
        return  # the fetched file will be refused with the reason
    for why in make_plan(facts, [], Settings(), Machine.here()).why:
        terminal.note(why)


def remote_facts(offer: hub.Offer) -> ModelFacts:
    """Facts from the headers of a model on the Hub, some MiB each; its fingerprint stays unknown."""
    with ExitStack() as stack:
        files = [
            stack.enter_context(hub.remote_header(replace(offer, files=(file,)))) for file in offer.files
        ]
        headers = [
            read_header(file, hub_file.path) for file, hub_file in zip(files, offer.files, strict=True)
        ]
        return model_facts(headers, lambda: hub.remote_header(offer))
