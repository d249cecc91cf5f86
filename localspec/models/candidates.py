"""What could guess for a model, among what is on this machine: heads, smaller models, low-bit copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from localspec import config
from localspec.errors import LocalspecError
from localspec.models import hub
from localspec.models.catalog import Entry
from localspec.models.facts import ModelFacts, read_model
from localspec.models.pairs import check_vocabulary, self_drafts
from localspec.models.plan import Draft, Kind


def entry_of(path: Path, entries: Mapping[str, Entry]) -> Entry | None:
    """The catalogue entry that lists a file of this name."""
    return next(
        (entry for entry in entries.values() if any(Path(f.file).name == path.name for f in entry.files)),
        None,
    )


def candidates(path: Path, facts: ModelFacts, entries: Mapping[str, Entry]) -> list[Draft]:
    """Drafts and heads for the model at `path` that need no download; unreadable files are left out."""
    found = [Draft("head inside", "mtp", facts)] if facts.mtp_inside else []
    for kind, file in _files(path, facts, entries):
        try:
            draft = Draft(kind, file.stem, read_model(file), path=file)
            if kind != "head file" and facts.vocabulary and draft.facts.vocabulary:
                check_vocabulary(facts.vocabulary, draft.facts.vocabulary)
        except LocalspecError:
            continue
        found.append(draft)
    return found


def _files(path: Path, facts: ModelFacts, entries: Mapping[str, Entry]) -> Iterator[tuple[Kind, Path]]:
    entry = entry_of(path, entries)
    if entry and entry.draft:
        draft = entries[entry.draft]
        yield from (("model", file) for f in draft.files if (file := hub.find_local(draft.repo, f.file)))
    for head in entry.heads if entry else ():
        if file := hub.find_local(head.repo, head.file):
            yield "head file", file
    for copy in self_drafts(self_draft_folder(), facts.fingerprint):
        if copy.suffix == ".gguf":
            yield "self", copy


def self_draft_folder() -> Path:
    """Where low-bit copies are kept: they can be made again."""
    return config.cache_folder() / "self-drafts"
