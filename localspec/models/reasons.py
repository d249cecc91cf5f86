"""A plan in words: one sentence a decision, with the numbers a person can check it by.

Knows how a plan was made (see `plan`), decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localspec.models.memory import HOST, Context, n_units

if TYPE_CHECKING:
    from localspec.models.plan import Draft, Plan, Wishes

KINDS = {
    "head inside": "The MTP head in the file:",
    "head file": "The head",
    "model": "The draft model",
    "self": "The low-bit copy",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a plan had to answer, and bytes by device that are free and that may be used.

    `gains`: expected factors of the drafts that are worth their memory, by name.
    """

    wishes: Wishes
    free: Mapping[str, int]
    rooms: Mapping[str, int]
    candidates: tuple[Draft, ...]
    gains: Mapping[str, float]


def explain(found: Plan, asked: Asked) -> tuple[str, ...]:
    """The plan's decisions in the order in which memory is given away."""
    return (
        *_devices(found, asked),
        _context(found, asked),
        _cache(found, asked),
        *(_draft(found, asked, candidate) for candidate in asked.candidates),
        _guessing(found, asked),
    )


def gib(n: int) -> str:
    """Bytes as "4.9 GiB", small ones as "120 MiB"."""
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 / 2 else f"{n / 2**20:.0f} MiB"


def place_name(device: str) -> str:
    return "of main memory" if device == HOST else f"on {device}"


def _devices(found: Plan, asked: Asked) -> Iterator[str]:
    units = n_units(found.target)
    for name, used in found.bytes_by_device.items():
        layers = units - found.layers_gpu if name == HOST else found.split.get(name, 0)
        what = f"{layers} of {units} layers" if layers else "the token embedding"
        free, room = asked.free[name], asked.rooms[name]
        margin = f"{gib(free)} are free, {gib(free - room)} of them are left alone"
        yield f"{name} takes {what} in {gib(used)}: {margin}."
    if not found.layers_gpu:
        why = "no GPU is there" if len(asked.rooms) == 1 else "no GPU is used"
        yield f"Everything runs on the processor: {why}."
    if not found.target.caches_known:
        yield f"{found.target.architecture} keeps caches that are not counted: it may need more."


def _context(found: Plan, asked: Asked) -> str:
    trained = found.target.n_ctx_train
    if asked.wishes.n_ctx and trained and found.n_ctx > trained:
        return f"Context {found.n_ctx} tokens, as asked: beyond the {trained} the model was trained for."
    if asked.wishes.n_ctx:
        return f"Context {found.n_ctx} tokens, as asked."
    wanted = min(8192, trained or 8192)
    if found.n_ctx < wanted:
        return f"Context {found.n_ctx} tokens instead of {wanted}: memory is short."
    return f"Context {found.n_ctx} tokens, the usual size; --ctx asks for more, up to {trained}."


def _cache(found: Plan, asked: Asked) -> str:
    def size(kv_type: str) -> int:
        context = Context(found.n_ctx, kv_type, asked.wishes.flash)
        return sum(found.target.bytes_cache(context.n_ctx, kv_type, flash=context.flash))

    kind = found.kv_type.upper()
    if asked.wishes.kv_type:
        return f"Cache in {kind}, as asked: {gib(size(found.kv_type))}."
    if found.kv_type == "q8_0":
        return f"Cache in Q8_0, with flash attention: {gib(size('q8_0'))}, in F16 {gib(size('f16'))}."
    return f"Cache in {kind}: {gib(size(found.kv_type))}."


def _draft(found: Plan, asked: Asked, draft: Draft) -> str:
    what = f"{KINDS[draft.kind]} {draft.name}"
    gain = asked.gains.get(draft.name)
    if found.draft is draft:
        return (
            f"{what} guesses along, {gib(draft.facts.weights.total)} of weights; expected {gain:.1f} times."
        )
    if not asked.wishes.draft:
        return f"{what} is left out: --draft none."
    if draft.kind.startswith("head") or draft.facts.head:
        return f"{what} is recognised as a head; this version cannot run it yet."
    if not draft.can_run:
        return f"{what} is left out: it is no model that can take back a wrong guess."
    if found.target.rollback != "any":
        return f"{what} is left out: nothing can be guessed for this model."
    if gain is None:
        return f"{what} is left out: no gain is expected here."
    if found.draft:
        return f"{what} is left out: one draft at a time, and {found.draft.name} promises more or fits."
    return f"{what} is left out: it would gain {gain:.1f} times, but does not fit beside the model."


def _guessing(found: Plan, asked: Asked) -> str:
    if not asked.wishes.draft:
        return "Nothing is guessed: --draft none."
    if found.target.rollback != "any":
        return f"Nothing is guessed: the state of a {found.target.recurrence} model cannot be taken back."
    if not asked.wishes.ngram:
        return "Repetitions are not guessed: --draft names other sources."
    return "Guessing repetitions from the text takes no memory."
