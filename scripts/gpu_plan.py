"""Compares the plan with what llama.cpp really allocates on a GPU, for a random model of 8B shape.

    python scripts/gpu_plan.py [--build LLAMA_CPP_PYTHON_SDIST.tar.gz] [--layers 32] [--ctx 8192 32768]

UNTESTED on a GPU: no such machine could be had when it was written; on a CPU it runs with --layers 2.
--build first compiles llama-cpp-python from a local sdist for the one CUDA architecture of this machine, so
that nothing but the sdist has to be carried there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

N_EMBD, N_FF, N_HEAD, N_HEAD_KV, N_VOCAB = 4096, 14336, 32, 8, 32000


def build(sdist: Path) -> None:
    """Compile for this GPU only: a quarter of the time of all architectures."""
    flags = "-DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES=native -DLLAVA_BUILD=off"
    command = [sys.executable, "-m", "pip", "install", "--force-reinstall", "--no-deps", str(sdist)]
    subprocess.run(command, check=True, env={**os.environ, "CMAKE_ARGS": flags})


def write_8b(path: Path, n_layer: int) -> Path:
    """Random Q4_0 weights in the shape of an 8B llama, 4.3 GiB with 32 layers."""
    random = np.random.default_rng(0)
    writer = GGUFWriter(path, "llama")
    writer.add_name("random 8B")
    writer.add_context_length(32768)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"token{i}" for i in range(N_VOCAB)])
    writer.add_token_types([1] * N_VOCAB)
    writer.add_token_merges(["t o"])
    writer.add_eos_token_id(0)

    def q4_0(name: str, rows: int, columns: int) -> None:
        blocks = random.integers(0, 256, (rows, columns // 32 * 18), dtype=np.uint8)
        blocks.reshape(rows, -1, 18)[:, :, :2] = np.frombuffer(np.float16(1e-3).tobytes(), np.uint8)
        writer.add_tensor(name, blocks, raw_dtype=GGMLQuantizationType.Q4_0)

    q4_0("token_embd.weight", N_VOCAB, N_EMBD)
    q4_0("output.weight", N_VOCAB, N_EMBD)
    writer.add_tensor("output_norm.weight", np.ones(N_EMBD, np.float32))
    n_kv = N_EMBD * N_HEAD_KV // N_HEAD
    for i in range(n_layer):
        shapes = {"attn_q": (N_EMBD, N_EMBD), "attn_k": (n_kv, N_EMBD), "attn_v": (n_kv, N_EMBD)}
        shapes |= {"attn_output": (N_EMBD, N_EMBD), "ffn_gate": (N_FF, N_EMBD), "ffn_up": (N_FF, N_EMBD)}
        for name, (rows, columns) in {**shapes, "ffn_down": (N_EMBD, N_FF)}.items():
            q4_0(f"blk.{i}.{name}.weight", rows, columns)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(N_EMBD, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def compare(path: Path, n_ctx: int) -> bool:
    """Plan, load, and print planned against allocated bytes by device. True within 10 %."""
    from localspec.config import Settings
    from localspec.llama.model import LlamaModel, LoadOptions
    from localspec.loading import Machine, make_plan
    from localspec.models.facts import read_model

    found = make_plan(read_model(path), [], Settings(ctx=n_ctx), Machine.here())
    split = tuple(float(n) for n in found.split.values())
    options = LoadOptions(n_ctx, 4, found.layers_gpu, found.kv_type, split=split)
    held = True
    with LlamaModel(path, options) as model:
        model.eval(list(range(1, 600)), rows=1)
        for name, took in sorted(model.bytes_by_device.items()):
            need = found.needs[name]
            planned = need.weights + need.cache + need.compute
            held &= abs(took - planned) <= 0.1 * took
            print(
                f"ctx {n_ctx:>6} {name:<8} planned {planned / 2**20:>8.0f} MiB, took {took / 2**20:>8.0f} MiB"
            )
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--ctx", type=int, nargs="+", default=[8192, 32768])
    args = parser.parse_args()
    if args.build:
        build(args.build)
    with tempfile.TemporaryDirectory() as folder:
        path = write_8b(Path(folder) / "random-8b.gguf", args.layers)
        held = [compare(path, n_ctx) for n_ctx in args.ctx]
    print("within 10 %" if all(held) else "MISS: over 10 % apart")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
