"""The header reader believes no file, and what it derives agrees with llama.cpp and the gguf package."""

from __future__ import annotations

import ctypes
import io
import random
import shutil
import struct
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf as gguf_package
import llama_cpp
import pytest
import shapes
import tiny

from localspec.errors import BadModelFile, VocabularyError
from localspec.llama.library import ggml_function
from localspec.llama.model import LlamaModel, LoadOptions
from localspec.models import facts as facts_module
from localspec.models.facts import ModelFacts, VocabularyFacts, low_bit, model_facts, read_model
from localspec.models.gguf import MAX_HEADER, TENSOR_TYPES, Array, Header, Tensor, read_header, read_strings
from localspec.models.pairs import check_vocabulary

U32, STRING, ARRAY, F32 = 4, 8, 9, 6
Key = tuple[str | bytes, int, bytes]
Info = tuple[str, Sequence[int], int, int]


def text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def word(key: str, value: str) -> Key:
    return key, STRING, text(value)


def number(key: str, value: int) -> Key:
    return key, U32, struct.pack("<I", value)


def array(key: str, kind: int, count: int, items: bytes) -> Key:
    return key, ARRAY, struct.pack("<IQ", kind, count) + items


ARCH = word("general.architecture", "llama")


def build(keys: Sequence[Key] = (ARCH,), infos: Sequence[Info] = (), **start: Any) -> bytes:
    """A header by hand. `start`: magic, version, n_keys or n_tensors other than the true ones."""
    magic, version = start.get("magic", b"GGUF"), start.get("version", 3)
    counts = struct.pack("<QQ", start.get("n_tensors", len(infos)), start.get("n_keys", len(keys)))
    body = b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in keys)
    for name, shape, kind, offset in infos:
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        body += text(name) + sizes + struct.pack("<IQ", kind, offset)
    whole: bytes = magic + struct.pack("<I", version) + counts + body
    return whole + bytes(-len(whole) % 32)


def read(data: bytes, name: str = "m.gguf") -> Header:
    return read_header(io.BytesIO(data), name)


def derive(data: bytes) -> ModelFacts:
    return model_facts([read(data)], lambda: io.BytesIO(data))


def test_tensor_types_are_ggmls() -> None:
    name_of = ggml_function("ggml_type_name", [ctypes.c_int], ctypes.c_char_p)
    block_of = ggml_function("ggml_blck_size", [ctypes.c_int], ctypes.c_int64)
    bytes_of = ggml_function("ggml_type_size", [ctypes.c_int], ctypes.c_size_t)
    ggmls = {kind: (name_of(kind), block_of(kind), bytes_of(kind)) for kind in range(43)}
    known = {kind: (name.decode().upper(), *sizes) for kind, (name, *sizes) in ggmls.items() if sizes[0]}
    assert known == {kind: (name.upper(), *sizes) for kind, (name, *sizes) in TENSOR_TYPES.items()}


def test_reads_what_the_gguf_package_reads(tmp_path: Path) -> None:
    path = tiny.write_hybrid(tmp_path / "m.gguf", dtype="f16")
    reader = gguf_package.GGUFReader(path)
    with path.open("rb") as file:
        header = read_header(file, path.name)
    theirs = [
        Tensor(t.name, tuple(map(int, t.shape)), t.tensor_type.name, t.n_elements, t.n_bytes, t.data_offset)
        for t in reader.tensors
    ]
    assert list(header.tensors) == theirs
    assert header.bytes_header == reader.data_offset
    assert header.bytes_file == path.stat().st_size
    for key, field in reader.fields.items():
        if key.startswith("GGUF."):
            continue
        value, contents = header.metadata[key], field.contents()
        if isinstance(value, Array):
            assert value.count == len(contents)
        else:
            assert value == (tuple(contents) if isinstance(contents, list) else contents)
    assert set(header.metadata) == {key for key in reader.fields if not key.startswith("GGUF.")}


def test_every_kind_of_value() -> None:
    forms = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
    keys = [(f"k{kind}", kind, struct.pack("<" + form, 1)) for kind, form in forms.items()]
    keys += [word("word", "æ"), array("few", 5, 3, struct.pack("<3i", 1, -2, 3))]
    keys += [("bytes", STRING, text(b"\xff"))]
    metadata = read(build(keys)).metadata
    assert [metadata[f"k{kind}"] for kind in forms] == [1] * len(forms)
    assert metadata["k7"] is True
    assert (metadata["word"], metadata["few"], metadata["bytes"]) == ("æ", (1, -2, 3), "\ufffd")


def test_long_arrays_stay_in_the_file() -> None:
    words = [f"w{i}" for i in range(3000)]
    keys = [array("words", STRING, 3000, b"".join(map(text, words)))]
    keys += [array("numbers", F32, 2000, b"\1" * 8000), array("short", F32, 1024, bytes(4096))]
    keys += [word("long", "x" * (2**20 + 1)), word("last", "end")]
    data = build(keys)
    metadata = read(data).metadata
    kept = metadata["words"]
    assert isinstance(kept, Array)
    assert (kept.kind, kept.count) == (STRING, 3000)
    assert list(read_strings(io.BytesIO(data), kept, "m")) == [w.encode() for w in words]
    assert list(read_strings(io.BytesIO(data), kept, "m", first=2998)) == [b"w2998", b"w2999"]
    start = data.index(b"\1" * 8000)
    assert metadata["numbers"] == Array(F32, 2000, start, start + 8000)
    assert metadata["short"] == (0.0,) * 1024
    assert isinstance(metadata["long"], Array)
    assert metadata["last"] == "end"


MALFORMED = {
    "is empty": b"",
    "is not a GGUF": b"<!DOCTYPE html>",
    "ends inside its header": build()[:40],
    "is GGUF version 99": build(version=99),
    "is GGUF version 1,": build(version=1),
    "is a big-endian GGUF": b"GGUF" + struct.pack(">I", 3) + build()[8:],
    "claims 1152921504606846976 keys": build(n_keys=2**60),
    "claims 1152921504606846976 tensors": build(n_tensors=2**60),
    "has the key 'general.architecture' twice": build([ARCH, ARCH]),
    "has an empty key": build([word("", "x")]),
    "claims 65536 bytes for a key": build([word("k" * 65536, "x")]),
    "has a key that is no UTF-8": build([(b"\xff\xfe", U32, bytes(4))]),
    "has the key k of the unknown type 13": build([("k", 13, bytes(8))]),
    "has the key k of the unknown type 9": build([array("k", ARRAY, 1, bytes(12))]),
    "claims 2147483648 items in k": build([array("k", F32, 2**31, bytes(64))]),
    "claims 4294967296 items in k": build([array("k", STRING, 2**32, bytes(64))]),
    "has general.alignment 12": build([number("general.alignment", 12)]),
    "has general.alignment 0": build([number("general.alignment", 0)]),
    "claims 64 bytes for a tensor's name": build(infos=[("n" * 64, [1], 0, 0)]),
    "gives the tensor t 5 dimensions": build(infos=[("t", [1] * 5, 0, 0)]),
    "has the tensor t in the unknown type 4": build(infos=[("t", [32], 4, 0)]),
    "has the tensor t in the unknown type 1000": build(infos=[("t", [32], 1000, 0)]),
    "gives the tensor t the shape (33,)": build(infos=[("t", [33], 8, 0)]),
    "gives the tensor t the shape (4294967296, 4294967296)": build(infos=[("t", [2**32, 2**32], 0, 0)]),
    "has the tensor t at 32 instead of 0": build(infos=[("t", [8], 0, 32)]),
    "has the tensor u at 0 instead of 32": build(infos=[("t", [8], 0, 0), ("u", [8], 0, 0)]),
    "has two tensors of one name": build(infos=[("t", [8], 0, 0), ("t", [8], 0, 32)]),
    "ends 32 bytes early": build(infos=[("t", [8], 0, 0)]),
    "ends 7 bytes early": build(infos=[("t", [8], 0, 0)]) + bytes(25),
}


@pytest.mark.parametrize("message", MALFORMED)
def test_malformed(message: str) -> None:
    with pytest.raises(BadModelFile) as error:
        read(MALFORMED[message])
    assert error.value.message.startswith("m.gguf ")
    assert message in error.value.message
    assert error.value.hint


def test_truncated_data_hints_at_resuming() -> None:
    with pytest.raises(BadModelFile) as error:
        read(build(infos=[("t", [8], 0, 0)]))
    assert "resume" in error.value.hint


@pytest.mark.parametrize("kind", tiny.DAMAGES)
def test_damaged_files(kind: tiny.Damage, tmp_path: Path) -> None:
    with pytest.raises(BadModelFile):
        read_model(tiny.write_damaged(tmp_path / "m.gguf", kind))


def test_alignment_moves_the_data() -> None:
    data = build([ARCH, number("general.alignment", 256)], [("t", [8], 0, 0), ("u", [8], 0, 256)])
    header = read(data + bytes(1000))
    assert header.bytes_header == 256
    assert [tensor.offset for tensor in header.tensors] == [256, 512]


def test_a_header_has_a_limit() -> None:
    class Endless(io.BytesIO):
        """A file of 1 GB, zeros after its first bytes."""

        def seek(self, offset: int, whence: int = 0) -> int:
            return 2**30 if whence == 2 else super().seek(offset, whence)

        def read(self, n: int | None = -1) -> bytes:
            return super().read(n).ljust(n or 0, b"\0")

    data = build([array("k", F32, MAX_HEADER // 4, b"")])
    with pytest.raises(BadModelFile, match="header of more than 64 MiB"):
        read_header(Endless(data), "m.gguf")


def test_claims_allocate_nothing() -> None:
    claims = [
        build([("k", STRING, struct.pack("<Q", 2**62))]),
        build([array("k", STRING, 2**62, b"")]),
        build([array("k", F32, 2**62, b"")]),
        build(n_tensors=2**62),
        build([array("k", STRING, 1, struct.pack("<Q", 2**63))]),
    ]
    tracemalloc.start()
    for data in claims:
        with pytest.raises(BadModelFile):
            read(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000


def test_any_file_that_seeks_and_reads_will_do(tmp_path: Path) -> None:
    class Dribble(io.BytesIO):
        """A file that gives at most 100 bytes at a time, as a socket may."""

        def read(self, n: int | None = -1) -> bytes:
            return super().read(min(100, n if n and n > 0 else 100))

    data = tiny.write_llama(tmp_path / "m.gguf").read_bytes()
    assert read_header(Dribble(data), "m.gguf") == read(data)


def gemma4_sized() -> bytes:
    """A header like Gemma 4's: 262,144 tokens with scores and types, 514,906 merges, 15.8 MB."""
    n, draw = 262_144, random.Random(0)
    words = b"".join(text(f"t{i:06d}" + "x" * draw.randint(0, 12)) for i in range(n))
    merges = b"".join(text(f"a {i}") for i in range(514_906))
    keys = [word("general.architecture", "gemma4"), array("tokenizer.ggml.tokens", STRING, n, words)]
    keys += [array("tokenizer.ggml.scores", F32, n, bytes(4 * n))]
    keys += [array("tokenizer.ggml.token_type", 5, n, bytes(4 * n))]
    keys += [array("tokenizer.ggml.merges", STRING, 514_906, merges)]
    keys += [word("tokenizer.ggml.model", "gemma4"), number("gemma4.block_count", 0)]
    return build([*keys, number("gemma4.embedding_length", 0)], [("t", [32], 0, 0)]) + bytes(128)


def test_the_largest_vocabulary_is_read_in_no_time(tmp_path: Path) -> None:
    path = tmp_path / "gemma.gguf"
    path.write_bytes(gemma4_sized())
    assert 15.3e6 < path.stat().st_size < 16.3e6

    def seconds() -> float:
        start = time.process_time()
        with path.open("rb") as file:
            assert read_header(file, "m").tensors
        return time.process_time() - start

    assert min(seconds() for _ in range(3)) < 0.25
    tracemalloc.start()
    with path.open("rb") as file:
        header = read_header(file, "m")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6
    tokens = header.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, Array)
    assert tokens.count == 262_144


@pytest.mark.parametrize(
    "write", [tiny.write_llama, tiny.write_swa, tiny.write_recurrent, tiny.write_hybrid, tiny.write_head_only]
)
def test_bit_flips_and_cuts(write: Callable[[Path], Path], tmp_path: Path) -> None:
    """2,000 flips over the five files, and a cut at every 16th byte: a valid header or a BadModelFile."""
    whole = write(tmp_path / "m.gguf").read_bytes()
    size = read(whole).bytes_header
    draw, outcomes, slowest = random.Random(write.__name__), set(), 0.0
    flipped = (draw.randrange(8 * size) for _ in range(400))
    spoilt = [whole[: i // 8] + bytes([whole[i // 8] ^ 1 << i % 8]) + whole[i // 8 + 1 :] for i in flipped]
    cuts = [whole[:n] for n in range(0, size, 16)]
    for data in spoilt + cuts:
        start = time.process_time()
        try:
            model = derive(data)
            assert sum(model.bytes_cache(2048, "q8_0")) >= 0
            assert model.vocabulary is None or model.vocabulary.digest
            outcomes.add("valid")
            assert data not in cuts
        except BadModelFile:
            outcomes.add("refused")
        slowest = max(slowest, time.process_time() - start)
    assert outcomes == {"valid", "refused"}
    assert slowest < 0.05


def test_shards_make_one_model(tmp_path: Path) -> None:
    shards, single = tiny.write_split(tmp_path)
    whole = read_model(single)
    for shard in shards:
        model = read_model(shard)
        assert model.weights == whole.weights
        assert model.bytes_file == sum(path.stat().st_size for path in shards)
        assert model.vocabulary is not None
        assert whole.vocabulary is not None
        assert model.vocabulary.digest == whole.vocabulary.digest


def test_shards_that_do_not_belong_together(tmp_path: Path) -> None:
    shards, _ = tiny.write_split(tmp_path)
    second = shards[1].read_bytes()
    shutil.copy(shards[2], shards[1])
    with pytest.raises(BadModelFile, match="says it is part 3, not 2"):
        read_model(shards[0])
    shards[1].write_bytes(second)
    shards[1].unlink()
    with pytest.raises(BadModelFile, match=r"00002-of-00003\.gguf"):
        read_model(shards[0])
    alone = tmp_path / "renamed.gguf"
    shutil.copy(shards[0], alone)
    with pytest.raises(BadModelFile, match="is part 1 of 3, not of 1"):
        read_model(alone)
    with pytest.raises(BadModelFile, match="cannot read"):
        read_model(tmp_path / "nowhere.gguf")


def test_shards_with_too_few_tensors(tmp_path: Path) -> None:
    shards, _ = tiny.write_split(tmp_path)
    headers = []
    for shard in shards:
        with shard.open("rb") as file:
            headers.append(read_header(file, shard.name))
    first = headers[0]
    fewer = Header(first.name, first.bytes_file, first.bytes_header, first.metadata, first.tensors[1:])
    with pytest.raises(BadModelFile, match="20 tensors instead of 21"):
        model_facts([fewer, *headers[1:]], io.BytesIO)
    twice = Header(first.name, 0, 0, first.metadata, (first.tensors[0], first.tensors[0], *first.tensors[2:]))
    with pytest.raises(BadModelFile, match="another shard has too"):
        model_facts([twice, *headers[1:]], io.BytesIO)


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_caches_are_llama_cpps_to_the_byte(name: str) -> None:
    model = model_facts([shapes.header(name)], io.BytesIO)
    ours = [sum(model.bytes_cache(n_ctx, kind, flash=flash)) for kind, n_ctx, flash in shapes.SETTINGS]
    assert ours == [cache for cache, _ in shapes.REPORTS[name]]


def test_caches_by_hand() -> None:
    """Key-value bytes a token, computed by hand: KiB a token in F16."""
    catalogue = {"qwen3-8b": 144, "qwen3-14b": 160, "qwen3-32b": 256, "qwen3-30b-a3b": 96, "phi-4": 200}
    catalogue |= {"llama-3.1-8b": 128, "qwen35-27b": 64, "qwen36-35b-a3b": 20, "qwen3-coder-next": 24}
    catalogue |= {"gpt-oss-20b": 24, "gemma3-4b": 20, "gemma3-12b": 64, "gemma4-12b": 16, "glm-4.5-air": 184}
    for name, kib in catalogue.items():
        model = model_facts([shapes.header(name)], io.BytesIO)
        more = sum(model.bytes_cache(16384)) - sum(model.bytes_cache(8192))
        assert more == 8192 * kib * 1024, name


def test_cells() -> None:
    plain = model_facts([shapes.header("qwen3-8b")], io.BytesIO)
    assert [plain.cells(n) for n in (1, 256, 257, 8000)] == [(256, 0), (256, 0), (512, 0), (8192, 0)]
    windowed = model_facts([shapes.header("gpt-oss-20b")], io.BytesIO)
    assert [windowed.cells(n) for n in (100, 500, 8192)] == [(256, 256), (512, 512), (8192, 768)]
    unused = model_facts([shapes.header("phi-4")], io.BytesIO)  # its file names a window
    assert (unused.window, unused.cells(8192)) == (0, (8192, 0))


def test_a_cache_type_must_divide_the_heads() -> None:
    model = model_facts([shapes.header("phi-4")], io.BytesIO)
    assert model.allows_kv("q8_0")
    odd = model_facts([shapes.header("phi-4", **{"attention.key_length": 80})], io.BytesIO)
    assert not odd.allows_kv("q8_0")
    assert odd.allows_kv("f16")


def test_mtp_layers_are_counted_apart() -> None:
    shape = shapes.header("qwen35-4b", **{"block_count": 33, "nextn_predict_layers": 1})
    model = model_facts([shape], io.BytesIO)
    trunk = model_facts([shapes.header("qwen35-4b")], io.BytesIO)
    assert (model.n_layers, model.n_layers_mtp) == (32, 1)
    assert sum(model.bytes_cache(8192)) == sum(trunk.bytes_cache(8192))
    head = model.bytes_cache(8192, mtp=True)
    assert head[:-1] == (0,) * 32
    assert head[-1] == 8192 * 2 * 4 * 256 * 2  # one full layer: K and V, 4 heads of 256, two bytes
    kept = sum(trunk.bytes_cache(8192, n_rollback=3)) - sum(trunk.bytes_cache(8192))
    assert kept == 3 * 24 * 4 * (128 * 4096 + 3 * (4096 + 2 * 16 * 128))


TRAITS = {
    tiny.write_llama: ("none", "any", None, False, 0),
    tiny.write_swa: ("none", "any", None, False, 32),
    tiny.write_recurrent: ("recurrent", "none", None, False, 0),
    tiny.write_hybrid: ("hybrid", "bounded", None, False, 0),
    tiny.write_head_only: ("none", "any", "eagle3", False, 0),
    tiny.write_embedding_only: ("none", "any", None, True, 0),
}


@pytest.mark.parametrize("write", TRAITS, ids=lambda write: write.__name__[6:])
def test_traits(write: Callable[[Path], Path], tmp_path: Path) -> None:
    model = read_model(write(tmp_path / "m.gguf"))
    found = (model.recurrence, model.rollback, model.head, model.embedding_only, model.window)
    assert found == TRAITS[write]
    assert model.experts == (0, 0)
    assert model.active_share == 1
    assert model.chat_template == tiny.CHATML
    assert model.name.startswith("tiny ")
    assert model.n_vocab == len(tiny.vocabulary())


@pytest.mark.parametrize("write", [tiny.write_llama, tiny.write_swa, tiny.write_recurrent, tiny.write_hybrid])
def test_sizes_are_what_llama_cpp_loads(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    model = read_model(path)
    with LlamaModel(path, LoadOptions(n_ctx=256)) as loaded:
        assert model.weights.total == llama_cpp.llama_model_size(loaded._model)
        assert model.n_parameters == llama_cpp.llama_model_n_params(loaded._model)
        assert model.n_ctx_train == loaded.n_ctx_train
        assert model.n_layers == llama_cpp.llama_model_n_layer(loaded._model)
        assert model.widths.embd == llama_cpp.llama_model_n_embd(loaded._model)
        assert model.window == llama_cpp.llama_model_n_swa(loaded._model)


def test_weights_by_place(tmp_path: Path) -> None:
    model = read_model(tiny.write_llama(tmp_path / "m.gguf", n_layer=3))
    weights, n_vocab = model.weights, len(tiny.vocabulary())
    layer = 4 * (64 + 64 * 64 + 2 * 32 * 64 + 64 * 64 + 64 + 3 * 128 * 64)
    assert weights.layers == (layer,) * 3
    assert weights.output == weights.embedding == weights.output_host == 4 * 64 * n_vocab
    assert (weights.rest, weights.largest, weights.tied) == (4 * 64, 4 * 128 * 64, False)
    assert weights.active == weights.total - weights.embedding
    assert model.bits_per_weight == 32


def test_tied_weights() -> None:
    for kind, repacked in (("Q8_0", False), ("Q4_0", True)):
        listed = shapes.tensors("qwen3-0.6b", kind, tied=True)
        weights = model_facts([shapes.header("qwen3-0.6b", listed)], io.BytesIO).weights
        assert weights.tied
        assert weights.output == weights.embedding
        assert weights.output_host == (weights.embedding if repacked else 0)
        assert weights.total == sum(weights.layers) + weights.embedding + weights.rest


def test_active_share_of_a_mixture() -> None:
    """30B-A3B: about a ninth of the weights is read for a token (3.3 of 30.5 billion, by its makers)."""
    shape = shapes.header("qwen3-30b-a3b", shapes.tensors("qwen3-30b-a3b", "F16"))
    model = model_facts([shape], io.BytesIO)
    assert model.experts == (128, 8)
    assert model.n_parameters == pytest.approx(30.53e9, rel=0.001)
    assert model.weights.active / 2 + 151936 * 2048 == pytest.approx(3.34e9, rel=0.01)
    assert model.active_share == pytest.approx(0.1, abs=0.005)
    assert model.bits_per_weight == pytest.approx(16, abs=0.01)


def test_low_bit_copy() -> None:
    shape = shapes.header("qwen3-8b", shapes.tensors("qwen3-8b", "Q8_0"))
    model = model_facts([shape], io.BytesIO)
    copy = low_bit(model, 4.25)
    assert copy.bits_per_weight == pytest.approx(4.25, rel=0.01)
    assert copy.weights.active == pytest.approx(model.weights.active / 2, rel=0.01)
    assert copy.layers == model.layers
    assert low_bit(model, 16).weights == model.weights


def header_with(arch: str, names: Sequence[str], **keys: int) -> ModelFacts:
    metadata = {"general.architecture": arch, **{f"{arch}.{key}": value for key, value in keys.items()}}
    metadata.setdefault(f"{arch}.embedding_length", 64)
    tensors = tuple(Tensor(name, (32,), "F32", 32, 128, 128 * i) for i, name in enumerate(names))
    return model_facts([Header("m.gguf", 0, 0, metadata, tensors)], io.BytesIO)


def test_heads_are_recognised() -> None:
    nextn, trunk = "blk.2.nextn.eh_proj.weight", "blk.0.attn_q.weight"
    layers = {"block_count": 3, "nextn_predict_layers": 1}
    inside = header_with("glm4moe", [trunk, nextn], **layers)
    assert (inside.head, inside.mtp_inside) == (None, True)
    without = header_with("glm4moe", [trunk], **layers)
    assert (without.head, without.mtp_inside) == (None, False)
    sidecar = header_with("glm4moe", [nextn], **layers)
    assert (sidecar.head, sidecar.mtp_inside) == ("mtp", False)
    assert header_with("dflash", [trunk], block_count=1).head == "dflash"
    assert header_with("dflash", [trunk, "markov_w1.weight"], block_count=1).head == "dspark"
    assert header_with("gemma4-assistant", [trunk], block_count=1).head == "assistant"
    assert header_with("qwen3", [trunk], block_count=1, pooling_type=3).embedding_only
    assert not header_with("deepseek4", [trunk], block_count=1).caches_known


def test_facts_of_a_damaged_header() -> None:
    for keys in ({"block_count": 513}, {"block_count": "two"}, {}, {"block_count": -1}):
        with pytest.raises(BadModelFile):
            header_with("llama", [], **keys)
    with pytest.raises(BadModelFile, match="one number to each of 2 layers"):
        header_with("llama", [], **{"block_count": 2, "attention.head_count": (1, 2, 3)})
    with pytest.raises(BadModelFile, match="does not name its architecture"):
        model_facts([Header("m.gguf", 0, 0, {}, ())], io.BytesIO)


def vocabulary(path: Path) -> VocabularyFacts:
    found = read_model(path).vocabulary
    assert found is not None
    return found


@pytest.mark.parametrize(
    "write", [tiny.write_llama, tiny.write_hybrid, tiny.write_bigger_vocab, tiny.write_other_vocab]
)
def test_vocabulary_facts_are_llama_cpps(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    ours = vocabulary(path)
    with LlamaModel(path, LoadOptions(n_ctx=256)) as model:
        check_vocabulary(model.vocab, ours)
        theirs = [model.vocab.text(i) for i in range(model.n_vocab)]
    assert [ours.text(i) for i in range(ours.n_tokens)] == theirs


def test_vocabulary_facts_of_a_real_model(real_model: Path) -> None:
    ours = vocabulary(real_model)
    with LlamaModel(real_model, LoadOptions(n_ctx=256)) as model:
        check_vocabulary(model.vocab, ours)


def test_special_tokens_where_a_file_names_none() -> None:
    """llama.cpp's defaults by tokenizer (llama-vocab.cpp): kind, BOS, EOS, and whether they are added."""
    expected = {"llama": (1, 1, 2, True, False), "gpt2": (2, 11, 11, False, False)}
    expected |= {"bert": (3, 101, -1, True, False), "t5": (4, -1, 1, False, True)}
    expected |= {"rwkv": (5, -1, -1, False, False), "plamo2": (6, 1, 2, False, False)}
    expected |= {"gemma4": (2, 11, 11, True, False)}
    base = [ARCH, number("llama.block_count", 0), number("llama.embedding_length", 64)]
    tokens = array("tokenizer.ggml.tokens", STRING, 1, text("a"))
    for model, wanted in expected.items():
        v = derive(build([*base, tokens, word("tokenizer.ggml.model", model)])).vocabulary
        assert v is not None
        assert (v.kind, v.bos, v.eos, v.adds_bos, v.adds_eos) == wanted, model
    v = derive(
        build([*base, tokens, word("tokenizer.ggml.model", "gpt2"), word("tokenizer.ggml.pre", "llama-bpe")])
    ).vocabulary
    assert v is not None
    assert v.adds_bos


def test_vocabularies_are_told_apart(tmp_path: Path) -> None:
    plain = vocabulary(tiny.write_llama(tmp_path / "plain.gguf"))
    same = vocabulary(tiny.write_hybrid(tmp_path / "same.gguf"))
    other = vocabulary(tiny.write_other_vocab(tmp_path / "other.gguf"))
    bigger = vocabulary(tiny.write_bigger_vocab(tmp_path / "bigger.gguf"))
    assert plain.digest == same.digest
    assert len({plain.digest, other.digest, bigger.digest}) == 3
    changed = sorted(tiny.FIRST_BYTE + ord(letter) for letter in "aetn")
    assert plain.differences(other, limit=9) == changed
    assert plain.differences(other, limit=2) == changed[:2]
    assert plain.differences(bigger) == plain.differences(same) == []
    check_vocabulary(plain, same)
    with pytest.raises(VocabularyError):
        check_vocabulary(plain, other)


def test_the_first_five_texts_do_not_count() -> None:
    def digest(*words: str) -> str:
        tokens = array("tokenizer.ggml.tokens", STRING, len(words), b"".join(map(text, words)))
        keys = [ARCH, number("llama.block_count", 0), number("llama.embedding_length", 64), tokens]
        found = derive(build(keys)).vocabulary
        assert found is not None
        return found.digest

    words = list("abcdefgh")
    assert digest(*words) == digest("X", "YY", "", "q", "zzz", *words[5:])
    assert digest(*words) != digest(*words[:5], "ff", *words[6:])
    assert digest(*words[:5], "ab", "c") != digest(*words[:5], "a", "bc")


def test_token_texts_are_read_only_when_asked_for(tmp_path: Path) -> None:
    data = tiny.write_llama(tmp_path / "m.gguf").read_bytes()
    opened = []

    def open_file() -> io.BytesIO:
        opened.append(1)
        return io.BytesIO(data)

    found = model_facts([read(data)], open_file).vocabulary
    assert found is not None
    assert not opened
    assert found.text(2) == "<|im_end|>"
    assert found.text(tiny.FIRST_BYTE + ord("a")) == "a"
    assert len(opened) == 1


def test_fingerprints(tmp_path: Path) -> None:
    path = tiny.write_llama(tmp_path / "m.gguf")
    data = path.read_bytes()
    first = read_model(path).fingerprint
    (tmp_path / "copy.gguf").write_bytes(data)
    assert read_model(tmp_path / "copy.gguf").fingerprint == first
    assert len(first) == 64
    others = {
        "data": data[:-1] + bytes([data[-1] ^ 1]),
        "header": data.replace(b"tiny llama", b"tiny llamb"),
        "size": data + bytes(32),
    }
    for name, changed in others.items():
        (tmp_path / name).write_bytes(changed)
    prints = {read_model(tmp_path / name).fingerprint for name in others}
    assert len(prints | {first}) == 4


def test_a_large_file_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large.gguf"
    keys = [ARCH, number("llama.block_count", 0), number("llama.embedding_length", 64)]
    head = build(keys, [("t", [2**31], 0, 0)])
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + 2**33)  # 8 GiB, sparse
    real, read_bytes = facts_module._blocks, []

    def counted(file: Any, start: int, end: int) -> Any:
        read_bytes.append(end - start)
        return real(file, start, end)

    monkeypatch.setattr(facts_module, "_blocks", counted)
    start = time.process_time()
    model = read_model(path)
    assert time.process_time() - start < 1
    assert model.bytes_file == len(head) + 2**33
    assert sum(read_bytes) <= len(head) + 16 * 2**16


def test_samples_reach_the_whole_file(tmp_path: Path) -> None:
    keys = [ARCH, number("llama.block_count", 0), number("llama.embedding_length", 64)]
    head, size = build(keys, [("t", [2**18], 0, 0)]), 2**20
    prints = set()
    for changed in (None, *range(0, size, size // 16), size - 1):
        data = bytearray(head + bytes(size))
        if changed is not None:
            data[len(head) + changed] = 1
        (tmp_path / "m.gguf").write_bytes(bytes(data))
        prints.add(read_model(tmp_path / "m.gguf").fingerprint)
    (tmp_path / "m.gguf").write_bytes(head + bytes(size + 32))
    prints.add(read_model(tmp_path / "m.gguf").fingerprint)
    assert len(prints) == 19
