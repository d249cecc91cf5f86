"""LlamaModel: a GGUF's weights and one context, behind the `Model` protocol.

Written on llama.cpp's C API. The cache is described by two facts: `tokens`, what it stands for, and how
many of them are physically in it. What is missing is read by the next `eval`, so that `rewind` never
computes, never fails, and a cancelled pass costs nothing but itself.
"""

from __future__ import annotations

import ctypes
import math
import os
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from localspec.engine.generate import WIDEST_PASS
from localspec.engine.types import Cancelled, Logits
from localspec.errors import BadModelFile, LocalspecError, UsageError
from localspec.llama.batch import Batch
from localspec.llama.devices import free_memory
from localspec.llama.library import LOG, CancelFlag, api
from localspec.llama.vocab import Vocab

KV_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2}
KV_BITS = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5, "q4_0": 4.5}
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
CHUNK = 512
"""Tokens a prefill pass holds: long enough to be fast, short enough to cancel on a GPU."""
CELLS = 256
"""llama.cpp rounds a cache up to this, but not the batch it then accepts: ask for whole multiples."""

NOT_A_CHAT_MODEL = {
    "an embedding model": {
        *("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2"),
        *("jina-bert-v3", "eurobert", "gemma-embedding", "llama-embed", "t5encoder"),
    },
    "the head of another model, not a model of its own": {"eagle3", "dflash", "gemma4-assistant"},
    "an audio or vision model": {"wavtokenizer-dec", "clip"},
}


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load a model. `n_ctx` 0: the model's own, at most 8192. `gpu_layers` -1: all of them.

    `split`: each GPU's share of the layers, as ggml lists GPUs; empty leaves it to llama.cpp.
    """

    n_ctx: int = 0
    threads: int = 1
    gpu_layers: int = -1
    kv_type: str = "f16"
    flash_attn: str = "auto"
    split: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class SavedState:
    """A cache as bytes, and the tokens it stands for. Valid for the same file, build and options only."""

    tokens: tuple[int, ...]
    data: bytes


class LlamaModel:
    """A loaded model. Close it, or use it as a context manager; closing frees context before weights.

    `on_notice` receives one-line remarks ("reading 812 tokens again: ..."), `on_progress` the tokens read so
    far and in all during a prefill of more than one chunk.
    """

    def __init__(
        self,
        path: Path,
        options: LoadOptions,
        *,
        cancel: CancelFlag | None = None,
        on_notice: Callable[[str], None] = lambda _: None,
        on_load: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.path = path
        self.options = options
        self.cancel = cancel or CancelFlag()
        self.on_notice = on_notice
        self.on_progress: Callable[[int, int], None] = lambda _done, _total: None
        self._tokens: list[int] = []
        self._n_cached = 0
        _check_options(options)
        LOG.clear()
        self._model = _load(path, options, self.cancel, on_load)
        try:
            self._refuse_if_not_chat()
            self._context = self._make_context()
        except BaseException:
            api.llama_model_free(self._model)
            raise
        self._memory = api.llama_get_memory(self._context)
        self.vocab = Vocab(api.llama_model_get_vocab(self._model))
        self._n_vocab = self.vocab.n_tokens
        self._n_ctx = int(api.llama_n_ctx(self._context))
        self._n_swa = int(api.llama_model_n_swa(self._model))
        self._batch = Batch(CHUNK)
        self._views: dict[tuple[int, int], Logits] = {}
        self.bytes_by_device = _by_device(LOG.buffers)
        """What llama.cpp said it allocated: weights, cache, compute; "CPU" is the host's memory."""
        self._free = weakref.finalize(self, _free, self._batch, self._context, self._model)

    def __enter__(self) -> LlamaModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free everything; twice does no harm. Afterwards `rewind` does nothing and `eval` refuses."""
        self._free()
        self._n_cached, self._n_ctx = 0, -1

    @property
    def n_ctx(self) -> int:
        return self._n_ctx

    @property
    def n_ctx_train(self) -> int:
        return int(api.llama_model_n_ctx_train(self._model))

    @property
    def n_vocab(self) -> int:
        return self._n_vocab

    @property
    def tokens(self) -> Sequence[int]:
        return self._tokens

    @property
    def can_rewind(self) -> bool:
        """False for recurrent and hybrid models, whose state cannot be cut at a token: no speculation."""
        recurrent = api.llama_model_is_recurrent(self._model) or api.llama_model_is_hybrid(self._model)
        return not recurrent

    @property
    def chat_template(self) -> str | None:
        template = api.llama_model_chat_template(self._model, None)
        return template.decode("utf-8", "replace") if template else None

    def eval(self, tokens: Sequence[int], rows: int = 1) -> Logits:
        length = len(self._tokens)
        if length + len(tokens) > self._n_ctx or not 0 <= rows <= min(len(tokens), WIDEST_PASS):
            raise ValueError(f"eval of {len(tokens)} tokens, {rows} rows at {length} of {self._n_ctx}")
        self._tokens.extend(tokens)
        try:
            self._read_pending(rows)
        except BaseException:
            self.rewind(length)
            raise
        if rows == 0:
            api.llama_synchronize(self._context)
            return np.empty((0, self._n_vocab), dtype=np.float32)
        return self._logits(rows)

    def rewind(self, length: int) -> None:
        if not 0 <= length <= len(self._tokens):
            raise ValueError(f"rewind to {length} of {len(self._tokens)} tokens")
        del self._tokens[length:]
        if self._n_cached > length:
            if self._cut(length):
                self._n_cached = length
            else:
                self._clear()
                self.on_notice(f"this model's cache cannot be cut: reading {length} tokens again")

    def save(self) -> SavedState:
        """The cache as bytes; tokens not yet physically in it are left out."""
        buffer = np.empty(api.llama_state_seq_get_size(self._context, 0), dtype=np.uint8)
        pointer = buffer.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        size = api.llama_state_seq_get_data(self._context, pointer, len(buffer), 0)
        return SavedState(tuple(self._tokens[: self._n_cached]), buffer[:size].tobytes())

    def restore(self, state: SavedState) -> bool:
        """Take over a saved cache. False if llama.cpp refuses it; the cache is empty then."""
        self._clear()
        self._tokens.clear()
        data = (ctypes.c_uint8 * len(state.data)).from_buffer_copy(state.data)
        read = api.llama_state_seq_set_data(self._context, data, len(state.data), 0)
        if read != len(state.data) or self._cached_end() != len(state.tokens):
            self._clear()
            return False
        self._tokens.extend(state.tokens)
        self._n_cached = len(state.tokens)
        return True

    def _read_pending(self, rows: int) -> None:
        """Decode what `tokens` has and the cache lacks, in chunks; logits of the last `rows`."""
        start, total = self._n_cached, len(self._tokens)
        LOG.clear()
        while self._n_cached < total:
            if self.cancel.is_set():
                raise Cancelled
            left = total - self._n_cached
            size = min(left, CHUNK)
            if 0 < left - size < rows:  # all rows must come out of the last chunk
                size = left - rows
            chunk = self._tokens[self._n_cached : self._n_cached + size]
            batch = self._batch.fill(chunk, self._n_cached, rows if size == left else 0)
            self._check(api.llama_decode(self._context, batch))
            self._n_cached += size
            if total - start > CHUNK:
                self.on_progress(self._n_cached - start, total - start)

    def _check(self, status: int) -> None:
        """Turn llama_decode's status into an exception; the cache is cut back to what is known good."""
        if status == 0:
            return
        if not self._cut(self._n_cached):
            self._clear()
        if status == 2:  # aborted
            raise Cancelled
        reason = LOG.reason(f"llama_decode returned {status}")
        raise LocalspecError(
            f"the model's pass failed: {reason}", "try a smaller --ctx or fewer --gpu-layers"
        )

    def _cut(self, length: int) -> bool:
        """Drop cells from `length` on; True only if what is left is proven right.

        A sliding window keeps about one window of cells, and llama_memory_seq_rm succeeds at any depth: the
        oldest cell still there must cover the window of the next token. Recurrent state cannot be cut, and
        llama.cpp does not always say so.
        """
        if length == 0:
            api.llama_memory_clear(self._memory, True)
            return True
        if not self.can_rewind or not api.llama_memory_seq_rm(self._memory, 0, length, -1):
            return False
        if self._n_swa:
            oldest = api.llama_memory_seq_pos_min(self._memory, 0)
            if oldest > max(0, length - self._n_swa + 1):
                return False
        return self._cached_end() == length

    def _cached_end(self) -> int:
        return int(api.llama_memory_seq_pos_max(self._memory, 0)) + 1

    def _clear(self) -> None:
        api.llama_memory_clear(self._memory, True)
        self._n_cached = 0

    def _logits(self, rows: int) -> Logits:
        pointer = api.llama_get_logits(self._context)
        place = ctypes.addressof(pointer.contents), rows
        if place not in self._views:  # the buffer moves only when it grows
            flat = memoryview((ctypes.c_float * (rows * self._n_vocab)).from_address(place[0]))
            self._views[place] = np.frombuffer(flat, dtype=np.float32).reshape(rows, self._n_vocab)
        return self._views[place]

    def _refuse_if_not_chat(self) -> None:
        """Kinds of models on which llama.cpp would abort the process or answer nonsense."""
        arch = self.metadata("general.architecture") or "unknown"
        kind = next((kind for kind, archs in NOT_A_CHAT_MODEL.items() if arch in archs), None)
        if kind is None and self.metadata(f"{arch}.pooling_type") not in (None, "0"):
            kind = "an embedding model"
        if kind is None and api.llama_model_has_encoder(self._model):
            kind = "an encoder-decoder model"
        if kind is None and api.llama_model_is_diffusion(self._model):
            kind = "a diffusion model"
        if kind:
            raise BadModelFile(
                f"{self.path.name} is {kind} (architecture {arch})", "give a text-generation GGUF with -m"
            )

    def metadata(self, key: str) -> str | None:
        """A metadata value as text, None if the file does not have the key."""
        buffer = ctypes.create_string_buffer(256)
        n = api.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if n >= 0 else None

    def _make_context(self) -> Any:
        options = self.options
        n_ctx = options.n_ctx or min(self.n_ctx_train, 8192)
        self._refuse_if_too_long(n_ctx)
        params = api.llama_context_default_params()
        params.n_ctx = math.ceil(n_ctx / CELLS) * CELLS
        params.n_batch = params.n_ubatch = CHUNK
        params.n_outputs_max = WIDEST_PASS
        params.n_threads = params.n_threads_batch = options.threads
        params.type_k = params.type_v = KV_TYPES[options.kv_type]
        params.flash_attn_type = FLASH_ATTENTION[options.flash_attn]
        params.swa_full = False
        params.no_perf = True
        params.abort_callback = self.cancel.callback
        params.abort_callback_data = self.cancel.data
        context = api.llama_init_from_model(self._model, params)
        if not context:
            reason = LOG.reason("llama.cpp made no context")
            raise LocalspecError(
                f"cannot make a context of {n_ctx} tokens: {reason}",
                "try --kv-type f16" if options.kv_type.startswith("q") else "try --ctx 2048",
            )
        return context

    def _refuse_if_too_long(self, n_ctx: int) -> None:
        """Linux grants a cache that does not fit and ends the process when the cache fills."""
        if self.options.gpu_layers and api.llama_supports_gpu_offload():
            return
        needed, free = self._bytes_kv() * n_ctx, free_memory()
        if needed > free:
            fits = int(0.8 * free * n_ctx / needed) // CELLS * CELLS  # the graph needs room too
            raise UsageError(
                f"{self.path.name} needs {needed / 2**30:.1f} GiB for a context of {n_ctx} tokens, "
                f"{free / 2**30:.1f} GiB are free",
                f"try --ctx {fits}" if fits else "take a smaller model",
            )

    def _bytes_kv(self) -> float:
        """Bytes a token takes in the cache, at least.

        Of hybrid and sliding-window models one layer in eight is sure to keep every token.
        """
        n_head, n_head_kv = api.llama_model_n_head(self._model), api.llama_model_n_head_kv(self._model)
        if not n_head:
            return 0.0
        arch = self.metadata("general.architecture")
        sizes = (self.metadata(f"{arch}.attention.{part}_length") for part in ("key", "value"))
        width = sum(int(size or api.llama_model_n_embd(self._model) // n_head) for size in sizes)
        partial = api.llama_model_is_hybrid(self._model) or api.llama_model_n_swa(self._model)
        layers = api.llama_model_n_layer(self._model) / (8 if partial else 1)
        return float(layers * n_head_kv * width * KV_BITS[self.options.kv_type] / 8)


def _by_device(buffers: Counter[str]) -> dict[str, int]:
    """Sums by device of what the log names by buffer type: CUDA0, CUDA_Host, CPU_Mapped, CPU_REPACK, ...

    Weights rearranged for the processor (REPACK) are still in the mapped file, but no longer read there.
    """
    sums = Counter({"CPU": -min(buffers["CPU_Mapped"], buffers["CPU_REPACK"])})
    for name, size in buffers.items():
        host = name.startswith("CPU") or name.endswith("Host")
        sums["CPU" if host else name.split("_")[0]] += size
    return dict(sums)


def _free(batch: Batch, context: Any, model: Any) -> None:
    api.llama_batch_free(batch.raw)
    api.llama_free(context)
    api.llama_model_free(model)


def _load(path: Path, options: LoadOptions, cancel: CancelFlag, on_load: Callable[[float], None]) -> Any:
    def progress(share: float, _data: Any) -> bool:
        try:
            on_load(share)
        except KeyboardInterrupt:  # C code calls this: nothing may be raised through it
            cancel.set()
        return not cancel.is_set()

    params = api.llama_model_default_params()
    params.n_gpu_layers = options.gpu_layers
    shares = (ctypes.c_float * int(api.llama_max_devices()))(*options.split)
    if options.split:
        params.tensor_split = shares
    no_device = (ctypes.c_void_p * 1)(None)
    if options.gpu_layers == 0:  # else llama.cpp still computes big passes on a GPU, in memory nobody planned
        params.devices = ctypes.cast(no_device, ctypes.c_void_p)
    callback = api.llama_progress_callback(progress)
    params.progress_callback = callback
    model = api.llama_model_load_from_file(os.fsencode(path), params)
    if model:
        return model
    if cancel.is_set():
        raise Cancelled
    raise BadModelFile(
        f"cannot load {path.name}: {LOG.reason('llama.cpp gave no reason')}",
        "the file may be damaged or newer than this llama.cpp: fetch it again, or upgrade llama-cpp-python",
    )


def _check_options(options: LoadOptions) -> None:
    """What llama.cpp would answer with an abort, or not at all."""
    if options.kv_type not in KV_TYPES:
        raise UsageError(f"unknown KV type {options.kv_type!r}", f"one of {', '.join(KV_TYPES)}")
    if options.flash_attn not in FLASH_ATTENTION:
        raise UsageError(f"unknown --flash-attn {options.flash_attn!r}", "one of auto, on, off")
    if options.flash_attn == "off" and options.kv_type.startswith("q"):
        raise UsageError(
            f"a {options.kv_type} KV cache needs flash attention",
            "leave --flash-attn at auto, or --kv-type f16",
        )
