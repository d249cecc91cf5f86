"""This machine, the plan for a model on it, and loading it. Imports llama_cpp."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.config import Settings
from localspec.engine.types import Device, Sampling
from localspec.errors import UsageError
from localspec.llama import devices, quantize
from localspec.llama.devices import Memory, api_version
from localspec.llama.library import CancelFlag
from localspec.llama.model import LlamaModel, LoadOptions
from localspec.models.candidates import self_draft_folder
from localspec.models.facts import ModelFacts, low_bit
from localspec.models.memory import HOST, n_units
from localspec.models.pairs import (
    WORTH_OFFERING,
    SelfDraft,
    check_vocabulary,
    self_draft_offer,
    self_draft_path,
    typical_widths,
)
from localspec.models.plan import Draft, Host, Plan, Wishes, plan
from localspec.policy import AUTO, draft_names

COPIES = ("q4_0", "q2_k")
"""Kinds of low-bit copies to choose from: the fastest pass on most machines, and the fewest bits."""


@dataclass(frozen=True, slots=True)
class Hear:
    """Who hears what while a model is opened: remarks, details, and progress that passes."""

    note: Callable[[str], None] = lambda _: None
    detail: Callable[[str], None] = lambda _: None
    progress: Callable[[str], None] = lambda _: None


SILENT = Hear()


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


def make_plan(facts: ModelFacts, drafts: Sequence[Draft], settings: Settings, machine: Machine) -> Plan:
    """The plan for `facts` on `machine` under the user's settings."""
    if settings.flash_attn == "off" and (settings.kv_type or "").startswith("q"):
        raise UsageError(
            f"a {settings.kv_type} KV cache needs flash attention",
            "leave --flash-attn at auto, or --kv-type f16",
        )
    names = draft_names(settings.draft)
    wishes = Wishes(
        n_ctx=settings.ctx,
        gpu_layers=settings.gpu_layers,
        kv_type=settings.kv_type,
        draft=names != [],
        ngram=AUTO in names or "ngram" in names,
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


def sampling_of(settings: Settings) -> Sampling:
    return Sampling(
        temperature=settings.temp,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        repeat_penalty=settings.repeat_penalty,
        presence_penalty=settings.presence_penalty,
        seed=secrets.randbits(32) if settings.seed is None else settings.seed,
    )


def load_options(found: Plan, settings: Settings) -> LoadOptions:
    return LoadOptions(
        n_ctx=found.n_ctx,
        threads=settings.threads or devices.default_threads(),
        gpu_layers=found.layers_gpu,
        kv_type=found.kv_type,
        flash_attn=settings.flash_attn,
        split=tuple(float(n) for n in found.split.values()),
    )


def conditions_of(options: LoadOptions, machine: Machine) -> str:
    """All that the cost of a pass depends on besides the file."""
    used = [d.name for d in machine.devices if options.gpu_layers or d.kind == "cpu"]
    layers = "" if options.gpu_layers == 0 else f" layers {options.gpu_layers}"
    return (
        f"{api_version()} {'+'.join(used)}{layers} threads {options.threads} kv {options.kv_type} "
        f"flash {options.flash_attn}"
    )


def open_model(path: Path, options: LoadOptions, cancel: CancelFlag, hear: Hear) -> LlamaModel:
    model = LlamaModel(
        path,
        options,
        cancel=cancel,
        on_notice=hear.note,
        on_load=lambda share: hear.progress(f"loading {path.name}: {100 * share:.0f} %"),
    )
    hear.progress("")
    return model


def open_draft(
    path: Path, target: LlamaModel, found: Plan, settings: Settings, cancel: CancelFlag, hear: Hear
) -> LlamaModel:
    """The draft model, wholly on the first GPU if any is used; refused if its vocabulary differs."""
    options = replace(
        load_options(found, settings),
        n_ctx=target.n_ctx,
        kv_type="f16",
        gpu_layers=-1 if found.layers_gpu else 0,
        split=(1.0,) if found.split else (),
    )
    draft = open_model(path, options, cancel, hear)
    try:
        check_vocabulary(target.vocab, draft.vocab)
    except BaseException:
        draft.close()
        raise
    return draft


def compare(found: Plan, target: LlamaModel, hear: Hear) -> None:
    """Warn where llama.cpp took over 10 % (and 16 MiB) more or less than was planned."""
    partly = 0 < found.layers_gpu < n_units(found.target)
    for name, took in target.bytes_by_device.items():
        if partly and name == HOST:
            continue  # a mapped file is reported as a range, which takes in what went to the GPU
        need = found.needs.get(name)
        planned = need.weights + need.cache + need.compute if need else 0
        if abs(took - planned) > max(16 * 2**20, 0.1 * max(took, planned)):
            hear.note(f"{name} took {took / 2**20:.0f} MiB where {planned / 2**20:.0f} were planned")
