"""Plans against llama.cpp's own numbers, the order of savings, and what must hold on any machine."""

from __future__ import annotations

import ctypes
import io
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
import shapes
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import Placed

from localspec.engine.types import Device
from localspec.errors import BadModelFile, ExitStatus, NoFit, UsageError
from localspec.llama.library import library_path
from localspec.llama.model import KV_TYPES
from localspec.models.facts import ModelFacts, low_bit, model_facts, read_model
from localspec.models.memory import HOST, Context, bytes_compute, n_units, place
from localspec.models.plan import Draft, Host, Plan, Wishes, margin, plan

GIB = 2**30
Machine = tuple[list[Device], Host]

FILES = {
    "qwen3-8b-q8_0": ("qwen3-8b", "Q8_0", False),
    "qwen3-0.6b-q8_0": ("qwen3-0.6b", "Q8_0", True),
    "gemma3-4b": ("gemma3-4b", "Q4_0", True),
}
"""Files that are not the Q4_K_M of the shape of their name: shape, type, tied output."""


@cache
def model(name: str) -> ModelFacts:
    shape, mix, tied = FILES.get(name, (name, "Q4_K_M", False))
    return model_facts([shapes.header(shape, shapes.tensors(shape, mix, tied=tied))], io.BytesIO)


def device(name: str, free: float, total: float, kind: Any = "gpu") -> Device:
    return Device(name, "", kind, int(free * GIB), int(total * GIB))


def gpu(size: float, *, ram: float = 32, free: float = 24) -> Machine:
    """A PC with one GPU, 5 % of it taken by others."""
    return [device("CUDA0", size * 0.95, size)], Host(int(free * GIB), int(ram * GIB))


def mac(size: int) -> Machine:
    """An Apple machine: Metal offers two thirds of the memory, from 36 GB on three quarters."""
    part = size * (2 / 3 if size <= 32 else 0.75)
    return [device("MTL0", part, part)], Host((size - 3) * GIB, size * GIB)


def cpu(size: int, free: float) -> Machine:
    return [device("CPU", free, size, "cpu")], Host(int(free * GIB), size * GIB)


def planned(name: str, machine: Machine, *drafts: Draft, **wishes: Any) -> Plan:
    devices, host = machine
    return plan(model(name), drafts, devices=devices, host=host, wishes=Wishes(**wishes))


def small_draft(gain: float | None = None) -> Draft:
    return Draft("model", "Qwen3-0.6B-Q8_0.gguf", model("qwen3-0.6b-q8_0"), gain)


# What fits best by llama.cpp's numbers: the first of 8192, 6144 and 4096 tokens in F16, then 4096 in Q8_0,
# then with as many layers on the GPU as fit, where weights, caches and compute buffer keep to `margin`.
CASES: list[tuple[str, tuple[Machine, ...], Placed | None]] = [
    (
        "qwen3-8b",
        (
            gpu(8),
            gpu(12),
            gpu(16),
            gpu(24),
            gpu(32),
            mac(16),
            mac(24),
            mac(36),
            mac(64),
            mac(128),
        ),
        Placed(37, 8192, "f16", (4671766528, 1207959552, 109062400), (350060544, 0, 25178368)),
    ),
    (
        "qwen3-8b",
        (
            mac(8),
            cpu(8, 5),
        ),
        None,
    ),
    (
        "qwen3-14b",
        (gpu(8),),
        Placed(33, 4096, "q8_0", (6925544448, 285212672, 132212992), (2070249472, 71303168, 142700800)),
    ),
    (
        "qwen3-14b",
        (
            gpu(12),
            gpu(16),
            gpu(24),
            gpu(32),
            mac(16),
            mac(24),
            mac(36),
            mac(64),
            mac(128),
        ),
        Placed(41, 8192, "f16", (8558218240, 1342177280, 146811136), (437575680, 0, 29372672)),
    ),
    ("qwen3-14b", (mac(8),), None),
    (
        "qwen3-32b",
        (gpu(8),),
        Placed(22, 4096, "q8_0", (6855532544, 187170816, 182544640), (12900641792, 383254528, 209809664)),
    ),
    (
        "qwen3-32b",
        (gpu(12),),
        Placed(35, 4096, "q8_0", (10562139136, 303038464, 182544640), (9194035200, 267386880, 209809664)),
    ),
    (
        "qwen3-32b",
        (gpu(16),),
        Placed(49, 4096, "q8_0", (14578199552, 427819008, 182544640), (5177974784, 142606336, 209809664)),
    ),
    (
        "qwen3-32b",
        (
            gpu(24),
            gpu(32),
            mac(36),
            mac(64),
            mac(128),
        ),
        Placed(65, 8192, "f16", (19318598656, 2147483648, 203434240), (437575680, 0, 29372672)),
    ),
    (
        "qwen3-32b",
        (
            mac(8),
            mac(16),
        ),
        None,
    ),
    (
        "qwen3-32b",
        (mac(24),),
        Placed(52, 4096, "q8_0", (15436273664, 454557696, 182544640), (4319900672, 115867648, 209809664)),
    ),
    (
        "qwen3-30b-a3b",
        (gpu(8),),
        Placed(19, 4096, "q8_0", (7102595072, 80216064, 100772096), (11448121344, 133693440, 96563456)),
    ),
    (
        "qwen3-30b-a3b",
        (gpu(12),),
        Placed(29, 4096, "q8_0", (10825508864, 124780544, 100772096), (7725207552, 89128960, 96563456)),
    ),
    (
        "qwen3-30b-a3b",
        (gpu(16),),
        Placed(40, 4096, "q8_0", (14847669248, 173801472, 100772096), (3703047168, 40108032, 96563456)),
    ),
    (
        "qwen3-30b-a3b",
        (
            gpu(24),
            gpu(32),
            mac(36),
            mac(64),
            mac(128),
        ),
        Placed(49, 8192, "f16", (18375686144, 805306368, 96479488), (175030272, 0, 16789760)),
    ),
    (
        "qwen3-30b-a3b",
        (
            mac(8),
            mac(16),
        ),
        None,
    ),
    (
        "qwen3-30b-a3b",
        (mac(24),),
        Placed(42, 4096, "q8_0", (15602686976, 182714368, 100772096), (2948029440, 31195136, 96563456)),
    ),
    (
        "qwen3-8b-q8_0",
        (gpu(8),),
        Placed(32, 4096, "q8_0", (7017184256, 276299776, 96561408), (1686377472, 44564480, 104952064)),
    ),
    ("qwen3-8b-q8_0", (cpu(16, 11),), Placed(0, 8192, "f16", (0, 0, 0), (8703561728, 1207959552, 117453056))),
    (
        "gemma3-4b",
        (
            gpu(8),
            gpu(4),
        ),
        Placed(35, 8192, "f16", (2183821312, 350224384, 87574784), (377487360, 0, 20467968)),
    ),
    ("gemma3-4b", (cpu(16, 11),), Placed(0, 8192, "f16", (0, 0, 0), (2561308672, 350224384, 92819712))),
    (
        "llama-3.1-8b",
        (gpu(8),),
        Placed(33, 8192, "f16", (4617396224, 1073741824, 121645312), (295501824, 0, 25178368)),
    ),
    ("llama-3.1-8b", (cpu(16, 11),), Placed(0, 8192, "f16", (0, 0, 0), (4912898048, 1073741824, 130035968))),
    (
        "qwen3-8b-q8_0",
        (gpu(6),),
        Placed(23, 4096, "q8_0", (5171910656, 196083712, 96561408), (3531651072, 124780544, 104952064)),
    ),
    ("qwen3-8b", (cpu(8, 6.2),), Placed(0, 4096, "f16", (0, 0, 0), (5021827072, 603979776, 113258752))),
]
EACH = [(name, machine, best) for name, machines, best in CASES for machine in machines]


def label(case: object) -> str:
    if isinstance(case, tuple) and isinstance(case[0], list):
        devices, host = case
        return f"{devices[0].name}-{devices[0].bytes_total / GIB:.0f}-of-{host.bytes_total / GIB:.0f}"
    return case if isinstance(case, str) else ""


def test_there_are_enough_cases() -> None:
    assert len(EACH) >= 40
    wanted = {"qwen3-8b", "qwen3-14b", "qwen3-32b", "qwen3-30b-a3b"}
    for size in (8, 12, 16, 24, 32):
        assert wanted <= {name for name, machine, _ in EACH if machine == gpu(size)}
    for size in (8, 16, 24, 36, 64, 128):
        assert wanted <= {name for name, machine, _ in EACH if machine == mac(size)}


@pytest.mark.parametrize(("name", "machine", "best"), EACH, ids=label)
def test_the_plan_is_the_best_that_fits_by_llama_cpps_numbers(
    name: str, machine: Machine, best: Placed | None
) -> None:
    """Layers may be two fewer: the plan also counts what llama.cpp allocates without reporting it."""
    if best is None:
        with pytest.raises(NoFit) as error:
            planned(name, machine)
        assert error.value.exit_status == ExitStatus.NO_FIT == 4
        return
    found = planned(name, machine)
    assert (found.n_ctx, found.kv_type) == (best.n_ctx, best.kv_type)
    if best.layers_gpu in (0, n_units(model(name))):
        assert found.layers_gpu == best.layers_gpu
    else:
        assert best.layers_gpu - 2 <= found.layers_gpu <= best.layers_gpu


@pytest.mark.parametrize(("name", "machines", "best"), [c for c in CASES if c[2]], ids=label)
def test_the_estimate_is_llama_cpps_report(name: str, machines: object, best: Placed) -> None:
    """Weights and caches to the byte, the compute buffer at most 30 % too large, the sum within 1 %.

    The RPC device does not copy the host's tensors to itself as others do: those bytes are ours alone.
    """
    copied = 0 if best.layers_gpu == n_units(model(name)) else model(name).weights.largest
    placed = place(model(name), Context(best.n_ctx, best.kv_type), best.layers_gpu, {"GPU": 2**60})
    assert placed is not None
    for device_name, reported in (("GPU", best.gpu), (HOST, best.host)):
        if not any(reported):
            assert device_name not in placed.needs
            continue
        need = placed.needs[device_name]
        assert (need.weights, need.cache) == reported[:2]
        compute = need.compute - (copied if device_name == "GPU" else 0)
        assert -0.02 * reported[2] <= compute - reported[2] <= 0.3 * reported[2]
        assert need.weights + need.cache + compute == pytest.approx(sum(reported), rel=0.01)


PARTLY = [
    (
        "qwen3-0.6b-q8_0",
        Placed(14, 2048, "f16", (382682112, 109051904, 41779200), (416119808, 125829120, 29372672)),
    ),
    ("qwen3-0.6b-q8_0", Placed(29, 2048, "f16", (633495552, 234881024, 41779200), (165306368, 0, 6304000))),
    (
        "gemma3-4b",
        Placed(20, 2048, "f16", (1386913792, 125829120, 77089024), (1174394880, 98566144, 86528256)),
    ),
]


@pytest.mark.parametrize(("name", "reported"), PARTLY)
def test_where_the_output_lies_logits_are_computed(name: str, reported: Placed) -> None:
    """Large vocabularies on small models: logits decide the compute buffer of the device with the output."""
    placed = place(model(name), Context(2048), reported.layers_gpu, {"GPU": 2**60})
    assert placed is not None
    for device_name, (weights, caches, compute) in (("GPU", reported.gpu), (HOST, reported.host)):
        need = placed.needs[device_name]
        assert (need.weights, need.cache) == (weights, caches)
        copied = model(name).weights.largest if device_name == "GPU" and placed.needs[HOST].cache else 0
        assert need.compute - copied == pytest.approx(compute, rel=0.2)


def test_mtp_layers_are_not_loaded() -> None:
    whole = model("qwen3-8b")
    with_mtp = replace(whole, n_layers_mtp=1)
    assert n_units(with_mtp) == n_units(whole)
    for layers in (0, 37):
        placed, plain = (place(facts, Context(4096), layers, {"GPU": 2**60}) for facts in (with_mtp, whole))
        assert placed is not None
        assert plain is not None
        saved = sum(plain.bytes.values()) - sum(placed.bytes.values())
        assert saved == whole.weights.layers[-1] + whole.bytes_cache(4096)[-1]


def test_a_pipeline_keeps_more_inputs() -> None:
    """Several GPUs with all layers: three more copies of masks and embedded tokens on each."""
    apart = place(model("qwen3-8b"), Context(8192), 37, {"A": 3 * GIB, "B": 2**60})
    alone = place(model("qwen3-8b"), Context(8192), 37, {"A": 2**60})
    assert apart is not None
    assert alone is not None
    inputs = 8192 * 512 * 2 + 2 * 4096 * 512 * 4
    for name in "AB":
        assert apart.needs[name].compute == alone.needs["A"].compute + 3 * inputs


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_compute_buffers(name: str) -> None:
    """Over 28 architectures: at most 9 % or 20 MB too small, at most 30 % or 40 MB too large."""
    facts = model_facts([shapes.header(name)], io.BytesIO)
    for (kind, n_ctx, flash), (_, reported) in zip(shapes.SETTINGS, shapes.REPORTS[name], strict=True):
        ours = bytes_compute(facts, n_ctx, kind, flash=flash)
        assert -0.09 * reported <= ours - reported <= 0.3 * reported, (kind, n_ctx, flash)
        assert ours - reported < 40e6


@pytest.mark.parametrize(
    ("name", "reported"),
    [("qwen35-4b", 68536608), ("qwen35-27b", 96872736), ("mamba2-2.7b", 73171232)],
)
def test_compute_buffers_of_recurrent_layers(name: str, reported: int) -> None:
    """With a feed-forward of 64 and a vocabulary of 128 the recurrent layers alone decide."""
    facts = model_facts([shapes.header(name, **{"feed_forward_length": 64, "vocab_size": 128})], io.BytesIO)
    facts = replace(facts, n_vocab=128)
    assert 0 <= bytes_compute(facts, 2048) - reported <= 0.3 * reported


def breakdown(context: Any) -> list[int]:
    """llama.cpp's own account of a context: bytes of weights, caches and compute buffers."""
    name = "_Z26llama_get_memory_breakdownPK13llama_context"
    library = ctypes.CDLL(str(library_path("llama")))
    if not hasattr(library, name):
        pytest.skip("this build hides llama_get_memory_breakdown")
    result = (ctypes.c_uint64 * 6)()  # a std::map: comparator, colour, root, first, last, size
    ask = getattr(library, name)
    ask.restype, ask.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]
    ask(ctypes.addressof(result), context)
    sums, nodes = [0, 0, 0], [result[2]]
    while nodes:
        if node := nodes.pop():
            _, _, left, right, _, *sizes = struct.unpack("<8Q", ctypes.string_at(node, 64))
            sums = [a + b for a, b in zip(sums, sizes, strict=True)]
            nodes += [left, right]
    return sums


def allocated(path: Path, settings: list[Context]) -> list[list[int]]:
    """What llama.cpp really allocates for each of `settings`, weights not mapped but read."""
    params = llama_cpp.llama_model_default_params()
    params.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
    loaded = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    found = []
    for setting in settings:
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = setting.n_ctx, 512, 512
        options.n_outputs_max, options.swa_full, options.n_threads = 64, False, 1
        options.type_k = options.type_v = KV_TYPES[setting.kv_type]
        options.flash_attn_type = -1 if setting.flash else 0
        context = llama_cpp.llama_init_from_model(loaded, options)
        assert context
        found.append(breakdown(context))
        llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(loaded)
    return found


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0", "Q4_K_M"])
def test_estimate_of_the_real_model(kind: str, real_copy: Callable[[str], Path]) -> None:
    path = real_copy(kind)
    facts = read_model(path)
    asked = [Context(n_ctx, kv) for n_ctx in (2048, 8192) for kv in ("f16", "q8_0")]
    for context, real in zip(asked, allocated(path, asked), strict=True):
        placed = place(facts, context, 0, {})
        assert placed is not None
        need = placed.needs[HOST]
        assert need.weights == pytest.approx(real[0], abs=4096)
        assert need.cache == real[1]
        assert need.compute == pytest.approx(real[2], rel=0.1)
        assert need.weights + need.cache + need.compute == pytest.approx(sum(real), rel=0.02)


@pytest.mark.parametrize("write", [tiny.write_llama, tiny.write_swa, tiny.write_recurrent, tiny.write_hybrid])
def test_estimate_of_tiny_models(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    facts = read_model(path)
    asked = [Context(n_ctx, "f16", flash) for n_ctx in (2048, 8192) for flash in (True, False)]
    for context, real in zip(asked, allocated(path, asked), strict=True):
        placed = place(facts, context, 0, {})
        assert placed is not None
        need = placed.needs[HOST]
        assert need.cache == real[1], context
        assert need.weights + need.cache + need.compute == pytest.approx(sum(real), rel=0.1), context


def shrinking(name: str, drafts: list[Draft], sizes: list[float], **wishes: Any) -> list[tuple[Any, ...]]:
    """What changes in the plan as the GPU shrinks: (draft, context, cache, all layers), without repeats."""
    steps: list[tuple[Any, ...]] = []
    for size in sizes:
        found = planned(name, gpu(size), *drafts, **wishes)
        whole = found.layers_gpu == n_units(model(name))
        step = (found.draft.name if found.draft else None, found.n_ctx, found.kv_type, whole)
        if steps[-1:] != [step]:
            steps.append(step)
    return steps


SIZES = [24 - 0.05 * i for i in range(420)]


def test_savings_come_in_their_order() -> None:
    draft = small_draft()
    assert shrinking("qwen3-14b", [draft], SIZES) == [
        (draft.name, 8192, "f16", True),
        (None, 8192, "f16", True),
        (None, 6144, "f16", True),
        (None, 4096, "f16", True),
        (None, 4096, "q8_0", True),
        (None, 4096, "q8_0", False),
    ]


def test_a_context_that_was_asked_for_is_kept() -> None:
    assert shrinking("qwen3-14b", [], SIZES, n_ctx=16384) == [
        (None, 16384, "f16", True),
        (None, 16384, "q8_0", True),
        (None, 16384, "q8_0", False),
    ]


def test_a_cache_type_that_was_asked_for_is_kept() -> None:
    assert shrinking("qwen3-14b", [], SIZES, n_ctx=8192, kv_type="f16") == [
        (None, 8192, "f16", True),
        (None, 8192, "f16", False),
    ]
    assert shrinking("qwen3-14b", [], SIZES, n_ctx=8192, flash=False)[-1][2] == "f16"


def test_layers_that_were_asked_for_are_kept() -> None:
    for layers in (0, 10, 41):
        assert planned("qwen3-14b", gpu(16), gpu_layers=layers).layers_gpu == layers
    assert planned("qwen3-14b", gpu(16), gpu_layers=-1).layers_gpu == 41
    assert planned("qwen3-14b", gpu(16), gpu_layers=999).layers_gpu == 41
    with pytest.raises(NoFit, match="can be used"):
        planned("qwen3-14b", gpu(8), gpu_layers=41)
    assert planned("qwen3-14b", cpu(32, 24), gpu_layers=41).layers_gpu == 0


def test_context_is_never_more_than_the_model_was_trained_for_unasked() -> None:
    for trained, expected in ((2048, 2048), (5000, 5000), (8192, 8192), (131072, 8192), (0, 8192)):
        target = replace(model("qwen3-8b"), n_ctx_train=trained)
        devices, host = gpu(24)
        assert plan(target, devices=devices, host=host).n_ctx == expected
    why = " ".join(planned("qwen3-8b", gpu(24), n_ctx=65536).why)
    assert "beyond the 40960" in why


def test_no_draft_if_none_is_wanted() -> None:
    found = planned("qwen3-8b", gpu(24), small_draft(), draft=False)
    assert (found.sources, found.draft) == ((), None)
    assert found.why[-1] == "Nothing is guessed: --draft none."
    assert planned("qwen3-8b", gpu(24)).sources == ("ngram",)


@pytest.mark.parametrize("name", ["qwen35-4b", "mamba2-2.7b", "qwen3-coder-next"])
def test_nothing_is_guessed_for_a_state_that_cannot_be_taken_back(name: str) -> None:
    facts = model_facts([shapes.header(name)], io.BytesIO)
    devices, host = gpu(24)
    found = plan(facts, [small_draft(2.0)], devices=devices, host=host)
    assert (found.sources, found.draft) == ((), None)
    assert "cannot be taken back" in found.why[-1]
    other = plan(model("qwen3-8b"), [Draft("model", "d", facts, 2.0)], devices=devices, host=host)
    assert other.draft is None


def test_the_best_draft_that_fits_is_taken() -> None:
    big = Draft("model", "big.gguf", model("qwen3-8b"), gain=3.0)
    little, losing = small_draft(1.5), Draft("model", "losing.gguf", model("qwen3-0.6b-q8_0"), gain=1.05)
    assert planned("qwen3-32b", gpu(48), little, losing, big).sources == ("ngram", "big.gguf")
    assert planned("qwen3-32b", gpu(24.5), little, losing, big).draft == little
    assert planned("qwen3-32b", gpu(48), losing).draft is None
    assert planned("qwen3-32b", gpu(24.5), little).gain == 1.5
    asked = replace(losing, asked=True)
    assert planned("qwen3-32b", gpu(48), asked).draft == asked
    assert planned("qwen3-32b", gpu(48), asked).rank > planned("qwen3-32b", gpu(48)).rank


def test_the_draft_lies_wholly_on_the_first_gpu() -> None:
    draft, host = small_draft(), Host(24 * GIB, 32 * GIB)
    two = [device("CUDA0", 12, 12), device("CUDA1", 12, 12)]
    with_draft = plan(model("qwen3-32b"), [draft], devices=two, host=host)
    assert with_draft.draft is None  # beside it the target would not fit
    roomy = [device("CUDA0", 16, 16), device("CUDA1", 12, 12)]
    found = plan(model("qwen3-32b"), [draft], devices=roomy, host=host)
    assert found.draft == draft
    own = place(draft.facts, Context(8192), n_units(draft.facts), {"CUDA0": 2**60})
    assert own is not None
    assert found.bytes_by_device["CUDA0"] == found.needs["CUDA0"].total + own.needs["CUDA0"].total
    assert found.bytes_by_device["CUDA1"] == found.needs["CUDA1"].total
    assert found.bytes_by_device[HOST] == found.needs[HOST].total + own.needs[HOST].total


def test_a_drafts_cache_stays_in_f16() -> None:
    found = planned("qwen3-8b", gpu(24), small_draft(), kv_type="q8_0")
    own = place(small_draft().facts, Context(8192, "f16"), 29, {"CUDA0": 2**60})
    assert own is not None
    assert found.bytes_by_device["CUDA0"] - found.needs["CUDA0"].total == own.needs["CUDA0"].total


def test_a_draft_gains_less_on_a_mixture() -> None:
    devices, host = gpu(32)
    mixture = model("qwen3-30b-a3b")
    assert plan(mixture, [small_draft()], devices=devices, host=host).draft is None
    dense = replace(mixture, experts=(0, 0))
    assert plan(dense, [small_draft()], devices=devices, host=host).draft is not None


def test_several_gpus_are_filled_one_after_the_other() -> None:
    host = Host(24 * GIB, 32 * GIB)
    three = [device(f"CUDA{i}", 12, 12) for i in range(3)]
    found = plan(model("qwen3-32b"), devices=three, host=host)
    assert (found.layers_gpu, found.n_ctx, found.kv_type) == (65, 8192, "f16")
    assert sum(found.split.values()) == 65
    assert set(found.split) == {"CUDA0", "CUDA1"}
    assert plan(model("qwen3-8b"), devices=three, host=host).split == {"CUDA0": 37}


def test_integrated_gpus_count_only_without_others_and_share_the_hosts_memory() -> None:
    host = Host(20 * GIB, 32 * GIB)
    igpu, other = device("Vulkan1", 24, 24, "igpu"), device("Vulkan0", 12, 12)
    assert set(plan(model("qwen3-8b"), devices=[igpu, other], host=host).bytes_by_device) == {"Vulkan0", HOST}
    assert plan(model("qwen3-8b"), devices=[igpu], host=host).split == {"Vulkan1": 37}
    with pytest.raises(NoFit):
        plan(model("qwen3-32b"), devices=[igpu], host=host)
    apart = replace(igpu, kind="gpu")
    assert plan(model("qwen3-32b"), devices=[apart], host=host).layers_gpu == 65


def test_low_bit_copies_are_offered_where_they_can_win() -> None:
    for name, bits, machine, wins in (
        ("qwen3-8b-q8_0", 4.5, gpu(24), True),
        ("qwen3-8b", 2.6, gpu(24), False),
        ("qwen3-8b-q8_0", 4.5, cpu(64, 48), False),
    ):
        copy = Draft("self", "copy", low_bit(model(name), bits))
        assert (planned(name, machine, copy).draft is not None) == wins, name


def test_heads_are_named_and_not_driven() -> None:
    head = replace(model("qwen3-0.6b-q8_0"), head="eagle3")
    drafts = [Draft("head inside", "nextn", model("qwen3-8b"), 2.0), Draft("head file", "e3.gguf", head, 2.0)]
    found = planned("qwen3-8b", gpu(24), *drafts, Draft("model", "mistaken.gguf", head, 2.0))
    assert found.sources == ("ngram",)
    for name in ("nextn", "e3.gguf", "mistaken.gguf"):
        assert any(name in why and "recognised as a head" in why for why in found.why)


def test_what_is_no_model_of_its_own_is_refused() -> None:
    devices, host = gpu(24)
    for changed in (replace(model("qwen3-8b"), head="mtp"), replace(model("qwen3-8b"), embedding_only=True)):
        with pytest.raises(BadModelFile):
            plan(changed, devices=devices, host=host)
    odd = replace(model("qwen3-8b"), head_sizes=frozenset({80}))
    with pytest.raises(UsageError, match="80"):
        plan(odd, devices=devices, host=host, wishes=Wishes(kv_type="q8_0"))
    assert plan(odd, devices=[device("CUDA0", 5.5, 8)], host=host).kv_type == "f16"


@pytest.mark.parametrize(
    ("name", "machine", "wishes", "flag"),
    [
        ("qwen3-8b", cpu(16, 8), {"n_ctx": 131072}, "--ctx"),
        ("qwen3-8b", cpu(8, 5.65), {}, "--ctx"),
        ("qwen3-8b", cpu(8, 6.3), {"n_ctx": 8192, "kv_type": "f32"}, "--kv-type"),
        ("qwen3-32b", gpu(24), {"n_ctx": 40960, "gpu_layers": 65}, "--ctx"),
        ("qwen3-32b", gpu(12), {"gpu_layers": 65}, "--gpu-layers"),
    ],
)
def test_the_hint_names_the_smallest_change_that_fits(
    name: str, machine: Machine, wishes: dict[str, Any], flag: str
) -> None:
    with pytest.raises(NoFit) as error:
        planned(name, machine, **wishes)
    assert re.search(r"needs \d+\.\d GiB with \d+ tokens", error.value.message)
    assert flag in error.value.hint
    value = re.search(r"--[a-z-]+ (\S+)", error.value.hint)
    if flag == "--ctx":
        assert value
        n_ctx = int(value[1])
        assert planned(name, machine, **wishes | {"n_ctx": n_ctx}).n_ctx == n_ctx
        with pytest.raises(NoFit):
            planned(name, machine, **wishes | {"n_ctx": n_ctx + 256})
    elif flag == "--kv-type":
        assert value
        assert planned(name, machine, **wishes | {"kv_type": value[1]})
    else:
        assert planned(name, machine, **wishes | {"gpu_layers": None})


def test_what_is_short_is_said_where_no_flag_helps() -> None:
    with pytest.raises(NoFit) as error:
        planned("qwen3-32b", gpu(12, ram=16, free=8))
    numbers = [float(n) for n in re.findall(r"(\d+\.\d) GiB", error.value.message + error.value.hint)]
    need, on_gpu, on_host, more, at_most = numbers
    assert need == pytest.approx(on_gpu + on_host + more, abs=0.3)
    assert at_most == pytest.approx(model("qwen3-32b").bytes_file / GIB - more, abs=0.1)
    found = planned("qwen3-32b", gpu(12, ram=16, free=8 + more + 0.1))
    assert found.layers_gpu > 0


def test_reasons_give_the_numbers() -> None:
    found = planned("qwen3-32b", gpu(12), small_draft())
    text = " ".join(found.why)
    devices, _ = gpu(12)
    for part in (
        f"{found.layers_gpu} of 65 layers",
        f"{found.bytes_by_device['CUDA0'] / GIB:.1f} GiB",
        f"{devices[0].bytes_free / GIB:.1f} GiB are free, {margin(devices[0].bytes_total) / GIB:.1f} GiB",
        "4096 tokens instead of 8192",
        "Q8_0, with flash attention: 0.5 GiB, in F16 1.0 GiB",
        "does not fit beside the model",
        "repetitions from the text takes no memory",
    ):
        assert part in text, part
    assert all(why.endswith(".") and why.count(". ") == 0 for why in found.why)
    assert "no GPU is there" in " ".join(planned("qwen3-8b", cpu(32, 24)).why)


def test_margin() -> None:
    assert [margin(n * GIB) for n in (0, 8, 1000)] == [2**28, 2**28 + 8 * GIB // 20, GIB]


names = st.sampled_from(["qwen3-8b", "qwen3-14b", "qwen3-32b", "qwen3-30b-a3b", "gemma3-4b", "qwen3-8b-q8_0"])
memory = st.integers(0, 40 * 16).map(lambda sixteenths: sixteenths * GIB // 16)
kinds = st.sampled_from([("CUDA", "gpu"), ("MTL", "gpu"), ("Vulkan", "igpu")])
wished = st.fixed_dictionaries(
    {},
    optional={
        "n_ctx": st.sampled_from([256, 4096, 32768]),
        "kv_type": st.sampled_from(["f16", "q8_0"]),
        "gpu_layers": st.integers(0, 70),
        "draft": st.booleans(),
        "flash": st.booleans(),
    },
)


def attempt(
    name: str, sizes: list[int], kind: tuple[str, Any], host: tuple[int, int], wishes: Mapping[str, Any]
) -> Plan | None:
    devices = [Device(f"{kind[0]}{i}", "", kind[1], size, size) for i, size in enumerate(sizes)]
    drafts = [small_draft(), Draft("model", "big.gguf", model("qwen3-8b"), 1.3)]
    try:
        return plan(model(name), drafts, devices=devices, host=Host(*host), wishes=Wishes(**wishes))
    except NoFit:
        return None


@settings(max_examples=200, deadline=None)
@given(names, st.lists(memory, max_size=3), kinds, memory, wished, st.data())
def test_more_memory_never_gives_a_plan_of_lower_rank(
    name: str, sizes: list[int], kind: tuple[str, Any], ram: int, wishes: dict[str, Any], data: st.DataObject
) -> None:
    less = attempt(name, sizes, kind, (ram, ram), wishes)
    grown = [size + data.draw(memory) for size in sizes]
    total = ram + data.draw(memory)
    more = attempt(name, grown, kind, (total, total), wishes)
    if less:
        assert more
        assert more.rank >= less.rank


@settings(max_examples=200, deadline=None)
@given(names, st.lists(memory, max_size=3), kinds, memory, wished)
def test_no_plan_takes_more_than_free_minus_margin(
    name: str, sizes: list[int], kind: tuple[str, Any], ram: int, wishes: dict[str, Any]
) -> None:
    found = attempt(name, sizes, kind, (ram, ram), wishes)
    if found is None:
        return
    for i, size in enumerate(sizes):
        assert found.bytes_by_device.get(f"{kind[0]}{i}", 0) <= max(0, size - margin(size))
    shared = found.bytes_by_device.values() if kind[0] != "CUDA" else [found.bytes_by_device[HOST]]
    assert sum(shared) <= ram - margin(ram)
    assert sum(found.split.values()) == found.layers_gpu
    if "n_ctx" in wishes:
        assert found.n_ctx == wishes["n_ctx"]
    if "kv_type" in wishes:
        assert found.kv_type == wishes["kv_type"]
    if found.draft:
        assert wishes.get("draft", True)
        assert found.sources[-1] == found.draft.name
