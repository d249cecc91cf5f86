"""`localspec models ...` and `localspec plan`: what there is, what fits, what could guess for what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localspec import config, obtain
from localspec.config import Settings
from localspec.engine.types import Device
from localspec.errors import BadModelFile, LocalspecError, ModelNotFound, UsageError
from localspec.guessers import checked
from localspec.llama.devices import Memory
from localspec.loading import Machine, make_plan, self_draft
from localspec.models import catalog, hub
from localspec.models.candidates import candidates, self_draft_folder
from localspec.models.catalog import Entry
from localspec.models.facts import ModelFacts, read_model
from localspec.models.find import check_file
from localspec.models.names import PathRef, shard_names
from localspec.models.pairs import WORTH_OFFERING, Candidate, rank_drafts, self_drafts, typical_widths
from localspec.models.plan import Draft, Plan
from localspec.models.reasons import gib
from localspec.policy import AUTO, SELF, draft_model, draft_names
from localspec.ui.terminal import Terminal


def rows() -> list[dict[str, Any]]:
    """Every catalogue model and every other one in our own folder, as `models list` shows them."""
    entries = catalog.load()
    listed = [_row(entry) for entry in entries.values()]
    known = {part for row in listed if row["path"] for part in _whole_set(Path(row["path"]))}
    here = [path for path in sorted(config.models_folder().rglob("*.gguf")) if path.is_file()]
    others = [path for path in here if path not in known and path == _whole_set(path)[0]]
    return [
        *listed,
        *({"name": str(path), "path": str(path), "bytes_here": _bytes_here(path)} for path in others),
    ]


def _whole_set(path: Path) -> list[Path]:
    """Every shard of the model that `path` belongs to."""
    return [path.with_name(name) for name in shard_names(path.name)]


def _bytes_here(path: Path) -> int:
    return sum(part.stat().st_size for part in _whole_set(path) if part.is_file())


def _row(entry: Entry) -> dict[str, Any]:
    path = obtain.local_file(entry)
    return {
        "name": entry.name,
        "repo": entry.repo,
        "parameters": entry.parameters,
        "active": entry.active,
        "context": entry.context,
        "memory_class_gib": entry.memory_class,
        "licence": entry.licence,
        "gated": entry.gated,
        "good_for": list(entry.good_for),
        "draft": entry.draft,
        "path": str(path) if path else None,
        "bytes_here": _bytes_here(path) if path else None,
    }


def list_lines(table: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """`models list` for people."""
    yield f"{'name':<24} {'10^9':>6} {'context':>8} {'memory':>7}  {'licence':<14} here"
    for row in table:
        if "repo" not in row:
            yield f"{row['name']}  {gib(row['bytes_here'])}"
            continue
        size = f"{row['parameters']:g}" if row["parameters"] else "?"
        memory = f"{row['memory_class_gib']} GB" if row["memory_class_gib"] else "?"
        here = gib(row["bytes_here"]) if row["path"] else ""
        context = row["context"] or "?"
        licence = row["licence"][:14]
        yield f"{row['name']:<24} {size:>6} {context:>8} {memory:>7}  {licence:<14} {here}".rstrip()


@dataclass(frozen=True, slots=True)
class Known:
    """A model whose header was read: `path` None if only its header was fetched."""

    name: str
    facts: ModelFacts
    path: Path | None
    entry: Entry | None


def know(name: str, terminal: Terminal) -> Known:
    """The facts of a model, read here or, without fetching the weights, from the Hub."""
    ref = obtain.read_name(name)
    if isinstance(ref, PathRef):
        path = check_file(ref.path)
        return Known(name, read_model(path), path, None)
    wanted = obtain.resolve(ref, catalog.load())
    found = hub.find_local(wanted.repo, wanted.file)
    if found:
        return Known(name, read_model(check_file(found)), found, wanted.entry)
    terminal.progress(f"reading the header of {wanted.repo} ...")
    facts = obtain.remote_facts(hub.look_up(wanted.repo, wanted.file))
    terminal.progress("")
    return Known(name, facts, None, wanted.entry)


def info(known: Known) -> dict[str, Any]:
    """What `models info` tells."""
    facts = known.facts
    told: dict[str, Any] = {
        "name": known.name,
        "path": str(known.path) if known.path else None,
        "architecture": facts.architecture,
        "bytes": facts.bytes_file,
        "parameters": facts.n_parameters,
        "bits_per_weight": round(facts.bits_per_weight, 2),
        "layers": facts.n_layers,
        "context": facts.n_ctx_train,
        "vocabulary": facts.n_vocab,
        "bytes_cache_8k_f16": sum(facts.bytes_cache(8192)),
        "experts": list(facts.experts),
        "window": facts.window,
        "recurrence": facts.recurrence,
        "rollback": facts.rollback,
        "head": facts.head,
        "mtp_inside": facts.mtp_inside,
        "embedding_only": facts.embedding_only,
        "fingerprint": facts.fingerprint,
        "self_drafts": [str(path) for path in _copies(facts)],
    }
    if known.entry:
        told["catalogue"] = asdict(known.entry)
    return told


def remove(name: str) -> list[Path]:
    """Delete what localspec keeps of a model: its download and its low-bit copies. Returns what went.

    Files elsewhere (a path of the user's, the Hugging Face cache) are never deleted.
    """
    ref = obtain.read_name(name)
    if isinstance(ref, PathRef):
        path = check_file(ref.path)
        gone = _copies(read_model(path))
    else:
        wanted = obtain.resolve(ref, catalog.load())
        found = hub.find_local(wanted.repo, wanted.file)
        if found is None:
            raise ModelNotFound(f"{name} is not on this machine", "`localspec models list` shows what is")
        path = found
        try:
            copies = _copies(read_model(path))
        except BadModelFile:  # a damaged download has no copies, and must go too
            copies = []
        gone = [*copies, *_own_files(path)]
    if not gone:
        raise UsageError(f"{path} is not localspec's to delete", "delete the file yourself")
    for file in gone:
        file.unlink(missing_ok=True)
    return gone


def _own_files(path: Path) -> list[Path]:
    """The files of the set `path` belongs to, if localspec downloaded it."""
    if not path.is_relative_to(config.models_folder()):
        return []
    return _whole_set(path)


def _copies(facts: ModelFacts) -> list[Path]:
    return self_drafts(self_draft_folder(), facts.fingerprint) if facts.fingerprint else []


def drafts_for(known: Known, temperature: float, terminal: Terminal) -> list[dict[str, Any]]:
    """What could guess for a model, best first: recommended and local smaller models, and a low-bit copy."""
    if known.facts.rollback != "any":
        terminal.note("nothing can be guessed for it: its state cannot be taken back")
        return []
    machine = Machine.here()
    widths = typical_widths(machine.kind, known.facts.bits_per_weight)
    models = list(_smaller_models(known, terminal))
    ranked = rank_drafts(_candidate(known.name, known.facts), models, widths, temperature)
    told = [
        {
            "draft": pairing.candidate.name,
            "fits": pairing.fits,
            "expected": round(pairing.expected.factor, 2),
            "why": pairing.why,
        }
        for pairing in ranked
    ]
    copy = self_draft(known.path, known.facts, machine, temperature) if known.path else None
    if copy:
        offer, facts = copy
        why = f"a {offer.kind} copy of itself, {gib(facts.bytes_file)}: `--draft self` makes it"
        told.insert(
            0, {"draft": "self", "fits": True, "expected": round(offer.expected.factor, 2), "why": why}
        )
    if not told:
        terminal.note("no smaller model is known for it here; repetitions are guessed all the same")
    return told


def _smaller_models(known: Known, terminal: Terminal) -> Iterator[Candidate]:
    """The recommended draft, wherever it is, and the drafts of the catalogue that are here."""
    entries = catalog.load()
    recommended = known.entry.draft if known.entry else None
    for entry in entries.values():
        path = obtain.local_file(entry)
        if entry.name != recommended and (path is None or "draft" not in entry.good_for):
            continue
        try:
            facts = read_model(path) if path else know(entry.name, terminal).facts
        except LocalspecError as error:
            terminal.note(f"{entry.name} is left out: {error.message}")
            continue
        if facts.n_parameters < known.facts.n_parameters:
            yield _candidate(entry.name, facts)


def _candidate(name: str, facts: ModelFacts) -> Candidate:
    unfit = (
        "a head, not a model" if facts.head else "" if facts.rollback == "any" else "its state cannot be cut"
    )
    return Candidate(name, facts.n_parameters, facts.weights.active, facts.vocabulary, unfit)


def plan_for(known: Known, settings: Settings, vram: str | None, terminal: Terminal) -> Plan:
    """The plan for a model, on this machine or on one with a single GPU of `vram` bytes."""
    machine = with_gpu(config.parse_size(vram, "--vram")) if vram else Machine.here()
    return make_plan(known.facts, _drafts(known, settings, machine, terminal), settings, machine)


def _drafts(known: Known, settings: Settings, machine: Machine, terminal: Terminal) -> list[Draft]:
    """What may guess besides the text: the draft that is named, or all that is here or could be made."""
    names, named = draft_names(settings.draft), draft_model(settings.draft)
    if named:
        found = know(named, terminal)
        name = found.path.stem if found.path else found.name
        return [checked(Draft("model", name, found.facts, asked=True, path=found.path), known.facts)]
    drafts = candidates(known.path, known.facts, catalog.load()) if AUTO in names and known.path else []
    wanted = SELF in names or (AUTO in names and not any(draft.kind == "self" for draft in drafts))
    if known.path and wanted:
        least = 0.0 if SELF in names else WORTH_OFFERING
        copy = self_draft(known.path, known.facts, machine, settings.temp, least=least)
        if copy:
            offer, facts = copy
            gain = offer.expected.factor
            drafts.append(Draft("self", f"self ({offer.kind})", facts, gain=gain, asked=SELF in names))
    return drafts


def with_gpu(bytes_vram: int) -> Machine:
    """This machine as if it had one GPU of that size, all of it free."""
    here = Machine.here()
    gpu = Device("GPU0", "what if", "gpu", bytes_vram, bytes_vram)
    return Machine(
        (gpu, *(d for d in here.devices if d.kind == "cpu")), Memory(here.memory.total, here.memory.free)
    )


def plan_dict(found: Plan) -> dict[str, Any]:
    """The plan as JSON."""
    return {
        "model": found.target.name,
        "layers_gpu": found.layers_gpu,
        "n_ctx": found.n_ctx,
        "kv_type": found.kv_type,
        "sources": list(found.sources),
        "bytes_by_device": dict(found.bytes_by_device),
        "split": dict(found.split),
        "why": list(found.why),
    }
