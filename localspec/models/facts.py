"""What a model is and what it costs, from its header alone.

`read_model` reads a file or a shard set; `model_facts` takes headers from anywhere, such as a file that is
still on a server. Sizes are bytes. Knows no device and no wish: what fits where is `plan`'s question.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from localspec.errors import BadModelFile, reason
from localspec.models import architectures
from localspec.models.architectures import Keys, LayerCache, Recurrence, Rollback, Widths
from localspec.models.gguf import (
    TENSOR_TYPES,
    Array,
    Header,
    Tensor,
    place_of_string,
    read_header,
    read_strings,
)
from localspec.models.names import shard_names

UBATCH = 512
"""Tokens a pass computes at once: `LlamaModel` makes its contexts so."""
FIRST_COMPARED = 5
"""The vocabulary gate compares token texts from this id on; the first few differ in name only."""
INPUT_TENSORS = {
    "token_embd.weight",
    "per_layer_token_embd.weight",
    "position_embd.weight",
    "token_types.weight",
}
"""Looked up, not multiplied: llama.cpp keeps them on the host."""
REPACKED = {"Q4_0", "Q4_K", "Q2_K", "IQ4_NL", "MXFP4"}
"""Types that ggml rearranges for x86 processors: one tensor cannot be embedding and output at once."""
KINDS = {"none": 0, "no_vocab": 0, "llama": 1, "gpt2": 2, "gemma4": 2, "hybriddna": 2, "whitespace": 2}
KINDS |= {"bert": 3, "t5": 4, "rwkv": 5, "plamo2": 6}
SPECIAL = {0: (-1, -1), 1: (1, 2), 2: (11, 11), 3: (101, -1), 4: (-1, 1), 5: (-1, -1), 6: (1, 2)}
"""llama.cpp's vocabulary type -> ids of BOS and EOS where a file names none."""
ADDS_BOS = {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}
ADDS_BOS |= {"jina-v5-nano", "tekken", "chameleon"}
SAMPLES, BLOCK = 16, 2**16
"""A fingerprint reads this many blocks of this size out of each file's tensors."""

Open = Callable[[], BinaryIO]


@dataclass(frozen=True, slots=True)
class Weights:
    """Where the bytes of the weights are: MTP layers last, `largest` is the largest tensor of a layer.

    The output matrix of a `tied` model is the embedding, which is in the file once: a GPU needs a copy, the
    host only of REPACKED types (`output_host`). `active` is read for one token: everything but the embedding
    in a dense model, of a mixture only the used experts' share.
    """

    layers: tuple[int, ...]
    output: int
    output_host: int
    embedding: int
    rest: int
    tied: bool
    largest: int
    active: int

    @property
    def total(self) -> int:
        """Bytes of tensors in the file or shards."""
        return sum(self.layers) + self.embedding + self.rest + (0 if self.tied else self.output)


class VocabularyFacts:
    """What the vocabulary gate compares; it has the members of `pairs.VocabularyFacts`.

    Token texts stay in the file until they are asked for; it is opened again then.
    """

    def __init__(self, keys: Keys, tokens: Array, open_file: Open) -> None:
        model, pre = keys.text("tokenizer.ggml.model"), keys.text("tokenizer.ggml.pre")
        self.n_tokens = tokens.count
        self.kind = KINDS.get(model, 2)
        self.bos, self.eos = (
            keys.number(f"tokenizer.ggml.{name}_token_id", default)
            for name, default in zip(("bos", "eos"), SPECIAL[self.kind], strict=True)
        )
        adds_bos = self.kind in {1, 3} or (self.kind == 2 and pre in ADDS_BOS)
        self.adds_bos = keys.flag("tokenizer.ggml.add_bos_token", adds_bos) or model == "gemma4"
        self.adds_eos = keys.flag("tokenizer.ggml.add_eos_token", self.kind == 4)
        self._tokens, self._open, self._name = tokens, open_file, keys.name

    @cached_property
    def digest(self) -> str:
        """sha256 of all token texts from id FIRST_COMPARED on, with their lengths."""
        with self._open() as file:
            start = place_of_string(file, self._tokens, self._name, FIRST_COMPARED)
            return _sha256(_blocks(file, start, self._tokens.end))

    def text(self, token: int) -> str:
        """A token's text as the file spells it."""
        return self._texts[token].decode("utf-8", "replace")

    def differences(self, other: VocabularyFacts, limit: int = 3) -> list[int]:
        """The first ids from FIRST_COMPARED on that both have and spell differently."""
        if self.n_tokens == other.n_tokens and self.digest == other.digest:
            return []
        common = range(FIRST_COMPARED, min(self.n_tokens, other.n_tokens))
        return list(islice((i for i in common if self._texts[i] != other._texts[i]), limit))

    @cached_property
    def _texts(self) -> list[bytes]:
        with self._open() as file:
            return list(read_strings(file, self._tokens, self._name))


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`layers` and `weights.layers` have MTP layers last; `window` is 0 without sliding-window layers.

    `experts`: how many a layer has and how many a token uses, (0, 0) for a dense model. `head`: "eagle3",
    "dflash", "dspark", "assistant" or "mtp" for a file that is only the head of another model.
    """

    name: str
    architecture: str
    fingerprint: str
    bytes_file: int
    n_parameters: int
    n_ctx_train: int
    n_vocab: int
    n_layers_mtp: int
    weights: Weights
    layers: tuple[LayerCache, ...]
    head_sizes: frozenset[int]
    widths: Widths
    window: int
    experts: tuple[int, int]
    recurrence: Recurrence
    rollback: Rollback
    head: str | None
    embedding_only: bool
    chat_template: str | None = field(repr=False)
    vocabulary: VocabularyFacts | None = field(repr=False, compare=False)

    @property
    def n_layers(self) -> int:
        """Layers of the model itself, without MTP layers."""
        return len(self.layers) - self.n_layers_mtp

    @property
    def mtp_inside(self) -> bool:
        """Whether the file carries MTP layers beside a whole model."""
        return self.head is None and any(self.weights.layers[self.n_layers :])

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.weights.total / max(1, self.n_parameters)

    @property
    def active_share(self) -> float:
        """Share of the layers' and the output's weights that one token reads: 1 for a dense model."""
        layers = sum(self.weights.layers[: self.n_layers])
        return self.weights.active / max(1, layers + self.weights.output + self.weights.rest)

    @property
    def caches_known(self) -> bool:
        """False where llama.cpp keeps more than `bytes_cache` counts."""
        return self.architecture not in architectures.MORE_CACHES

    def allows_kv(self, kv_type: str) -> bool:
        """Whether llama.cpp makes a cache of this type: its blocks must divide the head sizes."""
        return all(size % _block(kv_type)[0] == 0 for size in self.head_sizes)

    def cells(self, n_ctx: int) -> tuple[int, int]:
        """Cells of a full and of a sliding-window layer's cache (llama_kv_cache_iswa, swa_full off)."""
        full = _padded(n_ctx, 256)
        return full, _padded(min(full, self.window + min(UBATCH, n_ctx)), 256) if self.window else 0

    def bytes_cache(
        self, n_ctx: int, kv_type: str = "f16", *, mtp: bool = False, n_rollback: int = 0, flash: bool = True
    ) -> tuple[int, ...]:
        """Cache and state by layer for one sequence of `n_ctx` tokens; `mtp`: of an MTP context instead.

        `n_rollback` more copies of recurrent states are kept to go back that many tokens. Without flash
        attention values are padded to the widest layer's.
        """
        full, windowed = self.cells(n_ctx)
        block, bytes_block = _block(kv_type)
        widest = 0 if flash else max((layer.n_value for layer in self.layers), default=0)

        def size(layer: LayerCache) -> int:
            n_value = max(layer.n_value, widest if layer.n_value else 0)
            cells = windowed if layer.windowed else full
            row = (-(-layer.n_key // block) - (-n_value // block)) * bytes_block
            return cells * row + layer.bytes_state * (1 + n_rollback)

        return tuple(size(x) if (i >= self.n_layers) == mtp else 0 for i, x in enumerate(self.layers))


def read_model(path: Path) -> ModelFacts:
    """Facts of the model at `path`: a file, or any shard of a set. Raises BadModelFile."""
    paths = [path.with_name(name) for name in shard_names(path.name)]
    try:
        headers = []
        for part in paths:
            with part.open("rb") as file:
                headers.append(read_header(file, part.name))
        return model_facts(headers, lambda: paths[0].open("rb"), fingerprint(headers, paths))
    except OSError as error:
        what = f"cannot read {error.filename or path}: {reason(error)}"
        raise BadModelFile(what, "the file, with all its shards, must be there and readable") from error


def model_facts(headers: Sequence[Header], open_first: Open, fingerprint: str = "") -> ModelFacts:
    """Facts from the headers of a model's files, in order; `open_first` opens the first for token texts."""
    _check_set(headers)
    keys = Keys(headers[0])
    tensors = [tensor for header in headers for tensor in header.tensors]
    names = {tensor.name for tensor in tensors}
    if len(names) < len(tensors):
        raise keys.bad("has a tensor that another shard has too")
    tokens = keys.get("tokenizer.ggml.tokens")
    vocabulary = VocabularyFacts(keys, tokens, open_first) if isinstance(tokens, Array) else None
    arch = keys.architecture
    return ModelFacts(
        name=keys.text("general.name") or keys.name.removesuffix(".gguf"),
        architecture=arch,
        fingerprint=fingerprint,
        bytes_file=sum(header.bytes_file for header in headers),
        n_parameters=sum(tensor.n_elements for tensor in tensors),
        n_ctx_train=keys.number(".context_length", 0),
        n_vocab=vocabulary.n_tokens if vocabulary else keys.number(".vocab_size", 0),
        n_layers_mtp=keys.n_mtp,
        weights=_weights(keys, tensors),
        layers=architectures.layer_caches(keys),
        head_sizes=frozenset(size for sizes in architectures.head_sizes(keys) for size in sizes),
        widths=architectures.widths(keys),
        window=architectures.window(keys),
        experts=architectures.experts(keys),
        recurrence=architectures.recurrence(arch),
        rollback=architectures.rollback(arch),
        head=_head(keys, names),
        embedding_only=_embeds_only(keys),
        chat_template=keys.text("tokenizer.chat_template") or None,
        vocabulary=vocabulary,
    )


def low_bit(facts: ModelFacts, bits: float) -> ModelFacts:
    """What a copy of the model at `bits` bits a weight would be: the same, with smaller weights."""
    old, share = facts.weights, min(1.0, bits / facts.bits_per_weight)
    weights = Weights(
        layers=tuple(int(n * share) for n in old.layers),
        output=int(old.output * share),
        output_host=int(old.output_host * share),
        embedding=int(old.embedding * share),
        rest=old.rest,  # norms stay as they are
        tied=old.tied,
        largest=int(old.largest * share),
        active=int(old.active * share),
    )
    return replace(facts, weights=weights, fingerprint="", bytes_file=int(facts.bytes_file * share))


def fingerprint(headers: Sequence[Header], paths: Sequence[Path]) -> str:
    """sha256 of headers, sizes and SAMPLES blocks of each file's tensors: a new file gives a new one."""

    def parts() -> Iterator[bytes]:
        for header, path in zip(headers, paths, strict=True):
            yield header.bytes_file.to_bytes(8, "little")
            with path.open("rb") as file:
                yield from _blocks(file, 0, header.bytes_header)
                room = max(0, header.bytes_file - header.bytes_header - BLOCK)
                for i in range(SAMPLES):
                    start = header.bytes_header + room * i // (SAMPLES - 1)
                    yield from _blocks(file, start, min(start + BLOCK, header.bytes_file))

    return _sha256(parts())


def _check_set(headers: Sequence[Header]) -> None:
    """Shards must be all there, in order, and make up the whole model."""
    count = max(1, headers[0].number("split.count", 1))
    if count != len(headers):
        what = f"is part {headers[0].number('split.no', 0) + 1} of {count}, not of {len(headers)}"
        raise BadModelFile(
            f"{headers[0].name} {what}", "keep the names the parts had, and all of them together"
        )
    for i, header in enumerate(headers):
        if header.number("split.no", 0) != i:
            what = f"says it is part {header.number('split.no', 0) + 1}, not {i + 1}"
            raise BadModelFile(f"{header.name} {what}", "give the parts their own names back")
    found = sum(len(header.tensors) for header in headers)
    expected = headers[0].number("split.tensors.count", found)
    if found != expected:
        what = f"and its other parts have {found} tensors instead of {expected}"
        raise BadModelFile(f"{headers[0].name} {what}", "the parts are not of one model: fetch them again")


def _weights(keys: Keys, tensors: Sequence[Tensor]) -> Weights:
    layers = [0] * keys.n_layers
    active = embedding = output = rest = largest = 0
    looked_up = next((tensor for tensor in tensors if tensor.name == "token_embd.weight"), None)
    count, used = architectures.experts(keys)
    for tensor in tensors:
        number = _layer_of(tensor.name)
        if number is not None and number < len(layers):
            layers[number] += tensor.n_bytes
            largest = max(largest, tensor.n_bytes)
            if number < keys.n_layers - keys.n_mtp:
                share = (used, count) if "_exps" in tensor.name and count else (1, 1)
                active += tensor.n_bytes * share[0] // share[1]
        elif tensor.name in INPUT_TENSORS:
            embedding += tensor.n_bytes
        elif tensor.name == "output.weight":
            output += tensor.n_bytes
        else:
            rest += tensor.n_bytes
    tied = not output and looked_up is not None
    output_host = output
    if tied and looked_up:
        output = looked_up.n_bytes
        output_host = output if looked_up.type in REPACKED else 0
    return Weights(tuple(layers), output, output_host, embedding, rest, tied, largest, active + output + rest)


def _layer_of(name: str) -> int | None:
    if not name.startswith("blk."):
        return None
    number = name[4:].split(".", 1)[0]
    return int(number) if number.isdecimal() and len(number) < 4 else None


def _head(keys: Keys, names: set[str]) -> str | None:
    """Which kind of head a file is that cannot run without another model, None for a whole model."""
    kind = architectures.HEADS.get(keys.architecture)
    if kind == "dflash" and any(name.startswith("markov_w1") for name in names):
        return "dspark"
    if kind is None and any(".nextn." in name for name in names):
        trunk = keys.n_layers - keys.n_mtp
        in_trunk = (number is not None and number < trunk for number in map(_layer_of, names))
        return None if any(in_trunk) else "mtp"
    return kind


def _embeds_only(keys: Keys) -> bool:
    """Whether the model turns text into vectors and writes none."""
    pooled = keys.number(".pooling_type", 0) != 0 or not keys.flag(".attention.causal", True)
    return pooled or keys.architecture in architectures.EMBEDDING_ONLY


def _block(kv_type: str) -> tuple[int, int]:
    """Elements and bytes of a block of a cache type, named as Settings names it."""
    sizes = {name.lower(): (block, n_bytes) for name, block, n_bytes in TENSOR_TYPES.values()}
    return sizes[kv_type]


def _blocks(file: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    file.seek(start)
    while start < end and (block := file.read(min(BLOCK, end - start))):
        start += len(block)
        yield block


def _sha256(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _padded(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
