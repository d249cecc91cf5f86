"""What each architecture keeps in memory: its caches layer by layer and its widest intermediate results.

The rules are llama.cpp's (tree 0c1e570: load_hparams and the load_arch_hparams of src/models/, llama-hparams,
llama-arch). An architecture that is not named here is taken for a plain transformer. Reads a header's keys;
knows no file, no device and no wish.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from localspec.errors import BadModelFile
from localspec.models.gguf import Header, Value

MAX_LAYERS = 512

WINDOW_PERIOD = {
    **{"gemma2": 2, "gpt-oss": 2, "gemma3n": 5, "gemma3": 6, "gemma-embedding": 6, "plamo3": 8},
    **dict.fromkeys(("cohere2", "exaone4", "exaone-moe", "llama4", "muse-glimmer", "olmo2"), 4),
    **dict.fromkeys(("afmoe", "mellum", "cohere2moe", "laguna", "smallthinker"), 4),
}
"""One layer in so many sees everything, where the file does not list them."""
WINDOW_LISTED = {
    *("gemma4", "gemma4-assistant", "dflash", "granite_swa", "maple", "mimo2", "spark2_5", "step35"),
    "dots3note",
}
"""Architectures whose files must list the layers with a window."""
ALL_WINDOWED = {"lfm2", "deepseek4"}
FULL_FIRST = {"cohere2moe", "laguna", "smallthinker"}
"""The full layer is the first of its period, not the last."""
WINDOW_DEFAULT = {"gemma2": 4096, "exaone4": 4096, "exaone-moe": 128, "llama4": 8192}
WINDOW_FIXED = {"llama4": 8192, "smallthinker": 4096}
RECURRENT = {"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"}
FULL_INTERVAL = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
HYBRID = {
    *("jamba", "falcon-h1", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe"),
    *("kimi-linear", "kimi-k3", "bailingmoe3", "glm5-next", "deepseek4", *FULL_INTERVAL),
}
ROLLBACK_BOUNDED = {
    *("qwen35", "qwen35moe", "qwen4exp", "nemotron_h", "nemotron_h_moe", "lfm2", "lfm2moe"),
    *("kimi-k3", "deepseek4", "glm5-next", "bailingmoe3"),
}
"""Hybrids whose state llama.cpp can take back by a few tokens (llm_arch_supports_rs_rollback)."""
MORE_CACHES = {
    *("deepseek4", "deepseek32", "glm-dsa", "glm5-next", "hy_v4", "dots3note", "minimax-m3", "qwen4exp"),
}
"""Architectures with indexer caches, which are not modelled here."""
EMBEDDING_ONLY = {
    *("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3"),
    *("eurobert", "gemma-embedding", "llama-embed", "t5encoder"),
}
HEADS = {"eagle3": "eagle3", "dflash": "dflash", "gemma4-assistant": "assistant"}

Recurrence = Literal["none", "hybrid", "recurrent"]
Rollback = Literal["any", "bounded", "none"]


@dataclass(frozen=True, slots=True)
class LayerCache:
    """What a layer keeps: elements of key and value a cell, and a fixed state in bytes (always F32)."""

    n_key: int = 0
    n_value: int = 0
    windowed: bool = False
    bytes_state: int = 0


@dataclass(frozen=True, slots=True)
class Widths:
    """Numbers a token takes in the intermediate results that size the compute buffer.

    `embd` the residual stream; `ffn` one of the three of a feed-forward layer (of all experts used);
    `experts` what the experts used write; `query` and `key` those of attention; `scan` what a recurrent
    layer holds at its widest; `per_layer` embeddings for every layer; `heads` the number of query heads.
    """

    embd: int
    ffn: int
    experts: int
    heads: int
    query: int
    key: int
    scan: int
    per_layer: int


class Keys:
    """A header's values by name and type; names that begin with a dot are the architecture's own.

    A value of the wrong type or beyond reason is a BadModelFile.
    """

    def __init__(self, header: Header) -> None:
        self._header, self.name = header, header.name
        self.architecture = self.text("general.architecture")
        if not self.architecture:
            raise self.bad("does not name its architecture")
        self.n_layers = self.number(".block_count", high=MAX_LAYERS)
        self.n_mtp = self.number(".nextn_predict_layers", 0, high=self.n_layers)

    def bad(self, what: str) -> BadModelFile:
        return BadModelFile(f"{self.name} {what}", "the file is damaged or no language model")

    def get(self, key: str) -> Value | None:
        return self._header.metadata.get(self._full(key))

    def text(self, key: str) -> str:
        """A text, "" if the file has none."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.bad(f"has {key} {value!r} instead of a text")
        return value or ""

    def number(self, key: str, default: int | None = None, high: int = 2**32 - 1) -> int:
        """A whole number from 0 to `high`; without `default` it must be there."""
        return self._header.number(self._full(key), default, high)

    def flag(self, key: str, default: bool) -> bool:
        return bool(self.number(key, int(default)))

    def by_layer(self, key: str, default: tuple[int, ...] | int = 0) -> tuple[int, ...]:
        """One number a layer: the file gives a list, or one for all."""
        value = self.get(key)
        if not isinstance(value, tuple):
            same = default if isinstance(default, tuple) and value is None else None
            return same or (self.number(key, default if isinstance(default, int) else 0),) * self.n_layers
        if len(value) != self.n_layers or not all(isinstance(n, int) and 0 <= n < 2**32 for n in value):
            raise self.bad(f"has a {key} that does not give one number to each of {self.n_layers} layers")
        return tuple(int(n) for n in value)

    def _full(self, key: str) -> str:
        return self.architecture + key if key.startswith(".") else key

    def listed(self, key: str) -> tuple[bool, ...] | None:
        """Yes or no a layer if the file lists it; a list that is too short leaves the rest at no."""
        value = self.get(key)
        if not isinstance(value, tuple):
            return None
        return tuple(i < len(value) and bool(value[i]) for i in range(self.n_layers))


def recurrence(architecture: str) -> Recurrence:
    return "recurrent" if architecture in RECURRENT else "hybrid" if architecture in HYBRID else "none"


def rollback(architecture: str) -> Rollback:
    if recurrence(architecture) == "none":
        return "any"
    return "bounded" if architecture in ROLLBACK_BOUNDED else "none"


def window(keys: Keys) -> int:
    """Tokens a sliding-window layer sees, 0 for a model without such layers."""
    arch = keys.architecture
    if arch not in WINDOW_PERIOD and arch not in WINDOW_LISTED and arch not in ALL_WINDOWED:
        return 0  # phi3 and others name a window that llama.cpp does not use
    if arch == "exaone4" and keys.n_layers != 64:
        return 0  # only the 32B has one
    size = keys.number(".attention.sliding_window", WINDOW_DEFAULT.get(arch, 0))
    return WINDOW_FIXED.get(arch, size) if size else 0


def windowed_layers(keys: Keys) -> tuple[bool, ...]:
    """Which layers have a sliding window."""
    n, trunk = keys.n_layers, keys.n_layers - keys.n_mtp
    if not window(keys):
        return (False,) * n
    if keys.architecture in ALL_WINDOWED:
        return (True,) * n
    key = ".attention.sliding_window_pattern"
    listed = keys.listed(key)
    if listed is not None:
        return listed
    period = keys.number(key, WINDOW_PERIOD.get(keys.architecture, 1))
    full = 0 if keys.architecture in FULL_FIRST else period - 1
    return tuple(i < trunk and (period == 0 or i % period != full) for i in range(n))


def recurrent_layers(keys: Keys) -> tuple[bool, ...]:
    """Which layers keep a state of fixed size (falcon-h1: beside a key-value cache)."""
    arch, n, trunk = keys.architecture, keys.n_layers, keys.n_layers - keys.n_mtp
    if recurrence(arch) == "none":
        return (False,) * n
    if arch in RECURRENT or arch == "falcon-h1":
        return (True,) * n
    if arch in FULL_INTERVAL:
        listed = keys.listed(".attention.recurrent_layers")
        interval = keys.number(".full_attention_interval", FULL_INTERVAL[arch]) or 1
        return listed or tuple(i < trunk and (i + 1) % interval != 0 for i in range(n))
    heads, ffn = _kv_heads(keys), keys.by_layer(".feed_forward_length")
    no_ffn = arch.startswith("nemotron_h")
    return tuple(i < trunk and heads[i] == 0 and not (no_ffn and ffn[i]) for i in range(n))


def layer_caches(keys: Keys) -> tuple[LayerCache, ...]:
    """The caches of each layer, MTP layers last."""
    windowed, recurrent = windowed_layers(keys), recurrent_layers(keys)
    state = _bytes_state(keys) if any(recurrent) else 0
    owners = _cache_owners(keys, recurrent)
    heads, (full, swa) = _kv_heads(keys), head_sizes(keys)
    keeps_values = not keys.number(".attention.key_length_mla", 0)

    def cache(i: int) -> LayerCache:
        key, value = swa if windowed[i] else full
        n = heads[i] if owners[i] else 0
        return LayerCache(n * key, n * value * keeps_values, windowed[i], state * recurrent[i])

    return tuple(cache(i) for i in range(keys.n_layers))


def head_sizes(keys: Keys) -> tuple[tuple[int, int], tuple[int, int]]:
    """Elements of a key head and a value head, in full layers and in sliding-window layers."""
    n_head = keys.by_layer(".attention.head_count")
    default = keys.number(".embedding_length") // n_head[0] if n_head and n_head[0] else 0
    if default or keys.architecture == "plamo2":
        full = (
            keys.number(".attention.key_length", default),
            keys.number(".attention.value_length", default),
        )
    else:
        full = (0, 0)
    swa = (
        keys.number(".attention.key_length_swa", full[0]),
        keys.number(".attention.value_length_swa", full[1]),
    )
    return full, swa


def experts(keys: Keys) -> tuple[int, int]:
    """Experts a layer has, and the most a token uses."""
    count = keys.number(".expert_count", 0)
    return (count, max(keys.by_layer(".expert_used_count"), default=0)) if count else (0, 0)


def widths(keys: Keys) -> Widths:
    embd, used = keys.number(".embedding_length"), experts(keys)[1]
    expert_ffn = max(keys.by_layer(".expert_feed_forward_length"), default=0)
    ffn = max(*keys.by_layer(".feed_forward_length"), used * expert_ffn, 0)
    heads = max(keys.by_layer(".attention.head_count"), default=0)
    (key, _), (swa_key, _) = head_sizes(keys)
    query = heads * keys.number(".attention.key_length_mla", max(key, swa_key))
    return Widths(
        embd=embd,
        ffn=ffn,
        experts=used * embd,
        heads=heads,
        query=query,
        key=max((layer.n_key for layer in layer_caches(keys)), default=0),
        scan=_scan_width(keys),
        per_layer=keys.n_layers * keys.number(".embedding_length_per_layer_input", 0),
    )


def _kv_heads(keys: Keys) -> tuple[int, ...]:
    return keys.by_layer(".attention.head_count_kv", keys.by_layer(".attention.head_count"))


def _cache_owners(keys: Keys, recurrent: tuple[bool, ...]) -> tuple[bool, ...]:
    """Which layers have keys and values of their own."""
    arch, n = keys.architecture, keys.n_layers
    if arch in RECURRENT:
        return (False,) * n
    if arch == "falcon-h1":
        return (True,) * n
    shared = n - 20 if arch == "gemma3n" else keys.number(".attention.shared_kv_layers", 0)
    own = n - shared if arch.startswith(("gemma3n", "gemma4")) else n
    return tuple(i < own and not recurrent[i] for i in range(n))


def _bytes_state(keys: Keys) -> int:
    """Bytes of one layer's recurrent state (llama_hparams::n_embd_r and n_embd_s)."""
    embd = keys.number(".embedding_length")
    conv, inner, state, groups = _ssm(keys)
    if wkv := keys.number(".wkv.head_size", 0):
        return 4 * embd * (keys.number(".token_shift_count", 2) + wkv)
    if short := keys.number(".shortconv.l_cache", 0):
        return 4 * embd * (short - 1)
    n_head = keys.by_layer(".attention.head_count")[0]
    if kda := keys.number(".kda.head_dim", 0):
        return 4 * n_head * kda * (3 * (conv - 1 if conv else 3) + kda)
    window = max(conv - 1, 0) * (inner + 2 * groups * state)
    if keys.architecture == "minimax-01":
        return 4 * (window + n_head * head_sizes(keys)[0][0] ** 2)
    return 4 * (window + state * inner)


def _scan_width(keys: Keys) -> int:
    """What a recurrent layer holds: its input, the convolution's and the scan's, as measured (see memory)."""
    if keys.number(".wkv.head_size", 0):
        return 17 * keys.number(".embedding_length")
    _, inner, state, groups = _ssm(keys)
    return 3 * (inner + 2 * groups * state) + (2 if keys.architecture in FULL_INTERVAL else 3) * inner


def _ssm(keys: Keys) -> tuple[int, int, int, int]:
    names = ("conv_kernel", "inner_size", "state_size", "group_count")
    conv, inner, state, groups = (keys.number(f".ssm.{name}", 0) for name in names)
    return conv, inner, state, groups
