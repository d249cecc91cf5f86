"""The composition root: Settings and a file become a plan, a loaded target, its sources and a Generator.

The one place that joins `llama`, `models`, `drafters` and `engine`. Importing it imports llama_cpp.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.config import Settings
from localspec.drafters import NAMED, ModelDrafter, model_source
from localspec.engine.generate import Generator
from localspec.engine.sampling import RandomDice, Sampler
from localspec.engine.types import Device, Sampling, Source
from localspec.errors import BadModelFile, UsageError
from localspec.llama import devices, quantize
from localspec.llama.devices import Memory
from localspec.llama.library import CancelFlag
from localspec.llama.model import LlamaModel, LoadOptions
from localspec.models.candidates import self_draft_folder
from localspec.models.facts import ModelFacts, low_bit, read_model
from localspec.models.memory import HOST, n_units
from localspec.models.pairs import (
    WORTH_OFFERING,
    SelfDraft,
    check_vocabulary,
    self_draft_offer,
    self_draft_path,
    typical_widths,
)
from localspec.models.plan import Draft, Host, Kind, Plan, Wishes, plan

SELF = "self"
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
    """A generator that is ready to run, with the models behind it. Close it, or use it in a `with`."""

    settings: Settings
    plan: Plan
    seed: int
    target: LlamaModel
    generator: Generator
    cancel: CancelFlag
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
    if SELF in names and facts.rollback == "any":
        draft = make_self_draft(path, facts, machine, settings, cancel=cancel, hear=hear)
    asked = _asked_draft("self" if SELF in names else "model", draft) if draft else None
    found = make_plan(facts, [asked] if asked else [], settings, machine)
    for why in found.why:
        hear.detail(why)
    with ExitStack() as stack:
        target = stack.enter_context(_open(path, _load_options(found, settings), cancel, hear))
        _compare(found, target, hear)
        sampling = _sampling(settings)
        sampler, dice = Sampler(sampling), RandomDice(sampling.seed)
        sources: list[Source] = []
        for name in names if target.can_rewind else []:
            if name in NAMED:
                sources.append(NAMED[name](settings.draft_len))
            elif found.draft and draft:
                model = stack.enter_context(_open_draft(draft, target, found, settings, cancel, hear))
                drafter = ModelDrafter(
                    name="draft",
                    model=model,
                    sampler=sampler,
                    n_vocab=target.n_vocab,
                    is_end=target.vocab.is_end,
                    dice=dice if settings.accept == "rejection" and sampling.temperature > 0 else None,
                )
                sources.append(model_source(drafter, settings.draft_len))
        if asked and not found.draft:
            hear.note(next((why for why in found.why if asked.name in why), f"{asked.name} is left out"))
        if names and not target.can_rewind:
            hear.note("this model's recurrent state cannot be taken back, so nothing is guessed for it")
        generator = Generator(target, sampler, target.vocab.is_end, tuple(sources), dice)
        return Loaded(settings, found, sampling.seed, target, generator, cancel, stack.pop_all())


def _asked_draft(kind: Kind, path: Path) -> Draft:
    """The draft the user named; refused if this version cannot let it guess."""
    draft = Draft(kind, path.stem, read_model(path), asked=True)
    if not draft.can_run:
        what = (
            f"the {draft.facts.head} head of another model" if draft.facts.head else "no model that can draft"
        )
        raise BadModelFile(
            f"{path.name} is {what}: a draft must be able to take back a wrong guess",
            "take an attention-only model as draft, or --draft ngram",
        )
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


def draft_names(text: str) -> list[str]:
    """The sources `--draft` allows, in order; [] for `none`. Raises UsageError for anything contradictory."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if text.strip().isdigit():
        raise UsageError(f"--draft {text} names no source", f"did you mean --draft-len {text.strip()}?")
    if not names or ("none" in names and len(names) > 1) or len(set(names)) < len(names):
        known = ", ".join([*NAMED, SELF])
        raise UsageError(f"--draft {text!r}", f"give none, or a list of different sources: {known}, a model")
    if len([name for name in names if name not in NAMED]) > 1:
        raise UsageError("--draft names several models", "one draft model at most")
    return [] if names == ["none"] else names


def draft_model(text: str) -> str | None:
    """The model that `--draft` names, if it names one."""
    return next((name for name in draft_names(text) if name not in NAMED and name != SELF), None)


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
