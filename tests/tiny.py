"""Random tiny GGUFs (under 600 KB, deterministic by seed) that llama.cpp loads as real models.

All carry the same real byte-level BPE vocabulary, so any text tokenises and detokenises: ids 0-2 are
<|endoftext|>, <|im_start|>, <|im_end|>; 3-258 the bytes (id = 3 + byte); then merged tokens.
Dimension 0 of the residual stream is constant, and column 0 of the output matrix a bias over tokens
(letters and spaces likely, control bytes not), so that the random text looks like text.
Knows GGUF and llama.cpp's tensor names; must not know localspec.
"""

from __future__ import annotations

import itertools
import math
import string
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

Array = NDArray[Any]
Shapes = dict[str, tuple[int, ...]]  # numpy order: (rows out, columns in)
Damage = Literal["empty", "header", "data", "not_gguf", "version", "counts", "string"]

ENDOFTEXT, IM_START, IM_END, FIRST_BYTE = 0, 1, 2, 3
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
DAMAGES: tuple[Damage, ...] = get_args(Damage)
NORMAL, CONTROL, UNUSED = 1, 3, 5  # llama.cpp's token types
EXTRA_VOCAB, SCALE, END_BIAS = 61, 2.5, -2.0
REPEL = 0.5  # how much a token argues against itself: without it greedy text ends in one token for ever
WORDS = """_the _and _for _is ing return def self ____ é ab al an ar as at ca ch co da ea ed en er es ha he hi
ic it la le li ll lo ma me na ne nt on or ou pe ra ri ro st ti to ve"""  # _ is a space
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_chars() -> list[str]:
    """GPT-2's printable stand-in for each of the 256 bytes."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = itertools.count(256)
    return [chr(b if b in shown else next(spare)) for b in range(256)]


def merges(count: int) -> list[tuple[str, str]]:
    """The first `count` BPE merges: those that spell WORDS from left to right, then pairs of letters."""
    chars = byte_chars()
    found: dict[str, tuple[str, str]] = {}
    for word in WORDS.split():
        spelt = "".join(chars[b] for b in word.replace("_", " ").encode())
        for i in range(1, len(spelt)):
            found.setdefault(spelt[: i + 1], (spelt[:i], spelt[i]))
    for a, b in itertools.product(string.ascii_lowercase, repeat=2):
        found.setdefault(a + b, (a, b))
    assert count <= len(found)
    return list(found.values())[:count]


def vocabulary(n_extra: int = EXTRA_VOCAB) -> list[str]:
    """Token texts by id, as they stand in the file."""
    return [*SPECIAL, *byte_chars(), *(a + b for a, b in merges(n_extra))]


def _vocab_keys(tokens: Sequence[str], n_extra: int) -> dict[str, Any]:
    n_used = len(SPECIAL) + 256 + n_extra  # above lies padding, as converters write it
    types = [CONTROL] * len(SPECIAL) + [NORMAL] * (n_used - len(SPECIAL)) + [UNUSED] * (len(tokens) - n_used)
    keys = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": list(tokens),
        "token_type": types,
        "merges": [f"{a} {b}" for a, b in merges(n_extra)],
        "bos_token_id": ENDOFTEXT,
        "eos_token_id": IM_END,
        "eot_token_id": IM_END,
        "padding_token_id": ENDOFTEXT,
        "add_bos_token": False,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()} | {
        "tokenizer.chat_template": CHATML
    }


def _bias(tokens: Sequence[str], end_bias: float) -> Array:
    """How likely each token is before the context speaks, in nats."""
    special = dict(zip(SPECIAL, (end_bias - 2, -12.0, end_bias), strict=True))
    byte_of = {char: b for b, char in enumerate(byte_chars())}

    def one(text: str) -> float:
        byte = byte_of.get(text, ord("a"))  # a merged token counts as a letter
        if text in special or byte >= 128:
            return special.get(text, -4.0)
        if chr(byte) == " ":
            return 2.0
        return 1.0 if chr(byte).islower() else -1.0 if chr(byte).isprintable() or byte == ord("\n") else -9.0

    return np.array([one(text) for text in tokens], dtype=np.float32)


def _fill(name: str, shape: tuple[int, ...], normal: Array, scale: float) -> Array:
    """Standard normal numbers turned into weights that suit their place."""
    if "norm" in name and name.endswith("weight"):
        return 1 + 0.1 * normal
    if name.endswith("ssm_a"):
        return -np.exp(normal)
    if name.endswith(("bias", "ssm_d")):
        return 0.1 * normal
    if name == "token_embd.weight":
        normal[:, 0] = 1
        return normal
    if name.endswith(("attn_output.weight", "ffn_down.weight", "ssm_out.weight", "out_proj.weight")):
        normal[0] = 0  # nothing writes to the constant dimension
    gain = scale if name == "output.weight" else 2.0 if ".attn_q." in name else 1.0
    return gain / math.sqrt(shape[-1]) * normal


def _save(path: Path, arch: str, keys: dict[str, Any], tensors: dict[str, Array], split: int) -> None:
    writer = GGUFWriter(path, arch, split_max_tensors=split)
    add: dict[type, Callable[[str, Any], None]] = {
        **{bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32},
        **{str: writer.add_string, list: writer.add_array},
    }
    for key, value in keys.items():
        add[type(value)](key if key.startswith(("tokenizer.", "general.")) else f"{arch}.{key}", value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _model(
    path: Path,
    arch: str,
    keys: dict[str, Any],
    blocks: Shapes,
    *,
    n_embd: int = 64,
    seed: int = 0,
    n_ctx_train: int = 4096,
    n_extra_vocab: int = EXTRA_VOCAB,
    scale: float = SCALE,  # larger: less entropy
    end_bias: float = END_BIAS,  # larger: <|im_end|> comes sooner
    noise: float = 0.0,  # 0.1: a draft that agrees with the file without two times in three
    dtype: Literal["f32", "f16"] = "f32",
    tokens: list[str] | None = None,
    change: Callable[[dict[str, Array]], object] = lambda tensors: None,
    split: int = 0,
) -> Path:
    """One file: vocabulary, the keys all architectures share, embedding, blocks, output.

    A value depends on seed, tensor name and place only: a longer vocabulary keeps its first rows.
    """
    texts = tokens or vocabulary(n_extra_vocab)
    shapes: Shapes = {"token_embd.weight": (len(texts), n_embd), **blocks}
    if arch != "bert":
        norm = "token_embd_norm" if arch == "lfm2" else "output_norm"
        shapes |= {f"{norm}.weight": (n_embd,), "output.weight": (len(texts), n_embd)}
    tensors: dict[str, Array] = {}
    for name, shape in shapes.items():
        own, other = (np.random.default_rng([s, zlib.crc32(name.encode())]) for s in (seed, seed + 1))
        normal = own.standard_normal(shape) + (noise * other.standard_normal(shape) if noise else 0)
        tensors[name] = _fill(name, shape, normal, scale).astype(np.float32)
    if "output.weight" in tensors:
        tensors["output.weight"] -= REPEL * scale / math.sqrt(n_embd) * tensors["token_embd.weight"]
        tensors["output.weight"][:, 0] = _bias(texts, end_bias)
    if arch == "gemma3":
        tensors["token_embd.weight"] /= math.sqrt(n_embd)  # its graph multiplies
    change(tensors)
    for name, tensor in tensors.items():
        if dtype == "f16" and tensor.ndim == 2 and not any(part in name for part in ("norm", "conv", "ssm_")):
            tensors[name] = tensor.astype(np.float16)
    n_layer = 1 + max(int(name.split(".")[1]) for name in blocks if name.startswith("blk."))
    sizes = {"context_length": n_ctx_train, "embedding_length": n_embd, "block_count": n_layer}
    shared = {
        "general.name": f"tiny {arch}",
        "attention.layer_norm_rms_epsilon": 1e-5,
        "vocab_size": len(texts),
    }
    _save(path, arch, shared | sizes | keys | _vocab_keys(texts, n_extra_vocab), tensors, split)
    return path


def _block(i: int, **shapes: tuple[int, ...]) -> Shapes:
    return {f"blk.{i}.{name}.weight": shape for name, shape in shapes.items()}


def _attention(i: int, n_embd: int, n_q: int, n_kv: int, n_in: int = 0) -> Shapes:
    q, kv = (n_q, n_in or n_embd), (n_kv, n_in or n_embd)
    return _block(i, attn_norm=(n_embd,), attn_q=q, attn_k=kv, attn_v=kv, attn_output=(n_embd, n_q))


def _mlp(i: int, n_embd: int, n_ff: int) -> Shapes:
    wide = (n_ff, n_embd)
    return _block(i, ffn_norm=(n_embd,), ffn_gate=wide, ffn_up=wide, ffn_down=(n_embd, n_ff))


def _heads(n_head: int, n_head_kv: int | list[int], n_ff: int, head: int = 16) -> dict[str, Any]:
    keys = {"feed_forward_length": n_ff, "attention.head_count": n_head, "attention.head_count_kv": n_head_kv}
    keys |= {"attention.key_length": head, "attention.value_length": head, "rope.dimension_count": head}
    return keys | {"rope.freq_base": 10000.0}


def write_llama(
    path: Path,
    *,
    n_layer: int = 2,
    n_embd: int = 64,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_ff: int = 128,
    **common: Any,
) -> Path:
    """A llama. `common`, as for the other writers: the keyword arguments of `_model`."""
    head = n_embd // n_head
    blocks: Shapes = {}
    for i in range(n_layer):
        blocks |= _attention(i, n_embd, n_embd, n_head_kv * head) | _mlp(i, n_embd, n_ff)
    return _model(path, "llama", _heads(n_head, n_head_kv, n_ff, head), blocks, n_embd=n_embd, **common)


def write_other_vocab(path: Path, **options: Any) -> Path:
    """write_llama with the texts of "a" and "e", and of "t" and "n", exchanged; the weights stay."""
    texts = vocabulary(options.get("n_extra_vocab", EXTRA_VOCAB))
    for i, j in ((FIRST_BYTE + ord(a), FIRST_BYTE + ord(b)) for a, b in ("ae", "tn")):
        texts[i], texts[j] = texts[j], texts[i]
    return write_llama(path, tokens=texts, **options)


def write_bigger_vocab(path: Path, *, extra: int = 64, **options: Any) -> Path:
    """write_llama, the same weights for the same ids, and `extra` padding tokens above, all quite likely."""
    texts = vocabulary(options.get("n_extra_vocab", EXTRA_VOCAB))
    return write_llama(path, tokens=texts + [f"<|pad_{i}|>" for i in range(extra)], **options)


def write_nan(path: Path, *, where: Literal["logit", "all"] = "logit", **options: Any) -> Path:
    """write_llama whose logit of "a" is NaN at every position, or all logits."""
    rows = slice(None) if where == "all" else slice(FIRST_BYTE + ord("a"), FIRST_BYTE + ord("a") + 1)

    def change(tensors: dict[str, Array]) -> None:
        tensors["output.weight"][rows] = np.nan

    return write_llama(path, change=change, **options)


def write_swa(path: Path, *, window: int = 32, **common: Any) -> Path:
    """A gemma3 of two layers, the first with a sliding window."""
    n = 64
    blocks: Shapes = {}
    for i in range(2):
        blocks |= _attention(i, n, n, 32) | _mlp(i, n, 128) | _block(i, attn_q_norm=(16,), attn_k_norm=(16,))
        blocks |= _block(i, post_attention_norm=(n,), post_ffw_norm=(n,))
    keys = {"attention.sliding_window": window, "attention.sliding_window_pattern": [True, False]}
    return _model(path, "gemma3", _heads(4, 2, 128) | keys, blocks, **common)


def write_recurrent(path: Path, **common: Any) -> Path:
    """A mamba2 of two layers: no part of its memory can be rewound."""
    n, inner, state, n_head, kernel = 64, 128, 16, 4, 4
    conv = inner + 2 * state
    blocks: Shapes = {}
    for i in range(2):
        blocks |= _block(i, attn_norm=(n,), ssm_in=(inner + conv + n_head, n), ssm_conv1d=(conv, kernel))
        blocks |= _block(i, ssm_norm=(1, inner), ssm_out=(n, inner))
        blocks |= {f"blk.{i}.ssm_conv1d.bias": (conv,), f"blk.{i}.ssm_dt.bias": (n_head,)}
        blocks |= {f"blk.{i}.ssm_a": (n_head, 1), f"blk.{i}.ssm_d": (n_head, 1)}
    keys = {
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "ssm.conv_kernel": kernel,
        "ssm.group_count": 1,
    }
    keys |= {"ssm.inner_size": inner, "ssm.state_size": state, "ssm.time_step_rank": n_head}
    return _model(path, "mamba2", keys, blocks, **common)


def write_hybrid(path: Path, **common: Any) -> Path:
    """An lfm2: convolution, then attention. Rewinds at most n_rs_seq tokens, within the last batch."""
    n = 64
    conv: Shapes = {"shortconv.conv": (n, 3), "shortconv.in_proj": (3 * n, n), "shortconv.out_proj": (n, n)}
    blocks = _block(0, attn_norm=(n,), **conv) | _mlp(0, n, 128)
    blocks |= _attention(1, n, n, 32) | _mlp(1, n, 128) | _block(1, attn_q_norm=(16,), attn_k_norm=(16,))
    return _model(path, "lfm2", _heads(4, [0, 2], 128) | {"shortconv.l_cache": 3}, blocks, **common)


def write_head_only(path: Path, **common: Any) -> Path:
    """An EAGLE-3 head for a write_llama of three layers or more: no model of its own.

    Most real ones have no embedding either: change=lambda tensors: tensors.pop("token_embd.weight").
    """
    n = 64
    blocks = _attention(0, n, n, 32, n_in=2 * n) | _mlp(0, n, 128) | _block(0, attn_norm_2=(n,))
    keys = {"target_layers": [0, 1, 2], "target_hidden_size": n}
    return _model(path, "eagle3", _heads(4, 2, 128) | keys, blocks | {"fc.weight": (n, 3 * n)}, **common)


def write_embedding_only(path: Path, **common: Any) -> Path:
    """A bert of one layer: it embeds text and cannot write any (llama_decode gives zeros for logits)."""
    n, n_ctx = 64, 128
    blocks = _attention(0, n, n, n) | _block(0, ffn_up=(128, n), ffn_down=(n, 128))
    del blocks["blk.0.attn_norm.weight"]
    blocks |= {"token_types.weight": (2, n), "position_embd.weight": (n_ctx, n)}
    for norm in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        blocks |= {f"{norm}.weight": (n,), f"{norm}.bias": (n,)}
    keys = {"attention.layer_norm_epsilon": 1e-5, "attention.causal": False, "pooling_type": 1}
    keys |= _heads(4, 4, 128) | {"tokenizer.ggml.token_type_count": 2}
    return _model(path, "bert", keys, blocks, n_ctx_train=n_ctx, **common)


def write_split(folder: Path, *, parts: int = 3, **options: Any) -> tuple[list[Path], Path]:
    """The same llama as shards (tiny-00001-of-00003.gguf ...) and as one file (tiny.gguf)."""
    single = write_llama(folder / "tiny.gguf", **options)
    n_tensors = 3 + 9 * int(options.get("n_layer", 2))
    write_llama(single, split=math.ceil(n_tensors / parts), **options)
    return [folder / f"tiny-{i:05d}-of-{parts:05d}.gguf" for i in range(1, parts + 1)], single


def write_damaged(path: Path, kind: Damage) -> Path:
    """What is left of a llama: `header` and `data` cut within those; `counts` claims 2**60 keys; `string`
    a first key of 2**62 bytes; `not_gguf` is the web page of a failed download."""
    whole = write_llama(path).read_bytes()
    left = {
        "empty": b"",
        "header": whole[:1000],
        "data": whole[: len(whole) * 2 // 3],
        "not_gguf": b"<!DOCTYPE html><title>404</title>" * 40,
        "version": whole[:4] + struct.pack("<I", 99) + whole[8:],
        "counts": whole[:16] + struct.pack("<Q", 2**60) + whole[24:],
        "string": whole[:24] + struct.pack("<Q", 2**62) + whole[32:],
    }
    path.write_bytes(left[kind])
    return path


def quantize(src: Path, dst: Path, ftype: str = "Q8_0") -> Path:
    """llama_model_quantize on one thread; `ftype` as in LLAMA_FTYPE_MOSTLY_<ftype>: Q8_0, Q4_0, F16, ..."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{ftype}")
    params.nthread, params.allow_requantize = 1, True
    if code := llama_cpp.llama_model_quantize(str(src).encode(), str(dst).encode(), params):
        raise RuntimeError(f"llama_model_quantize returned {code} for {ftype}")
    return dst
