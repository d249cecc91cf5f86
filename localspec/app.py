"""The composition root: Settings and a file become a plan, a loaded target, its sources and a Generator.

The one place that joins `llama`, `models`, `drafters` and `engine`. Importing it imports llama_cpp.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from localspec.config import Settings
from localspec.drafters import NAMED, ModelDrafter
from localspec.engine.cost import LADDER
from localspec.engine.exactness import Setup
from localspec.engine.exactness import candidates as exact_setups
from localspec.engine.generate import Generator
from localspec.engine.proven import LEAST_CONTEXT, PLAIN, Proof, ProvenOnly, search
from localspec.engine.sampling import RandomDice, Sampler
from localspec.engine.schedule import Scheduler
from localspec.engine.types import Device, Policy, Sampling
from localspec.errors import BadModelFile, LocalspecError, UsageError
from localspec.learned import Learned
from localspec.llama import devices, quantize
from localspec.llama.devices import Memory, api_version
from localspec.llama.library import CancelFlag
from localspec.llama.model import LlamaModel, LoadOptions
from localspec.models import catalog
from localspec.models.candidates import candidates, self_draft_folder
from localspec.models.facts import ModelFacts, low_bit, read_model
from localspec.models.memory import HOST, n_units
from localspec.models.pairs import (
    WORTH_OFFERING,
    SelfDraft,
    check_vocabulary,
    copy_acceptance,
    draft_acceptance,
    self_draft_offer,
    self_draft_path,
    typical_widths,
)
from localspec.models.plan import Draft, Host, Kind, Plan, Wishes, plan
from localspec.policy import AUTO, SELF, DraftModel, draft_names, fixed, measure, remember, scheduler

COPIES = ("q4_0", "q2_k")
"""Kinds of low-bit copies to choose from: the fastest pass on most machines, and the fewest bits."""


@dataclass(frozen=True, slots=True)
class Hear:
    """Who hears what while a model is opened: remarks, details, and progress that passes."""

    note: Callable[[str], None] = lambda _: None
    detail: Callable[[str], None] = lambda _: None
    progress: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Machine:
    """The devices and the memory to plan for."""

    devices: tuple[Device, ...]
    memory: Memory

    @staticmethod
    def here() -> Machine:
        return Machine(tuple(devices.devices()), devices.host_memory())

    @property
    def kind(self) -> str:
        """Of the device that does most of the work, as `pairs.typical_widths` has it."""
        kinds = {device.kind for device in self.devices}
        return "gpu" if "gpu" in kinds else "igpu" if "igpu" in kinds else "cpu"


def budget() -> tuple[int, float]:
    """Bytes a model may take where it would run, and 10^9 parameters still quick there for a token."""
    machine = Machine.here()
    gpus = [device.bytes_free for device in machine.devices if device.kind in ("gpu", "igpu")]
    return (max(gpus), math.inf) if gpus else (machine.memory.free, 4.0)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A generator that is ready to run, with the models behind it. Close it, or use it in a `with`.

    `settings`: as in force; with `exact` the cache type is the one that was proven.
    """

    settings: Settings
    plan: Plan
    seed: int
    target: LlamaModel
    generator: Generator
    cancel: CancelFlag
    guessers: Guessers
    _stack: ExitStack

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Loaded:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_target(
    settings: Settings,
    path: Path,
    draft: Path | None,
    *,
    cancel: CancelFlag,
    hear: Hear = Hear(),
) -> Loaded:
    """Plan, then load the model at `path` and what may guess for it. `draft`: the file of a draft model.

    Raises NoFit when memory is short whatever is given up, and what a bad file or option deserves.
    """
    names = draft_names(settings.draft)
    facts = read_model(path)
    machine = Machine.here()
    drafts = _drafts(settings, names, path, draft, facts, machine, cancel, hear)
    learned = Learned.of(facts.fingerprint)
    widths: Sequence[int] = LADDER
    if settings.exact:
        settings, widths = _exact(settings, path, facts, machine, learned, cancel, hear)
        names = names if len(widths) > 1 else []
    found = make_plan(facts, drafts, settings, machine)
    for why in found.why:
        hear.detail(why)
    with ExitStack() as failed:
        stack = ExitStack()
        failed.callback(stack.close)
        started = time.perf_counter()
        target = stack.enter_context(_open(path, _load_options(found, settings), cancel, hear))
        seconds_load = time.perf_counter() - started
        _compare(found, target, hear)
        asked = next((draft for draft in drafts if draft.asked), None)
        if asked and not found.draft:
            hear.note(next((why for why in found.why if asked.name in why), f"{asked.name} is left out"))
        if names and not target.can_rewind:
            hear.note("this model's recurrent state cannot be taken back, so nothing is guessed for it")
            names = []
        guessers = Guessers(names, found, target, machine, learned, widths, cancel, hear, seconds_load, stack)
        sampling = _sampling(settings)
        sampler, dice = Sampler(sampling), RandomDice(sampling.seed)
        policy = guessers.policy(settings, sampler, dice)
        if isinstance(policy, Scheduler):
            model = guessers.draft_model(settings, sampler, dice)
            stack.callback(remember, policy, guessers.conditions, model, settings, learned)
        generator = Generator(target, sampler, target.vocab.is_end, policy, dice)
        failed.pop_all()
        return Loaded(settings, found, sampling.seed, target, generator, cancel, guessers, stack)


def _drafts(
    settings: Settings,
    names: Sequence[str],
    path: Path,
    draft: Path | None,
    facts: ModelFacts,
    machine: Machine,
    cancel: CancelFlag,
    hear: Hear,
) -> list[Draft]:
    """What may guess besides the text: the draft the user named, or with `auto` all that is here."""
    if AUTO in names:
        return candidates(path, facts, catalog.load()) if facts.rollback == "any" else []
    if SELF in names and facts.rollback == "any":
        draft = make_self_draft(path, facts, machine, settings, cancel=cancel, hear=hear)
    return [_asked_draft("self" if SELF in names else "model", draft, facts)] if draft else []


@dataclass(slots=True)
class Guessers:
    """What may guess for a loaded target, and the policies that let it.

    `names`: the sources, none if nothing may guess; `widths`: those that passes may have. The draft model is
    loaded when it is first asked for, and once.
    """

    names: Sequence[str]
    plan: Plan
    target: LlamaModel
    machine: Machine
    learned: Learned
    widths: Sequence[int]
    cancel: CancelFlag
    hear: Hear
    seconds_load: float
    _stack: ExitStack
    _draft: LlamaModel | None = field(default=None, init=False)

    @property
    def conditions(self) -> str:
        return _conditions(self.target.options, self.machine)

    @property
    def free(self) -> list[str]:
        """The sources that need no model."""
        return list(NAMED) if AUTO in self.names else [name for name in self.names if name in NAMED]

    @property
    def draft(self) -> Draft | None:
        """The planned draft model, if it may guess."""
        draft = self.plan.draft
        return draft if self.names and draft and draft.path and self.target.can_rewind else None

    def policy(self, settings: Settings, sampler: Sampler, dice: RandomDice) -> Policy:
        """The scheduler, or fixed lengths if the user pinned one."""
        model = self.draft_model(settings, sampler, dice)
        names = self.free if AUTO in self.names else self.names
        if not names or settings.draft_len:
            return self.within(fixed(names, model, settings.draft_len or 1))
        self.hear.progress("measuring what passes cost here ...")
        measured = measure(self.target, self.conditions, self.learned, self.widths)
        self.hear.progress("")
        if measured.fresh:
            known = measured.costs.known()
            dear = " ".join(f"{n}:{seconds / known[1]:.2f}" for n, seconds in known.items())
            self.hear.detail(f"measured passes in {measured.fresh:.1f} s, by tokens, against one: {dear}")

        def failed(error: Exception) -> None:
            self.hear.note(f"the draft model is left out: {error}")

        piece = self.target.vocab.piece
        return scheduler(settings, names, model, measured.costs, self.learned, piece, failed)

    def within(self, policy: Policy) -> Policy:
        """`policy`, kept to the proven widths if that is asked for."""
        return policy if self.widths is LADDER else ProvenOnly(policy, self.widths)

    def draft_model(self, settings: Settings, sampler: Sampler, dice: RandomDice) -> DraftModel | None:
        """The draft as the scheduler sees it, not yet loaded."""
        draft = self.draft
        if draft is None:
            return None
        target = self.plan.target
        share = draft.facts.weights.active / max(1, target.weights.active)
        size = draft.facts.n_parameters / max(1, target.n_parameters)
        right = (
            copy_acceptance(draft.facts.bits_per_weight, target.n_parameters, settings.temp)
            if draft.kind == "self"
            else draft_acceptance(size, settings.temp)
        )
        seconds = self.seconds_load * draft.facts.bytes_file / max(1, target.bytes_file)
        return DraftModel(
            draft.facts.fingerprint[:16], lambda: self.drafter(settings, sampler, dice), seconds, share, right
        )

    def drafter(self, settings: Settings, sampler: Sampler, dice: RandomDice) -> ModelDrafter:
        """The draft model as a source of guesses for `sampler`. Loads it; there must be a `draft`."""
        draft, target = self.draft, self.target
        assert draft, "nobody asks for a draft that is not there"
        assert draft.path
        if self._draft is None:
            opened = _open_draft(draft.path, target, self.plan, settings, self.cancel, self.hear)
            self._draft = self._stack.enter_context(opened)
        drawn = settings.accept == "rejection" and sampler.sampling.temperature > 0
        return ModelDrafter(
            "draft", self._draft, sampler, target.n_vocab, target.vocab.is_end, dice if drawn else None
        )


def _conditions(options: LoadOptions, machine: Machine) -> str:
    """All that the cost of a pass depends on besides the file."""
    used = [d.name for d in machine.devices if options.gpu_layers or d.kind == "cpu"]
    layers = "" if options.gpu_layers == 0 else f" layers {options.gpu_layers}"
    return (
        f"{api_version()} {'+'.join(used)}{layers} threads {options.threads} kv {options.kv_type} "
        f"flash {options.flash_attn}"
    )


def _exact(
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
        return self.learned.proof(_conditions(options, self.machine)) if options else None

    def open(self, setup: Setup) -> AbstractContextManager[LlamaModel | None]:
        options = self._options(setup)
        if options is None:
            return nullcontext()
        self.hear.note(f"proving which passes are exact with a {setup[0]} cache, once and for all ...")
        return _open(self.path, options, self.cancel, self.hear)

    def keep(self, setup: Setup, proof: Proof) -> None:
        options = self._options(setup)
        assert options is not None, "it has just been opened"
        self.learned.keep_proof(_conditions(options, self.machine), proof)
        self.learned.save()

    def _options(self, setup: Setup) -> LoadOptions | None:
        """As the model would be loaded, None where that does not fit or a cache type does not suit it."""
        settings = replace(self.settings, kv_type=setup[0], flash_attn=setup[1])
        try:
            found = make_plan(self.facts, [], settings, self.machine)
        except LocalspecError:
            return None
        return _load_options(found, settings) if found.n_ctx == self.n_ctx else None


def _listed(widths: Sequence[int]) -> str:
    return ", ".join(map(str, widths))


def _asked_draft(kind: Kind, path: Path, target: ModelFacts) -> Draft:
    """The draft the user named; refused if this version cannot let it guess, or its vocabulary differs."""
    draft = Draft(kind, path.stem, read_model(path), asked=True, path=path)
    if not draft.can_run:
        what = (
            f"the {draft.facts.head} head of another model" if draft.facts.head else "no model that can draft"
        )
        raise BadModelFile(
            f"{path.name} is {what}: a draft must be able to take back a wrong guess",
            "take an attention-only model as draft, or --draft ngram",
        )
    if target.vocabulary and draft.facts.vocabulary:
        check_vocabulary(target.vocabulary, draft.facts.vocabulary)
    return draft


def make_plan(facts: ModelFacts, drafts: Sequence[Draft], settings: Settings, machine: Machine) -> Plan:
    """The plan for `facts` on `machine` under the user's settings."""
    if settings.flash_attn == "off" and (settings.kv_type or "").startswith("q"):
        raise UsageError(
            f"a {settings.kv_type} KV cache needs flash attention",
            "leave --flash-attn at auto, or --kv-type f16",
        )
    wishes = Wishes(
        n_ctx=settings.ctx,
        gpu_layers=settings.gpu_layers,
        kv_type=settings.kv_type,
        draft=draft_names(settings.draft) != [],
        flash=settings.flash_attn != "off",
    )
    host = Host(machine.memory.free, machine.memory.total)
    return plan(facts, drafts, devices=machine.devices, host=host, wishes=wishes)


def self_draft(
    path: Path,
    facts: ModelFacts,
    machine: Machine,
    temperature: float,
    *,
    least: float = WORTH_OFFERING,
) -> tuple[SelfDraft, ModelFacts] | None:
    """The low-bit copy of the model at `path` worth making, and what it would be. None: it would not pay.

    `least`: the expected factor from which on it counts as worth it.
    """
    copies = {kind: quantize.planned_size(path, kind) for kind in COPIES}
    sizes = next(iter(copies.values()))
    offer = self_draft_offer(
        sizes.bits_source,
        facts.n_parameters,
        {kind: size.bits for kind, size in copies.items()},
        typical_widths(machine.kind, sizes.bits_source),
        temperature=temperature,
        least=least,
    )
    return (offer, low_bit(facts, offer.bits)) if offer else None


def make_self_draft(
    path: Path, facts: ModelFacts, machine: Machine, settings: Settings, *, cancel: CancelFlag, hear: Hear
) -> Path:
    """The low-bit copy of the model at `path`, made now if it is not in the cache."""
    chosen = self_draft(path, facts, machine, settings.temp, least=0.0)
    assert chosen is not None, "some copy is the best one"
    offer, _ = chosen
    if offer.expected.draft_len == 0:
        hear.note(f"a {offer.kind} copy is not expected to speed this model up here")
    else:
        hear.detail(f"a {offer.kind} copy is expected to make it {offer.expected.factor:.1f} times as fast")
    return quantize.quantize(
        path,
        self_draft_path(self_draft_folder(), path, facts.fingerprint, offer.kind),
        offer.kind,
        threads=settings.threads or devices.default_threads(),
        cancelled=cancel.is_set,
        on_progress=lambda share: hear.progress(f"making a {offer.kind} copy: {100 * share:.0f} %"),
    )


def _sampling(settings: Settings) -> Sampling:
    return Sampling(
        temperature=settings.temp,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        repeat_penalty=settings.repeat_penalty,
        presence_penalty=settings.presence_penalty,
        seed=secrets.randbits(32) if settings.seed is None else settings.seed,
    )


def _load_options(found: Plan, settings: Settings) -> LoadOptions:
    return LoadOptions(
        n_ctx=found.n_ctx,
        threads=settings.threads or devices.default_threads(),
        gpu_layers=found.layers_gpu,
        kv_type=found.kv_type,
        flash_attn=settings.flash_attn,
        split=tuple(float(n) for n in found.split.values()),
    )


def _open(path: Path, options: LoadOptions, cancel: CancelFlag, hear: Hear) -> LlamaModel:
    model = LlamaModel(
        path,
        options,
        cancel=cancel,
        on_notice=hear.note,
        on_load=lambda share: hear.progress(f"loading {path.name}: {100 * share:.0f} %"),
    )
    hear.progress("")
    return model


def _open_draft(
    path: Path, target: LlamaModel, found: Plan, settings: Settings, cancel: CancelFlag, hear: Hear
) -> LlamaModel:
    """The draft model, wholly on the first GPU if any is used; refused if its vocabulary differs."""
    options = replace(
        _load_options(found, settings),
        n_ctx=target.n_ctx,
        kv_type="f16",
        gpu_layers=-1 if found.layers_gpu else 0,
        split=(1.0,) if found.split else (),
    )
    draft = _open(path, options, cancel, hear)
    try:
        check_vocabulary(target.vocab, draft.vocab)
    except BaseException:
        draft.close()
        raise
    return draft


def _compare(found: Plan, target: LlamaModel, hear: Hear) -> None:
    """Warn where llama.cpp took over 10 % (and 16 MiB) more or less than was planned."""
    partly = 0 < found.layers_gpu < n_units(found.target)
    for name, took in target.bytes_by_device.items():
        if partly and name == HOST:
            continue  # a mapped file is reported as a range, which takes in what went to the GPU
        need = found.needs.get(name)
        planned = need.weights + need.cache + need.compute if need else 0
        if abs(took - planned) > max(16 * 2**20, 0.1 * max(took, planned)):
            hear.note(f"{name} took {took / 2**20:.0f} MiB where {planned / 2**20:.0f} were planned")
