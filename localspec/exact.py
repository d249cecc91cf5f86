"""`--exact`: the cache type, flash attention and widths under which passes of a model are proven exact."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.config import Settings
from localspec.engine.cost import LADDER
from localspec.engine.exactness import Setup
from localspec.engine.exactness import candidates as exact_setups
from localspec.engine.proven import LEAST_CONTEXT, PLAIN, Proof, search
from localspec.errors import LocalspecError, UsageError
from localspec.learned import Learned
from localspec.llama import devices
from localspec.llama.library import CancelFlag
from localspec.llama.model import LlamaModel, LoadOptions
from localspec.loading import Hear, Machine, conditions_of, load_options, make_plan, open_model
from localspec.models.facts import ModelFacts


def exact_settings(
    settings: Settings,
    path: Path,
    facts: ModelFacts,
    machine: Machine,
    learned: Learned,
    cancel: CancelFlag,
    hear: Hear,
) -> tuple[Settings, tuple[int, ...]]:
    """The settings with a cache type under which passes are exact, and their widths; (1,): none but single
    ones. What was proven is remembered. Who asks for a cache type gets no other."""
    if settings.accept == "rejection" and settings.temp > 0:
        raise UsageError(
            "--accept rejection keeps the law, not the text, which is what --exact is for",
            "leave one of the two out",
        )
    if facts.rollback != "any":
        return settings, LADDER  # nothing is guessed anyway
    planned = make_plan(facts, [], settings, machine)
    if planned.n_ctx < LEAST_CONTEXT:
        hear.note(
            f"a context of {planned.n_ctx} tokens is too short to prove anything (it takes {LEAST_CONTEXT}): "
            "nothing is guessed under --exact"
        )
        return settings, PLAIN
    threads = settings.threads or devices.default_threads()
    setups = [
        (kv_type, flash)
        for kv_type, flash in exact_setups(planned.kv_type, settings.flash_attn, threads)
        if settings.kv_type in (None, kv_type) and settings.flash_attn in ("auto", flash)
    ]
    proofs = _Proofs(settings, path, facts, planned.n_ctx, machine, learned, cancel, hear)
    found = search(setups, proofs.known, proofs.open, proofs.keep)
    if found is None:
        hear.note(
            "this model's kernels do not compute the same for several tokens: "
            "nothing is guessed under --exact"
        )
        return settings, PLAIN
    (kv_type, flash_attn), widths = found
    hear.detail(f"exact with a {kv_type} cache and flash attention {flash_attn} at widths {_listed(widths)}")
    return replace(settings, kv_type=kv_type, flash_attn=flash_attn), widths


@dataclass(frozen=True, slots=True)
class _Proofs:
    """The proofs of one model on this machine, as remembered or made now."""

    settings: Settings
    path: Path
    facts: ModelFacts
    n_ctx: int
    machine: Machine
    learned: Learned
    cancel: CancelFlag
    hear: Hear

    def known(self, setup: Setup) -> Proof | None:
        options = self._options(setup)
        return self.learned.proof(conditions_of(options, self.machine)) if options else None

    def open(self, setup: Setup) -> AbstractContextManager[LlamaModel | None]:
        options = self._options(setup)
        if options is None:
            return nullcontext()
        self.hear.note(f"proving which passes are exact with a {setup[0]} cache, once and for all ...")
        return open_model(self.path, options, self.cancel, self.hear)

    def keep(self, setup: Setup, proof: Proof) -> None:
        options = self._options(setup)
        assert options is not None, "it has just been opened"
        self.learned.keep_proof(conditions_of(options, self.machine), proof)
        self.learned.save()

    def _options(self, setup: Setup) -> LoadOptions | None:
        """As the model would be loaded, None where that does not fit or a cache type does not suit it."""
        settings = replace(self.settings, kv_type=setup[0], flash_attn=setup[1])
        try:
            found = make_plan(self.facts, [], settings, self.machine)
        except LocalspecError:
            return None
        return load_options(found, settings) if found.n_ctx == self.n_ctx else None


def _listed(widths: Sequence[int]) -> str:
    return ", ".join(map(str, widths))
