"""Real models by their shapes, without their weights, and what llama.cpp says they take.

All numbers are llama.cpp's own (0c1e570, llama-cpp-python 0.3.36): `llama_get_memory_breakdown` of
contexts with n_ubatch 512 and n_outputs_max 64 on models of these shapes, loaded with no_alloc. REPORTS come
from metadata alone (`llama_model_init_from_user`), `Placed` from sparse files with the tensors of `tensors`,
split between the processor and an RPC device that stands for a GPU. None was computed by localspec.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from localspec.models.gguf import TENSOR_TYPES, Header, Tensor

Meta = dict[str, Any]


def dense(n_embd: int, n_ff: int, n_head: int, n_kv: int, head: int, n_layer: int, **more: Any) -> Meta:
    meta = {"embedding_length": n_embd, "feed_forward_length": n_ff, "block_count": n_layer}
    meta |= {"attention.head_count": n_head, "attention.head_count_kv": n_kv, "context_length": 40960}
    return meta | {"attention.key_length": head, "attention.value_length": head} | more


def window(size: int, pattern: tuple[bool, ...] = (), **more: Any) -> Meta:
    listed = {"attention.sliding_window_pattern": pattern} if pattern else {}
    return {"attention.sliding_window": size} | listed | more


def moe(count: int, used: int, n_ff: int) -> Meta:
    return {"expert_count": count, "expert_used_count": used, "expert_feed_forward_length": n_ff}


def ssm(conv: int, inner: int, state: int, groups: int) -> Meta:
    names = ("conv_kernel", "inner_size", "state_size", "group_count")
    return {f"ssm.{n}": v for n, v in zip(names, (conv, inner, state, groups), strict=True)}


def some(n_layer: int, value: int, at: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(value if i in at else 0 for i in range(n_layer))


def gemma4(n_embd: int, n_ff: int, n_head: int, n_kv: Any, n_layer: int, size: int, **more: Any) -> Meta:
    pattern = tuple(i % 6 != 5 for i in range(n_layer))
    swa = {"attention.key_length_swa": 256, "attention.value_length_swa": 256}
    return dense(n_embd, n_ff, n_head, n_kv, 512, n_layer, **window(size, pattern)) | swa | more


MLA = {"attention.value_length": 512, "attention.key_length_mla": 256, "attention.value_length_mla": 256}
SHAPES: dict[str, tuple[str, Meta, int]] = {
    "qwen3-0.6b": ("qwen3", dense(1024, 3072, 16, 8, 128, 28), 151936),
    "qwen3-8b": ("qwen3", dense(4096, 12288, 32, 8, 128, 36), 151936),
    "qwen3-14b": ("qwen3", dense(5120, 17408, 40, 8, 128, 40), 151936),
    "qwen3-32b": ("qwen3", dense(5120, 25600, 64, 8, 128, 64), 151936),
    "llama-3.1-8b": ("llama", dense(4096, 14336, 32, 8, 128, 32), 128256),
    "phi-4": ("phi3", dense(5120, 17920, 40, 10, 128, 40, **window(2048)), 100352),
    "glm-4.5-air": ("glm4moe", dense(4096, 10944, 96, 8, 128, 46, **moe(128, 8, 1408)), 151552),
    "qwen3-30b-a3b": ("qwen3moe", dense(2048, 6144, 32, 4, 128, 48, **moe(128, 8, 768)), 151936),
    "gpt-oss-20b": ("gpt-oss", dense(2880, 2880, 64, 8, 64, 24, **window(128), **moe(32, 4, 2880)), 201088),
    "gemma2-9b": ("gemma2", dense(3584, 14336, 16, 8, 256, 42, **window(4096)), 256000),
    "gemma3-4b": ("gemma3", dense(2560, 10240, 8, 4, 256, 34, **window(1024)), 262144),
    "gemma3-12b": ("gemma3", dense(3840, 15360, 16, 8, 256, 48, **window(1024)), 262144),
    "gemma4-12b": (
        "gemma4",
        gemma4(3840, 15360, 16, tuple(1 if i % 6 == 5 else 8 for i in range(48)), 48, 1024),
        262144,
    ),
    "gemma4-e4b": (
        "gemma4",
        gemma4(2560, 10240, 8, 2, 42, 512)
        | {"embedding_length_per_layer_input": 256, "attention.shared_kv_layers": 18},
        262144,
    ),
    "cohere2": ("cohere2", dense(4096, 14336, 32, 8, 128, 32, **window(4096)), 256000),
    "glm-4.7-flash": ("deepseek2", dense(2048, 10240, 20, 1, 576, 47, **moe(64, 4, 1536)) | MLA, 154880),
    "qwen35-4b": ("qwen35", dense(2560, 9216, 16, 4, 256, 32, **ssm(4, 4096, 128, 16)), 248320),
    "qwen35-27b": ("qwen35", dense(5120, 17408, 24, 4, 256, 64, **ssm(4, 6144, 128, 16)), 248320),
    "qwen36-35b-a3b": (
        "qwen35moe",
        dense(2048, 512, 16, 2, 256, 40, **ssm(4, 4096, 128, 16), **moe(256, 8, 512)),
        248320,
    ),
    "qwen3-coder-next": (
        "qwen3next",
        dense(2048, 5120, 16, 2, 256, 48, **ssm(4, 4096, 128, 16), **moe(512, 10, 512)),
        151936,
    ),
    "lfm2.5-1.2b": (
        "lfm2",
        dense(2048, 8192, 32, some(16, 8, (2, 5, 8, 10, 12, 14)), 64, 16) | {"shortconv.l_cache": 3},
        65536,
    ),
    "lfm2-8b-a1b": (
        "lfm2moe",
        dense(2048, 7168, 32, some(24, 8, (2, 6, 10, 14, 18, 21)), 64, 24, **moe(32, 4, 1792))
        | {"shortconv.l_cache": 3},
        65536,
    ),
    "granite-h-tiny": (
        "granitehybrid",
        dense(
            1536, 512, 12, some(40, 4, (5, 15, 25, 35)), 128, 40, **ssm(4, 3072, 128, 1), **moe(64, 6, 512)
        ),
        100352,
    ),
    "nemotron-h-8b": (
        "nemotron_h",
        dense(
            4096,
            tuple(21504 if i % 2 and i not in (7, 29) else 0 for i in range(52)),
            *(32, some(52, 8, (7, 18, 29, 40)), 128, 52),
            **ssm(4, 8192, 128, 8),
        ),
        131072,
    ),
    "falcon-h1-1.5b": ("falcon-h1", dense(2048, 4096, 8, 2, 128, 24, **ssm(4, 3072, 256, 1)), 65537),
    "mamba-1.4b": ("mamba", dense(2048, 0, 0, 0, 0, 48, **ssm(4, 4096, 16, 0)), 50280),
    "mamba2-2.7b": ("mamba2", dense(2560, 0, 0, 0, 0, 64, **ssm(4, 5120, 128, 1)), 50288),
    "rwkv7-1.5b": ("rwkv7", dense(2048, 8192, 0, 0, 0, 24, **{"wkv.head_size": 64}), 65536),
}
"""Name -> architecture, metadata, size of the vocabulary."""

SETTINGS = (("f16", 2048, True), ("f16", 32768, True), ("q8_0", 8192, True), ("f16", 8192, False))
"""Cache type, tokens of context and flash attention of the four REPORTS of each model."""
REPORTS = {
    "qwen3-0.6b": (
        (234881024, 41256960),
        (3758096384, 60829952),
        (499122176, 41256960),
        (939524096, 304095488),
    ),
    "qwen3-8b": (
        (301989888, 111161600),
        (4831838208, 142618880),
        (641728512, 109146368),
        (1207959552, 599793920),
    ),
    "qwen3-14b": (
        (335544320, 151007488),
        (5368709120, 182464768),
        (713031680, 146895104),
        (1342177280, 744497408),
    ),
    "qwen3-32b": (
        (536870912, 207630592),
        (8589934592, 239087872),
        (1140850688, 214003968),
        (2147483648, 1159733504),
    ),
    "llama-3.1-8b": (
        (268435456, 123744512),
        (4294967296, 155201792),
        (570425344, 121729280),
        (1073741824, 599793920),
    ),
    "phi-4": (
        (419430400, 154153216),
        (6710886400, 185610496),
        (891289600, 150040832),
        (1677721600, 745545984),
    ),
    "glm-4.5-air": (
        (385875968, 180367616),
        (6174015488, 211824896),
        (819986432, 186740992),
        (1543503872, 1715478784),
    ),
    "qwen3-30b-a3b": (
        (201326592, 94384384),
        (3221225472, 125841664),
        (427819008, 100757760),
        (805306368, 585113856),
    ),
    "gpt-oss-20b": (
        (69206016, 99766528),
        (824180736, 131223808),
        (116981760, 106123520),
        (220200960, 1130770688),
    ),
    "gemma2-9b": (
        (704643072, 122704128),
        (6429868032, 156782848),
        (1169817600, 132174080),
        (2202009600, 350236928),
    ),
    "gemma3-4b": (
        (224395264, 86528256),
        (853540864, 117985536),
        (186056704, 97571072),
        (350224384, 186659072),
    ),
    "gemma3-12b": (
        (637534208, 130044160),
        (2650800128, 161501440),
        (552599552, 136892672),
        (1040187392, 345518336),
    ),
    "gemma4-12b": (
        (536870912, 138432768),
        (1040187392, 169890048),
        (338690048, 146067712),
        (838860800, 362295552),
    ),
    "gemma4-e4b": (
        (75497472, 120609024),
        (578813952, 152066304),
        (93585408, 128243968),
        (197132288, 221788416),
    ),
    "cohere2": (
        (268435456, 134238464),
        (1526726656, 168317184),
        (383254528, 143315200),
        (721420288, 605040896),
    ),
    "glm-4.7-flash": (
        (110886912, 88088832),
        (1774190592, 119546112),
        (235634688, 94380288),
        (443547648, 430842112),
    ),
    "qwen35-4b": (
        (119799808, 76171552),
        (1126432768, 107628832),
        (195297280, 82741536),
        (321126400, 330316064),
    ),
    "qwen35-27b": (
        (291110912, 140527904),
        (2304376832, 171985184),
        (442105856, 147097888),
        (693764096, 492845344),
    ),
    "qwen36-35b-a3b": (
        (107806720, 82463008),
        (736952320, 109070624),
        (154992640, 84183328),
        (233635840, 329267488),
    ),
    "qwen3-coder-next": (
        (129368064, 92287264),
        (884342784, 123744544),
        (185991168, 98857248),
        (280363008, 329261344),
    ),
    "lfm2.5-1.2b": (
        (25329664, 65040672),
        (402817024, 96497952),
        (53641216, 71364896),
        (100827136, 576725280),
    ),
    "lfm2-8b-a1b": (
        (25460736, 58929440),
        (402948096, 90386720),
        (53772288, 65253664),
        (100958208, 576725280),
    ),
    "granite-h-tiny": (
        (74838016, 55587104),
        (326496256, 87044384),
        (93712384, 61960480),
        (125169664, 235938080),
    ),
    "nemotron-h-8b": (
        (137166848, 130541856),
        (640483328, 161999136),
        (174915584, 136915232),
        (237830144, 599791904),
    ),
    "falcon-h1-1.5b": (
        (126861312, 54722848),
        (881836032, 86180128),
        (183484416, 61096224),
        (277856256, 173023520),
    ),
    "mamba-1.4b": ((14942208, 54888736), (14942208, 54888736), (14942208, 54888736), (14942208, 54888736)),
    "mamba2-2.7b": (
        (171900928, 73171232),
        (171900928, 73171232),
        (171900928, 73171232),
        (171900928, 73171232),
    ),
    "rwkv7-1.5b": ((12976128, 80955680), (12976128, 80955680), (12976128, 80955680), (12976128, 80955680)),
}
"""Name -> (bytes of caches, bytes of the compute buffer) for each of SETTINGS, all on the processor."""


class Placed(NamedTuple):
    """What fits best by llama.cpp's numbers. `gpu` and `host`: bytes of weights, caches, compute buffer."""

    layers_gpu: int
    n_ctx: int
    kv_type: str
    gpu: tuple[int, int, int]
    host: tuple[int, int, int]


def more_bits(i: int, n: int) -> bool:
    """llama-quant.cpp's use_more_bits: which layers of a Q4_K_M file have some tensors in Q6_K."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def tensors(name: str, mix: str = "Q4_K_M", *, tied: bool = False) -> list[tuple[str, tuple[int, ...], str]]:
    """Names, shapes and types of a transformer's tensors as converters and llama-quantize write them."""
    arch, meta, n_vocab = SHAPES[name]
    n_embd, n_ff, n_layer = (meta[k] for k in ("embedding_length", "feed_forward_length", "block_count"))
    head, n_expert = meta["attention.key_length"], meta.get("expert_count", 0)
    q, kv = head * meta["attention.head_count"], head * meta["attention.head_count_kv"]
    base, best = ("Q4_K", "Q6_K") if mix == "Q4_K_M" else (mix, mix)
    found: list[tuple[str, tuple[int, ...], str]] = [
        ("token_embd", (n_embd, n_vocab), best if tied else base)
    ]
    for i in range(n_layer):
        high = best if more_bits(i, n_layer) else base
        block = [("attn_norm", (n_embd,), "F32"), ("ffn_norm", (n_embd,), "F32")]
        block += [("attn_q", (n_embd, q), base), ("attn_k", (n_embd, kv), base)]
        block += [("attn_v", (n_embd, kv), high), ("attn_output", (q, n_embd), base)]
        if arch != "llama":
            block += [("attn_q_norm", (head,), "F32"), ("attn_k_norm", (head,), "F32")]
        if arch == "gemma3":
            block += [("post_attention_norm", (n_embd,), "F32"), ("post_ffw_norm", (n_embd,), "F32")]
        wide = (meta["expert_feed_forward_length"], n_expert) if n_expert else (n_ff,)
        kind = "_exps" if n_expert else ""
        block += [(f"ffn_{part}{kind}", (n_embd, *wide), base) for part in ("gate", "up")]
        block += [(f"ffn_down{kind}", (wide[0], n_embd, *wide[1:]), high)]
        block += [("ffn_gate_inp", (n_embd, n_expert), "F32")] if n_expert else []
        found += [(f"blk.{i}.{part}", shape, kind) for part, shape, kind in block]
    found += [("output_norm", (n_embd,), "F32")]
    found += [] if tied else [("output", (n_embd, n_vocab), best)]
    return [(f"{part}.weight", shape, kind) for part, shape, kind in found]


def header(name: str, listed: list[tuple[str, tuple[int, ...], str]] | None = None, **more: Any) -> Header:
    """The header of a model of this shape; without `listed` it has no tensors."""
    arch, meta, n_vocab = SHAPES[name]
    metadata: Meta = {f"{arch}.{key}": value for key, value in (meta | more).items()}
    metadata |= {"general.architecture": arch, "general.name": name, f"{arch}.vocab_size": n_vocab}
    sizes = {kind: (block, n_bytes) for kind, block, n_bytes in TENSOR_TYPES.values()}
    placed, at = [], 0
    for tensor, shape, kind in listed or []:
        n_elements, (block, n_bytes) = math.prod(shape), sizes[kind]
        placed.append(Tensor(tensor, shape, kind, n_elements, n_elements // block * n_bytes, at))
        at += -(-placed[-1].n_bytes // 32) * 32
    return Header(name, at, 0, metadata, tuple(placed))
