"""What loading a model takes: weights, caches and llama.cpp's compute buffer, on the host and on GPUs.

The compute buffer is what ggml's graph allocator reserves for one pass of UBATCH tokens. Its formula was
fitted to 250 reports of llama.cpp 0c1e570 over 28 shapes of models. With E, F, Q, K the widths of residual
stream, feed-forward, query and key for all tokens of the pass in F32, and X what the used experts write:

    masks      2 bytes a token and cell, one mask for full and one for sliding-window layers
    attention  masks + 3E + 2Q
    layer      masks still needed + the largest of 3E + Q + 3F, 4E + Q + 2X, 2E + Q + scan
    output     4E of the rows asked for + their logits + masks, unless those logits fit into the masks
    buffer     the largest of the three

Without flash attention masks take 4 bytes, attention and layer hold E + Q more, attention also 2K and the
scores of all heads. What it misses by: -9 % to +30 %, at most 40 MB (tests/test_plan.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from localspec.engine.generate import WIDEST_PASS
from localspec.models.facts import UBATCH, ModelFacts

F32 = 4
HOST = "CPU"
"""The host's name among devices."""
COPIES = 4
"""Copies of a pass's inputs that llama.cpp keeps when several GPUs work as a pipeline."""


@dataclass(frozen=True, slots=True)
class Context:
    """How a model's context is made."""

    n_ctx: int
    kv_type: str = "f16"
    flash: bool = True


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes on one device. `other`: what llama.cpp allocates and does not report, or only later."""

    weights: int = 0
    cache: int = 0
    compute: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.compute + self.other

    def __add__(self, more: Need) -> Need:
        return Need(
            self.weights + more.weights,
            self.cache + more.cache,
            self.compute + more.compute,
            self.other + more.other,
        )


@dataclass(frozen=True, slots=True)
class Placement:
    """Needs by device, HOST among them, and how many layers (the output counts as one) each GPU has."""

    needs: Mapping[str, Need]
    split: Mapping[str, int]

    @property
    def bytes(self) -> dict[str, int]:
        return {name: need.total for name, need in self.needs.items()}


def bytes_masks(facts: ModelFacts, n_ctx: int, flash: bool = True, first_user: int = 0) -> int:
    """Attention masks of a pass; with `first_user` 1 only those that a layer after the first still needs."""
    cells = dict(zip((False, True), facts.cells(n_ctx), strict=True))
    users = {x.windowed for x in facts.layers[first_user : facts.n_layers] if x.n_key}
    return sum(cells[user] for user in users) * min(UBATCH, n_ctx) * (2 if flash else F32)


def bytes_compute(
    facts: ModelFacts, n_ctx: int, kv_type: str = "f16", *, rows: int = WIDEST_PASS, flash: bool = True
) -> int:
    """The compute buffer of a device that runs layers and output, with `rows` rows of logits at most."""
    w, cells = facts.widths, facts.cells(n_ctx)[0]
    flash = flash or facts.recurrence == "recurrent"
    bytes_token = F32 * min(UBATCH, n_ctx)
    attention = (3 * w.embd + 2 * w.query) * bytes_token
    layer = max(3 * w.embd + 3 * w.ffn, 4 * w.embd + 2 * w.experts, 2 * w.embd + w.scan) + w.query
    layer = (layer + 2 * w.per_layer) * bytes_token
    if not flash:
        attention += (w.embd + w.query + 2 * w.key + w.heads * cells) * bytes_token
        layer += (w.embd + w.query) * bytes_token
    elif kv_type == "f32":  # flash attention works on F16: a layer's keys and values are converted
        attention += 2 * cells * max((x.n_key + x.n_value for x in facts.layers), default=0)
    masks = bytes_masks(facts, n_ctx, flash)
    bytes_rows = F32 * min(rows, UBATCH, n_ctx)
    logits = facts.n_vocab * bytes_rows
    output = logits + 4 * w.embd * (bytes_rows if facts.recurrence == "none" else bytes_token)
    return max(
        masks + attention,
        bytes_masks(facts, n_ctx, flash, first_user=1) + layer,
        output + (masks if masks < logits else 0),
    )


def place(facts: ModelFacts, context: Context, layers_gpu: int, rooms: Mapping[str, int]) -> Placement | None:
    """What each device needs when the last `layers_gpu` of layers and output lie on the GPUs of `rooms`.

    Counted as llama.cpp's n_gpu_layers: output first, then layers from the last one backwards; with all of
    them, only the token embedding stays on the host. `rooms`: bytes to use by GPU, the first is filled
    first. None if they do not fit; the host's room is not looked at.
    """
    units = _units(facts, context)
    start = len(units) - layers_gpu
    fixed = _fixed_on_gpu(facts, context, start)
    filled = _fill(units[start:], fixed, rooms)
    if filled is not None and len(filled) > 1 and start == 0:
        fixed += Need(compute=(COPIES - 1) * _bytes_inputs(facts, context))
        filled = _fill(units, fixed, rooms)
    if filled is None:
        return None
    needs = {name: sum(here, fixed) for name, here in filled.items()}
    needs[HOST] = _on_host(facts, context, units[:start], layers_gpu)
    return Placement(needs, {name: len(here) for name, here in filled.items()})


def _fill(units: Sequence[Need], fixed: Need, rooms: Mapping[str, int]) -> dict[str, list[Need]] | None:
    """`units` in order onto the GPUs, each taking `fixed` besides; None if some are left over."""
    filled: dict[str, list[Need]] = {}
    done = 0
    for name, room in rooms.items():
        here, used = [], fixed.total
        while done < len(units) and used + units[done].total <= room:
            here.append(units[done])
            used += units[done].total
            done += 1
        if here:
            filled[name] = here
    return filled if done == len(units) else None


def place_head(facts: ModelFacts, context: Context) -> Need:
    """What an MTP head inside `facts` takes beside the model: its layers, their cache, a compute buffer."""
    cache = facts.bytes_cache(context.n_ctx, context.kv_type, mtp=True, flash=context.flash)
    compute = bytes_compute(facts, context.n_ctx, context.kv_type, flash=context.flash)
    return Need(sum(facts.weights.layers[facts.n_layers :]), sum(cache), compute)


def n_units(facts: ModelFacts) -> int:
    """Most layers that can go to GPUs: all, MTP layers counted, and the output."""
    return len(facts.layers) + 1


def _units(facts: ModelFacts, context: Context) -> list[Need]:
    """Each layer with its cache, then the output. MTP layers are not loaded and weigh nothing."""
    cache = facts.bytes_cache(context.n_ctx, context.kv_type, flash=context.flash)
    weights = (*facts.weights.layers[: facts.n_layers], *(0,) * facts.n_layers_mtp)
    layers = [Need(weight, size) for weight, size in zip(weights, cache, strict=True)]
    return [*layers, Need(facts.weights.output + facts.weights.rest)]


def _fixed_on_gpu(facts: ModelFacts, context: Context, start: int) -> Need:
    """What a GPU needs however many layers it has.

    After layers on the host come their results; and those layers are computed here for long prompts, one
    copied tensor at a time. A quantised cache is converted to F16 layer by layer, outside the compute buffer
    (CUDA: fattn-common.cuh).
    """
    compute = bytes_compute(facts, context.n_ctx, context.kv_type, flash=context.flash)
    if start:
        compute += facts.weights.largest + facts.widths.embd * min(UBATCH, context.n_ctx) * F32
    widest = max((layer.n_key + layer.n_value for layer in facts.layers), default=0)
    converted = 2 * facts.cells(context.n_ctx)[0] * widest if context.kv_type.startswith("q") else 0
    return Need(compute=compute, other=converted)


def _on_host(facts: ModelFacts, context: Context, units: list[Need], layers_gpu: int) -> Need:
    """Embedding, the layers that stay, and room for the logits of a widest pass, which come here."""
    weights = facts.weights.embedding
    if not layers_gpu:
        weights += facts.weights.output_host + facts.weights.rest
    compute = _bytes_inputs(facts, context)
    if units:
        rows = 0 if layers_gpu else WIDEST_PASS
        compute = bytes_compute(facts, context.n_ctx, context.kv_type, rows=rows, flash=context.flash)
    logits = facts.n_vocab * WIDEST_PASS * F32
    layers = units if layers_gpu else units[:-1]
    return sum(layers, Need(weights, compute=compute, other=logits))


def _bytes_inputs(facts: ModelFacts, context: Context) -> int:
    """The host's part of a pass that runs on GPUs: masks and embedded tokens, twice."""
    embedded = 2 * facts.widths.embd * min(UBATCH, context.n_ctx) * F32
    return bytes_masks(facts, context.n_ctx, context.flash) + embedded
