"""What fits: a model's facts, this machine's memory and the user's wishes become a Plan, or NoFit.

Pure. The settings that could be used stand on a ladder, best first, and the first that fits is the plan: more
memory can only move it up. Each rung gives up one thing more, and nothing comes back further down:

    1  the separate draft    best expected gain first, then none
    2  context               only if the user asked for none: 8192 tokens, then 6144, then 4096
    3  the cache in F16      q8_0 instead, which needs flash attention
    4  layers on the GPU     one less at a time

MARGIN of each device's memory is left alone: driver pools, other programs, what the estimate misses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from localspec.engine.types import Device
from localspec.errors import BadModelFile, NoFit, UsageError
from localspec.models.facts import ModelFacts
from localspec.models.memory import HOST, Context, Need, Placement, n_units, place, place_head
from localspec.models.pairs import (
    WORTH_OFFERING,
    copy_acceptance,
    draft_acceptance,
    expected_factor,
    typical_widths,
)
from localspec.models.reasons import Asked, explain, gib, place_name

MIB, GIB = 2**20, 2**30
CONTEXTS = (8192, 6144, 4096)
"""Tokens of context to try, where the user did not ask for a number."""
DRIVEN = frozenset({"model", "self"})
"""Kinds of draft that can be run; the others are recognised and named."""
TEMPERATURE = 0.8
"""Of the sampling that expectations are for."""
EXPERTS_COST = 0.25
"""What each further token of a pass costs more in a mixture, where it reads experts of its own."""

Kind = Literal["head inside", "head file", "model", "self"]


def margin(bytes_total: int) -> int:
    """Bytes of a device that are left alone: 256 MiB and 5 % of it, at most 1 GiB."""
    return min(GIB, 256 * MIB + bytes_total // 20)


@dataclass(frozen=True, slots=True)
class Draft:
    """A source of guesses that takes memory. `facts`: of its file; the target's own for a head inside it.

    `gain`: the expected factor over plain decoding, where it is measured or known better than from sizes.
    `asked`: the user named it, so it need not promise a gain. `path`: of its file, if it is here.
    """

    kind: Kind
    name: str
    facts: ModelFacts
    gain: float | None = None
    asked: bool = False
    path: Path | None = None

    @property
    def can_run(self) -> bool:
        """Whether this version can let it guess: a whole model whose cache can be cut anywhere."""
        whole = self.facts.head is None and not self.facts.embedding_only
        return self.kind in DRIVEN and whole and self.facts.rollback == "any"


@dataclass(frozen=True, slots=True)
class Host:
    """The host's memory: `bytes_free` is what this process can really get."""

    bytes_free: int
    bytes_total: int


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user fixed; None (or -1 layers): to be decided. `draft` False: guess nothing; `ngram` False:
    only what is named."""

    n_ctx: int | None = None
    gpu_layers: int | None = None
    kv_type: str | None = None
    draft: bool = True
    ngram: bool = True
    flash: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run the target. `layers_gpu` as n_gpu_layers: 0 means that no GPU is used at all.

    `split`: layers by GPU, for tensor_split. `sources`: what guesses, by name. `needs`: the target's share of
    `bytes_by_device`, to compare with what llama.cpp reports. `why`: one sentence a decision.
    """

    target: ModelFacts
    layers_gpu: int
    n_ctx: int
    kv_type: str
    sources: tuple[str, ...]
    draft: Draft | None
    split: Mapping[str, int]
    bytes_by_device: Mapping[str, int]
    needs: Mapping[str, Need]
    why: tuple[str, ...] = field(default=())
    gain: float = 1.0

    @property
    def rank(self) -> tuple[int, bool, int, bool, float]:
        """Larger is better: context, an F16 cache, layers on the GPU, a draft and its expected gain."""
        full = self.kv_type in {"f16", "bf16", "f32"}
        return self.n_ctx, full, self.layers_gpu, self.draft is not None, self.gain


def plan(
    target: ModelFacts,
    candidates: Sequence[Draft] = (),
    *,
    devices: Sequence[Device],
    host: Host,
    wishes: Wishes = Wishes(),
) -> Plan:
    """The best plan that fits. Raises NoFit with the smallest change that would, BadModelFile for a head."""
    _check(target, wishes)
    machine = _Machine.of(devices, host)
    guesses = wishes.draft and target.rollback == "any"
    drafts = _worth_it(target, candidates, machine) if guesses else []
    for rung in _ladder(target, drafts, machine, wishes):
        found = machine.fit(target, rung)
        if found:
            found = replace(found, sources=_sources(found.draft, wishes) if guesses else ())
            gains = {draft.name: gain for draft, gain in drafts}
            asked = Asked(wishes, machine.free, machine.rooms, tuple(candidates), gains)
            return replace(found, why=explain(found, asked))
    raise _no_fit(target, machine, wishes)


def _check(target: ModelFacts, wishes: Wishes) -> None:
    """Refuse what llama.cpp cannot run however much memory there is."""
    if target.head or target.embedding_only:
        what = f"the {target.head} head of another model" if target.head else "an embedding model"
        raise BadModelFile(f"{target.name} is {what}", "give a text-generation GGUF with -m")
    if wishes.kv_type and not target.allows_kv(wishes.kv_type):
        sizes = ", ".join(map(str, sorted(target.head_sizes)))
        what = f"a {wishes.kv_type} cache does not suit {target.name}, whose heads have {sizes} elements"
        raise UsageError(what, "try --kv-type f16")


def _sources(draft: Draft | None, wishes: Wishes) -> tuple[str, ...]:
    """The n-gram source is always armed if it may be: it takes no memory worth counting."""
    return (*(["ngram"] if wishes.ngram else []), *([draft.name] if draft else []))


@dataclass(frozen=True, slots=True)
class _Rung:
    """One way to run the target."""

    context: Context
    layers_gpu: int
    draft: Draft | None = None
    gain: float = 1.0


@dataclass(frozen=True, slots=True)
class _Machine:
    """Bytes that are free and bytes that may be used, by device: GPUs as ggml lists them, then the host.

    ggml lists the fastest GPU first. What a GPU of `unified` takes is taken from the host too.
    """

    free: Mapping[str, int]
    rooms: Mapping[str, int]
    unified: frozenset[str]

    @property
    def gpus(self) -> dict[str, int]:
        return {name: room for name, room in self.rooms.items() if name != HOST}

    @staticmethod
    def of(devices: Sequence[Device], host: Host) -> _Machine:
        """As llama.cpp chooses: every GPU, or the integrated ones if there is no other."""
        gpus = [device for device in devices if device.kind == "gpu"]
        gpus = gpus or [device for device in devices if device.kind == "igpu"]
        sizes = {gpu.name: (gpu.bytes_free, gpu.bytes_total) for gpu in gpus}
        sizes[HOST] = host.bytes_free, host.bytes_total
        return _Machine(
            free={name: free for name, (free, _) in sizes.items()},
            rooms={name: max(0, free - margin(total)) for name, (free, total) in sizes.items()},
            unified=frozenset(gpu.name for gpu in gpus if _shares_memory(gpu)),
        )

    def fit(self, target: ModelFacts, rung: _Rung) -> Plan | None:
        """The rung as a plan without its reasons, None if it does not fit."""
        gpus = self.gpus if rung.layers_gpu else {}
        draft = _draft_needs(rung.draft, rung.context, dict(list(gpus.items())[:1]))
        if draft is None:
            return None
        left = {name: room - draft.get(name, Need()).total for name, room in gpus.items()}
        placed = place(target, rung.context, rung.layers_gpu, left)
        if placed is None or self.lacks(placed, draft) > 0:
            return None
        totals = {name: placed.bytes.get(name, 0) + draft.get(name, Need()).total for name in self.rooms}
        return Plan(
            target=target,
            layers_gpu=rung.layers_gpu,
            n_ctx=rung.context.n_ctx,
            kv_type=rung.context.kv_type,
            sources=(),
            draft=rung.draft,
            split=placed.split,
            bytes_by_device={name: total for name, total in totals.items() if total},
            needs=placed.needs,
            gain=rung.gain,
        )

    def lacks(self, placed: Placement, draft: Mapping[str, Need]) -> int:
        """Bytes the host is short of; what a GPU takes of shared memory is the host's too."""
        names = {HOST, *self.unified}
        parts = [*placed.needs.items(), *draft.items()]
        return sum(need.total for name, need in parts if name in names) - self.rooms[HOST]


def _shares_memory(gpu: Device) -> bool:
    return gpu.kind == "igpu" or gpu.name.startswith(("MTL", "Metal"))


def _draft_needs(draft: Draft | None, context: Context, gpu: Mapping[str, int]) -> Mapping[str, Need] | None:
    """The draft wholly on `gpu`, or on the host without one; None if it is too big. Its cache is F16."""
    if draft is None:
        return {}
    own = replace(context, kv_type="f16")
    if draft.kind == "head inside":
        name, need = next(iter(gpu), HOST), place_head(draft.facts, own)
        return {name: need} if need.total <= gpu.get(name, need.total) else None
    placed = place(draft.facts, own, n_units(draft.facts) if gpu else 0, gpu)
    return placed.needs if placed else None


def _worth_it(
    target: ModelFacts, candidates: Sequence[Draft], machine: _Machine
) -> list[tuple[Draft, float]]:
    """Drafts that can be run and should win, with their expected factors, best first."""
    gains = [(draft, _gain(target, draft, machine)) for draft in candidates if draft.can_run]
    worth = (pair for pair in gains if pair[0].asked or pair[1] >= WORTH_OFFERING)
    return sorted(worth, key=lambda pair: -pair[1])


def _gain(target: ModelFacts, draft: Draft, machine: _Machine) -> float:
    """What is known of the draft, or else expected of one that reads so much less (see `pairs`)."""
    if draft.gain is not None:
        return draft.gain
    device = "igpu" if machine.unified else "gpu" if machine.gpus else "cpu"
    widths = typical_widths(device, target.bits_per_weight)
    if target.experts[0]:
        widths = {n: cost + EXPERTS_COST * (n - 1) for n, cost in widths.items()}
    if draft.kind == "self":
        alpha = copy_acceptance(draft.facts.bits_per_weight, target.n_parameters, TEMPERATURE)
    else:
        alpha = draft_acceptance(draft.facts.n_parameters / max(1, target.n_parameters), TEMPERATURE)
    cost = draft.facts.weights.active / max(1, target.weights.active)
    return expected_factor(alpha, cost, widths).factor


def _ladder(
    target: ModelFacts, drafts: Sequence[tuple[Draft, float]], machine: _Machine, wishes: Wishes
) -> Iterator[_Rung]:
    """All ways to run the target within the wishes, best first: see the module's header."""
    most = n_units(target) if machine.gpus else 0
    fixed = wishes.gpu_layers is not None and wishes.gpu_layers >= 0
    if fixed:
        most = min(most, wishes.gpu_layers or 0)
    contexts = (wishes.n_ctx,) if wishes.n_ctx else _contexts(target)
    kinds = [wishes.kv_type or "f16"]
    if wishes.kv_type is None and wishes.flash and target.allows_kv("q8_0"):
        kinds.append("q8_0")
    best = Context(contexts[0], kinds[0], wishes.flash)
    for draft, gain in drafts:
        yield _Rung(best, most, draft, gain)
    for n_ctx in contexts:
        yield _Rung(replace(best, n_ctx=n_ctx), most)
    least = Context(contexts[-1], kinds[-1], wishes.flash)
    if len(kinds) > 1:
        yield _Rung(least, most)
    if not fixed:
        for layers in range(most - 1, -1, -1):
            yield _Rung(least, layers)


def _contexts(target: ModelFacts) -> tuple[int, ...]:
    """Sizes to try, largest first, none above what the model was trained for."""
    first = min(CONTEXTS[0], target.n_ctx_train or CONTEXTS[0])
    return first, *(n for n in CONTEXTS if n < first)


def _no_fit(target: ModelFacts, machine: _Machine, wishes: Wishes) -> NoFit:
    """What is short where the plan comes closest, and the smallest change of one wish that would do."""
    rungs = list(_ladder(target, [], machine, wishes))
    placed = [(place(target, rung.context, rung.layers_gpu, machine.gpus), rung) for rung in rungs]
    lacks = [(machine.lacks(found, {}), sum(found.bytes.values()), rung) for found, rung in placed if found]
    if lacks:
        short, need, rung = min(lacks, key=lambda lack: lack[:2])
    else:  # the layers the user wants on GPUs do not fit there
        rung = rungs[-1]
        endless = place(target, rung.context, rung.layers_gpu, dict.fromkeys(machine.gpus, 2**60))
        assert endless is not None, "everything fits into endless room"
        need = sum(endless.bytes.values())
        short = need - endless.bytes[HOST] - sum(machine.gpus.values())
    rooms = " and ".join(f"{gib(room)} {place_name(name)}" for name, room in machine.rooms.items())
    smaller = f"take a file of at most {gib(max(0, target.bytes_file - short))}"
    return NoFit(
        f"{target.name} needs {gib(need)} with {rung.context.n_ctx} tokens of context; {rooms} can be used",
        _remedy(target, machine, wishes) or f"free {gib(short)} more, or {smaller}",
    )


def _remedy(target: ModelFacts, machine: _Machine, wishes: Wishes) -> str:
    """The flag that would make it fit, "" if none alone does."""

    def fits(**change: int | str | None) -> bool:
        changed = replace(wishes, **change)  # type: ignore[arg-type]
        return any(machine.fit(target, rung) for rung in _ladder(target, [], machine, changed))

    for kv_type in ("f16", "q8_0") if wishes.kv_type is not None and wishes.flash else ():
        if target.allows_kv(kv_type) and fits(kv_type=kv_type):
            return f"try --kv-type {kv_type}"
    low, high = 0, (wishes.n_ctx or _contexts(target)[-1]) // 256
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(n_ctx=256 * middle) else (low, middle)
    if low:
        return f"try --ctx {256 * low}"
    if wishes.gpu_layers is not None and fits(gpu_layers=None):
        return "try it without --gpu-layers"
    return ""
