"""The deep copy: the same function from more layers, the same header, and nothing at all when refused."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import tiny
from gguf import GGUFReader

from localspec.engine.types import Logits
from localspec.llama.library import api
from localspec.llama.model import LlamaModel, LoadOptions

SCRIPT = Path(__file__).parent.parent / "scripts" / "make_testbed.py"
OPTIONS = LoadOptions(n_ctx=256, threads=1)
TOKENS = [tiny.FIRST_BYTE + byte for byte in b"def deep(copy): return copy"]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_testbed", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks its own module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def add_biases(tensors: dict[str, np.ndarray]) -> None:
    """Biases on what the blocks add, none of which cancels another: a copy that keeps one shows."""
    for i in range(2):
        tensors[f"blk.{i}.attn_output.bias"] = np.linspace(-1, 1, 64, dtype=np.float32)
        tensors[f"blk.{i}.ffn_down.bias"] = np.linspace(2, -3, 64, dtype=np.float32)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same random llama of two layers in each type that can be copied, and in one that cannot."""
    folder = tmp_path_factory.mktemp("sources")
    made = {"F32": tiny.write_llama(folder / "f32.gguf")}
    # 256 columns: what Q4_K needs.
    wide = tiny.write_llama(folder / "wide.gguf", n_embd=256, n_head=4, n_ff=256)
    for kind in ("F16", "Q8_0", "Q4_0", "Q4_1"):
        made[kind] = tiny.quantize(made["F32"], folder / f"{kind}.gguf", kind)
    made["Q4_K"] = tiny.quantize(wide, folder / "q4_k.gguf", "Q4_K_M")
    made["bias"] = tiny.write_llama(folder / "bias.gguf", change=add_biases)
    return made


def logits(path: Path) -> Logits:
    """Rows after a pass of all but two tokens, then after each of the last two."""
    with LlamaModel(path, OPTIONS) as model:
        parts = [model.eval(TOKENS[:-2], rows=len(TOKENS) - 2).copy()]
        parts += [model.eval([token]).copy() for token in TOKENS[-2:]]
    return np.concatenate(parts)


def n_layers(path: Path) -> int:
    with LlamaModel(path, OPTIONS) as model:
        return int(api.llama_model_n_layer(model._model))


@pytest.mark.parametrize("kind", ["Q8_0", "F16", "Q4_0", "Q4_1"])
def test_the_copy_computes_the_same_bits(script, sources, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "deep.gguf"
    size = script.make_testbed(sources[kind], out, 7)  # no multiple of 2: the last round of copies is partial
    assert size == out.stat().st_size
    assert n_layers(out) == 7
    assert np.array_equal(logits(out), logits(sources[kind]))


@pytest.mark.parametrize("kind", ["F32", "bias"])
def test_the_copy_of_f32_weights_computes_the_same(script, sources, tmp_path: Path, kind: str) -> None:
    script.make_testbed(sources[kind], tmp_path / "deep.gguf", 7)
    np.testing.assert_allclose(logits(tmp_path / "deep.gguf"), logits(sources[kind]), rtol=0, atol=1e-5)


def test_added_blocks_cost_what_a_block_costs(script, sources, tmp_path: Path) -> None:
    """Every tensor of a block is there, in its type and with its bytes, but the two that are silenced."""
    script.make_testbed(sources["Q8_0"], tmp_path / "deep.gguf", 5)
    tensors = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "deep.gguf").tensors}
    source = {tensor.name: tensor for tensor in GGUFReader(sources["Q8_0"]).tensors}
    blocks = {name for name in source if name.startswith("blk.")}
    assert len(tensors) == len(source) + 3 * len(blocks) // 2
    for name, tensor in tensors.items():
        _, _, rest = name.partition(".")
        index, _, part = rest.partition(".")
        origin = source[f"blk.{int(index) % 2}.{part}" if name.startswith("blk.") else name]
        assert (tensor.tensor_type, list(tensor.shape)) == (origin.tensor_type, list(origin.shape))
        silenced = (
            name.startswith("blk.") and int(index) >= 2 and part.startswith(("attn_output", "ffn_down"))
        )
        assert np.array_equal(tensor.data, np.zeros_like(origin.data) if silenced else origin.data), name


def test_every_key_but_the_layer_count_is_the_same(script, sources, tmp_path: Path) -> None:
    script.make_testbed(sources["Q8_0"], tmp_path / "deep.gguf", 5)
    (old, new) = (GGUFReader(path).fields for path in (sources["Q8_0"], tmp_path / "deep.gguf"))
    assert list(old) == list(new)
    changed = {name: (old[name].contents(), new[name].contents()) for name in old if name[:5] != "GGUF."}
    assert {name for name, (a, b) in changed.items() if a != b} == {"llama.block_count"}
    assert all(old[name].types == new[name].types for name in old)
    assert len(changed["tokenizer.ggml.tokens"][1]) > 300


def refused(script, source: Path, out: Path, layers: int, why: str, **options: bool) -> None:
    """It raises, says why, and leaves nothing new beside `out`."""
    before = sorted(out.parent.rglob("*"))
    with pytest.raises(script.Refused, match=why):
        script.make_testbed(source, out, layers, **options)
    assert sorted(out.parent.rglob("*")) == before


def test_what_it_cannot_copy_is_refused(script, sources, tmp_path: Path) -> None:
    out = tmp_path / "out" / "deep.gguf"
    out.parent.mkdir()
    refused(script, sources["F32"], out, 1, "--layers 1: the source has 2")
    refused(script, sources["F32"], out, 513, "at most 512")
    refused(script, sources["Q4_K"], out, 7, "is Q[46]_K: zeros are known for F16, F32")
    refused(script, tiny.write_swa(tmp_path / "swa.gguf"), out, 7, "architecture gemma3")
    refused(script, tiny.write_split(tmp_path)[0][0], out, 7, "one shard of several")
    for kind in ("not_gguf", "data"):
        refused(script, tiny.write_damaged(tmp_path / "bad.gguf", kind), out, 7, "not a whole GGUF")

    def no_ffn(tensors: dict[str, np.ndarray]) -> None:
        del tensors["blk.1.ffn_down.weight"]

    lacking = tiny.write_llama(tmp_path / "lacking.gguf", change=no_ffn)
    refused(script, lacking, out, 7, r"blk\.1\.ffn_down\.weight is missing")


def test_an_existing_file_is_replaced_only_by_force(script, sources, tmp_path: Path) -> None:
    out = tmp_path / "deep.gguf"
    out.write_text("mine")
    refused(script, sources["F32"], out, 3, "--force replaces it")
    assert out.read_text() == "mine"
    size = script.make_testbed(sources["F32"], out, 3, force=True)
    assert out.stat().st_size == size
    shutil.copy(sources["F32"], tmp_path / "source.gguf")
    refused(script, tmp_path / "source.gguf", tmp_path / "source.gguf", 3, "it is the source", force=True)


def test_it_asks_for_room_first(script, sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    size = script.make_testbed(sources["F32"], tmp_path / "a.gguf", 3)
    monkeypatch.setattr(script.shutil, "disk_usage", lambda _: usage(size - 1))
    refused(script, sources["F32"], tmp_path / "b.gguf", 3, "try fewer --layers")
    monkeypatch.setattr(script.shutil, "disk_usage", lambda _: usage(size))
    script.make_testbed(sources["F32"], tmp_path / "b.gguf", 3)


def test_a_failed_write_leaves_nothing(script, sources, tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(script, "_write_tensor", full)
    with pytest.raises(OSError, match="No space"):
        script.make_testbed(sources["F32"], tmp_path / "deep.gguf", 3)
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_what_it_made_or_why_not(
    script, sources, tmp_path: Path, monkeypatch, capsys
) -> None:
    arguments = ["make_testbed", str(sources["F32"]), str(tmp_path / "deep.gguf"), "--layers", "3"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert script.main() == 0
    assert "3 layers" in capsys.readouterr().out
    assert script.main() == 1
    assert capsys.readouterr().err == f"make_testbed: {tmp_path}/deep.gguf exists: --force replaces it\n"
