"""Makes a deep copy of a llama GGUF that computes the same function: a large target for a cheap draft.

    .venv/bin/python scripts/make_testbed.py SOURCE.gguf OUT.gguf [--layers 240] [--force]

Above the source's layers stand copies of them whose two matrices that write to the residual stream,
attn_output and ffn_down, are zero: they cost what a layer costs and add nothing. From a 135M model of 30
layers come 878M parameters at 240; for a Q8_0 target the source then guesses at a sixth of the price, its
Q4_0 copy at a ninth. The source as draft is always right: add layers or take a lower-bit copy to set the
price, a lower-bit copy to set the acceptance.

Knows the GGUF format and llama.cpp's tensor names; must not know localspec.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, ReaderField, ReaderTensor

BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
SILENCED = re.compile(r"(attn_output|ffn_down)\.(weight|bias)")
"""The tensors of a block that decide what it adds to the residual stream."""
ZERO_IS_ZERO = {
    GGMLQuantizationType.F32,
    GGMLQuantizationType.F16,
    GGMLQuantizationType.Q8_0,
    GGMLQuantizationType.Q4_0,
    GGMLQuantizationType.Q4_1,
}
"""Types of which a block of zero bytes stands for zeros: their scale is zero, and so is Q4_1's minimum."""
MAX_LAYERS = 512  # llama.cpp's LLAMA_MAX_LAYERS
HEADER_FIXED = 24  # bytes: magic, version, number of tensors, number of keys
CHUNK = 1 << 22  # bytes written at a time


class Refused(Exception):
    """The copy cannot be made; the message says why and what would help."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of the copy, which holds the bytes of a tensor of the source, or as many zeros."""

    name: str
    source: ReaderTensor
    zero: bool = False


def make_testbed(source: Path, out: Path, layers: int, *, force: bool = False) -> int:
    """Write the copy of `source` with `layers` layers to `out`, whole or not at all. Returns its bytes.

    `force` allows `out` to exist. Raises Refused; OSError when a file cannot be read or written.
    """
    if out.exists() and (not force or out.samefile(source)):
        raise Refused(f"{out} exists: " + ("it is the source" if force else "--force replaces it"))
    reader = _read(source)
    entries = plan(reader, layers)
    header = _header(reader, entries, layers)
    size = len(header) + sum(_padded(entry.source.n_bytes, reader) for entry in entries)
    free = shutil.disk_usage(out.parent).free
    if size > free:
        raise Refused(f"{out} needs {size / 2**20:.0f} MiB, {free / 2**20:.0f} free: try fewer --layers")
    _write(out, header, entries, reader)
    return size


def plan(reader: GGUFReader, layers: int) -> list[Entry]:
    """All tensors of the copy in file order: the source's, then the added blocks from the lowest up.

    Added block i copies block i modulo the source's number of layers. Raises Refused.
    """
    n_layer = _check_keys(reader, layers)
    blocks: dict[int, list[tuple[str, ReaderTensor]]] = {i: [] for i in range(n_layer)}
    for tensor in reader.tensors:
        if found := BLOCK.fullmatch(tensor.name):
            index = int(found[1])
            if index >= n_layer:
                raise Refused(f"{tensor.name} lies above the {n_layer} layers of the header: a damaged file?")
            blocks[index].append((found[2], tensor))
    for index, parts in blocks.items():
        _check_block(index, dict(parts))
    added = (
        Entry(f"blk.{i}.{part}", tensor, zero=bool(SILENCED.fullmatch(part)))
        for i in range(n_layer, layers)
        for part, tensor in blocks[i % n_layer]
    )
    return [*(Entry(tensor.name, tensor) for tensor in reader.tensors), *added]


def _read(path: Path) -> GGUFReader:
    try:
        reader = GGUFReader(path)
    except (ValueError, KeyError, IndexError) as error:
        raise Refused(f"{path} is not a whole GGUF: {error}") from error
    if reader.byte_order != "I" or sys.byteorder != "little":
        raise Refused(f"{path}: only little-endian files on little-endian machines are copied")
    return reader


def _check_keys(reader: GGUFReader, layers: int) -> int:
    """The source's number of layers, once nothing in its header forbids to raise it to `layers`."""
    architecture = _value(reader, "general.architecture")
    if architecture != "llama":
        raise Refused(f"architecture {architecture}: only llama's zeroed blocks are known to add nothing")
    if (_value(reader, "split.count") or 1) > 1:
        raise Refused("one shard of several: join them first with llama-gguf-split --merge")
    for name, field in reader.fields.items():
        if name.startswith("llama.") and len(field.types) > 1:
            raise Refused(f"{name} differs by layer: such models are not copied")
    n_layer = _value(reader, "llama.block_count")
    if not n_layer:
        raise Refused("llama.block_count is missing: a damaged file?")
    if not n_layer <= layers <= MAX_LAYERS:
        raise Refused(f"--layers {layers}: the source has {n_layer}, llama.cpp takes at most {MAX_LAYERS}")
    return int(n_layer)


def _check_block(index: int, parts: dict[str, ReaderTensor]) -> None:
    for needed in ("attn_output.weight", "ffn_down.weight"):
        if needed not in parts:
            raise Refused(f"blk.{index}.{needed} is missing: only plain llama blocks are copied")
    for part, tensor in parts.items():
        if SILENCED.fullmatch(part) and tensor.tensor_type not in ZERO_IS_ZERO:
            known = ", ".join(sorted(kind.name for kind in ZERO_IS_ZERO))
            raise Refused(f"{tensor.name} is {tensor.tensor_type.name}: zeros are known for {known} only")


def _value(reader: GGUFReader, key: str) -> Any:
    field: ReaderField | None = reader.get_field(key)
    return None if field is None else field.contents()


def _header(reader: GGUFReader, entries: list[Entry], layers: int) -> bytes:
    """Everything before the first tensor's bytes. The keys are the source's bytes but for the layer count."""
    keys = bytearray(reader.data[HEADER_FIXED : reader.tensors[0].field.offset].tobytes())
    count = reader.fields["llama.block_count"]
    value = count.parts[-1].copy()
    value[0] = layers
    at = count.offset - HEADER_FIXED + sum(part.nbytes for part in count.parts[:-1])
    keys[at : at + value.nbytes] = value.tobytes()
    fixed = bytearray(reader.data[:HEADER_FIXED].tobytes())
    struct.pack_into("<Q", fixed, 8, len(entries))
    infos, offset = bytearray(), 0
    for entry in entries:
        infos += _info(entry, offset)
        offset += _padded(entry.source.n_bytes, reader)
    header = bytes(fixed + keys + infos)
    return header + bytes(-len(header) % int(reader.alignment))


def _info(entry: Entry, offset: int) -> bytes:
    """A tensor's record: name, dimensions, type, and where its bytes start behind the header."""
    _, _, n_dims, dims, kind, _ = entry.source.field.parts
    name = entry.name.encode()
    head = struct.pack("<Q", len(name)) + name
    return head + n_dims.tobytes() + dims.tobytes() + kind.tobytes() + struct.pack("<Q", offset)


def _padded(size: int, reader: GGUFReader) -> int:
    return size + -size % int(reader.alignment)


def _write(out: Path, header: bytes, entries: list[Entry], reader: GGUFReader) -> None:
    """Fill a temporary file beside `out`, then rename it: nobody sees half a model."""
    # The folder is ours alone, so that the file in it gets the usual permissions and no other run's name.
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        part = Path(folder) / out.name
        with part.open("wb") as file:
            file.write(header)
            for entry in entries:
                _write_tensor(file, entry, reader)
            file.flush()
            os.fsync(file.fileno())
        part.replace(out)


def _write_tensor(file: IO[bytes], entry: Entry, reader: GGUFReader) -> None:
    tensor = entry.source
    zeros = np.zeros(min(CHUNK, tensor.n_bytes), dtype=np.uint8)
    for start, stop in _chunks(tensor.n_bytes):
        at = tensor.data_offset
        file.write((zeros[: stop - start] if entry.zero else reader.data[at + start : at + stop]).data)
    file.write(bytes(_padded(tensor.n_bytes, reader) - tensor.n_bytes))


def _chunks(size: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + CHUNK, size)) for start in range(0, size, CHUNK))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=240)
    parser.add_argument("--force", action="store_true", help="replace OUT")
    args = parser.parse_args()
    start = time.perf_counter()
    try:
        size = make_testbed(args.source, args.out, args.layers, force=args.force)
    except (Refused, OSError) as error:
        print(f"make_testbed: {error}", file=sys.stderr)
        return 1
    print(f"{args.out}: {args.layers} layers, {size / 2**20:.0f} MiB, {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
