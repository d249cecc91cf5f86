"""A GGUF's header: metadata, tensors and where the data lies, read from any file that can seek and read.

Bounded: nothing a file claims is believed before the bytes are there, long arrays (a vocabulary) are stepped
over and only their place is kept, and a header holds at most MAX_HEADER bytes. Whatever is wrong with a file
is a BadModelFile. Knows the format as ggml/src/gguf.cpp reads it; must not know what the keys mean.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, NoReturn

from localspec.errors import BadModelFile

MAX_HEADER = 64 * 2**20
MAX_KEPT = 2**20
"""Bytes of the longest string that is kept as a value."""
MAX_ITEMS = 1024
"""Items of the longest array of numbers that is kept: one a layer fits, a vocabulary does not."""
MAX_KEY, MAX_NAME, MAX_DIMENSIONS = 65_535, 63, 4
WINDOW = 2**20

STRING, ARRAY = 8, 9
_SCALARS = {
    kind: struct.Struct("<" + code)
    for kind, code in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")

TENSOR_TYPES = {
    **{0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2), 28: ("F64", 1, 8)},
    **{24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8)},
    **{2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24)},
    **{8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110)},
    **{12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292)},
    **{16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50)},
    **{20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136)},
    **{29: ("IQ1_M", 256, 56), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17)},
    **{40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18)},
}
"""ggml's type id -> name, elements a block, bytes a block (ggml.h, gguf-py GGML_QUANT_SIZES)."""


@dataclass(frozen=True, slots=True)
class Array:
    """A value that was not kept: `count` items of GGUF type `kind` in the file's bytes `start` to `end`."""

    kind: int
    count: int
    start: int
    end: int


Value = bool | int | float | str | tuple[bool | int | float, ...] | Array


@dataclass(frozen=True, slots=True)
class Tensor:
    """`shape` as in the file: the row length first. `offset` from the file's beginning."""

    name: str
    shape: tuple[int, ...]
    type: str
    n_elements: int
    n_bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """What one file says of itself. `bytes_header`: where the tensor data begins."""

    name: str
    bytes_file: int
    bytes_header: int
    metadata: Mapping[str, Value]
    tensors: tuple[Tensor, ...]

    def number(self, key: str, default: int | None = None, high: int = 2**32 - 1) -> int:
        """A whole number from 0 to `high`; without `default` it must be there."""
        value = self.metadata.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or not 0 <= value <= high:
            what = f"has {key} {value!r} instead of a number up to {high}"
            raise BadModelFile(f"{self.name} {what}", "the file is damaged or no language model")
        return int(value)


def read_header(file: BinaryIO, name: str) -> Header:
    """Read the header of `file`; `name` is for messages. Raises BadModelFile for everything malformed."""
    reader = _Reader(file, name)
    _check_start(reader)
    n_tensors, n_keys = reader.u64(), reader.u64()
    reader.check_count(n_keys, 13, "keys")  # the shortest: a length, one letter, a type, one byte
    reader.check_count(n_tensors, 32, "tensors")
    metadata: dict[str, Value] = {}
    for _ in range(n_keys):
        key = reader.text(reader.u64(), MAX_KEY, "a key")
        if not key or key in metadata:
            reader.fail(f"has the key {key!r} twice" if key else "has an empty key")
        metadata[key] = _read_value(reader, key)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        reader.fail(f"has general.alignment {alignment!r}, which is no power of two")
    infos = [_read_tensor(reader) for _ in range(n_tensors)]
    start = _padded(reader.position, alignment) if infos else reader.position
    return Header(name, reader.size, start, metadata, _placed(reader, infos, start, alignment))


def read_strings(file: BinaryIO, array: Array, name: str, first: int = 0) -> Iterator[bytes]:
    """The items of a string array from number `first` on, one by one."""
    reader = _Reader(file, name, array.start)
    reader.skip_strings(min(first, array.count))
    for _ in range(array.count - first):
        yield reader.take(reader.u64())


def place_of_string(file: BinaryIO, array: Array, name: str, number: int) -> int:
    """Where in the file item `number` of a string array begins."""
    reader = _Reader(file, name, array.start)
    reader.skip_strings(min(number, array.count))
    return reader.position


def _check_start(reader: _Reader) -> None:
    magic = reader.take(min(4, reader.size))
    if magic != b"GGUF":
        reader.fail(f"is not a GGUF (it starts with {magic!r})" if magic else "is empty")
    version = reader.u32()
    if version & 0xFFFF == 0:
        reader.fail("is a big-endian GGUF", "take one made for ordinary, little-endian machines")
    if version not in (2, 3):
        reader.fail(f"is GGUF version {version}, not 2 or 3", "take a newer file, or upgrade localspec")


def _read_value(reader: _Reader, key: str) -> Value:
    kind = reader.u32()
    if kind == STRING:
        start, length = reader.position, reader.u64()
        if length > MAX_KEPT:
            reader.skip(length)
            return Array(STRING, 1, start, reader.position)
        return reader.text(length, MAX_KEPT, f"the value of {key}", errors="replace")
    if kind != ARRAY:
        return reader.scalar(kind, key)
    kind, count = reader.u32(), reader.u64()
    start = reader.position
    if kind == STRING:
        reader.check_count(count, 8, f"items in {key}")
        reader.skip_strings(count)
    else:
        width = reader.scalar_struct(kind, key).size
        reader.check_count(count, width, f"items in {key}")
        if count <= MAX_ITEMS:
            return tuple(reader.scalar(kind, key) for _ in range(count))
        reader.skip(count * width)
    return Array(kind, count, start, reader.position)


def _read_tensor(reader: _Reader) -> Tensor:
    """A tensor's entry; its offset still counts from the beginning of the data."""
    name = reader.text(reader.u64(), MAX_NAME, "a tensor's name")
    n_dimensions = reader.u32()
    if n_dimensions > MAX_DIMENSIONS:
        reader.fail(f"gives the tensor {name} {n_dimensions} dimensions")
    shape = tuple(reader.u64() for _ in range(n_dimensions))
    kind = reader.u32()
    if kind not in TENSOR_TYPES:
        reader.fail(
            f"has the tensor {name} in the unknown type {kind}",
            "upgrade localspec and llama-cpp-python, or take another quantisation",
        )
    type_name, block, bytes_block = TENSOR_TYPES[kind]
    n_elements = 1
    for n in shape:
        n_elements *= n
    if (shape[0] if shape else 1) % block or n_elements >= 2**63:
        reader.fail(f"gives the tensor {name} the shape {shape}, impossible in {type_name}")
    n_bytes = n_elements // block * bytes_block
    return Tensor(name, shape, type_name, n_elements, n_bytes, reader.u64())


def _placed(reader: _Reader, infos: list[Tensor], start: int, alignment: int) -> tuple[Tensor, ...]:
    """The tensors with offsets from the file's beginning, checked to lie one after another in the file."""
    if len({info.name for info in infos}) < len(infos):
        reader.fail("has two tensors of one name")
    tensors, expected = [], 0
    for info in infos:
        if info.offset != expected:
            reader.fail(f"has the tensor {info.name} at {info.offset} instead of {expected}")
        place = start + info.offset
        tensors.append(Tensor(info.name, info.shape, info.type, info.n_elements, info.n_bytes, place))
        expected = _padded(info.offset + info.n_bytes, alignment)
    end = tensors[-1].offset + tensors[-1].n_bytes if tensors else start
    if end > reader.size:
        reader.fail(f"ends {end - reader.size} bytes early", "resume the download, or fetch it again")
    return tuple(tensors)


def _padded(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment


class _Reader:
    """Reads a file front to back through a window of bounded size, and knows what is left of it."""

    def __init__(self, file: BinaryIO, name: str, position: int = 0) -> None:
        self._file, self.name = file, name
        self.size = file.seek(0, 2)
        self._window, self._window_at, self._at = b"", position, 0

    @property
    def position(self) -> int:
        return self._window_at + self._at

    def fail(self, what: str, hint: str = "the file is damaged: fetch it again") -> NoReturn:
        raise BadModelFile(f"{self.name} {what}", hint)

    def check_count(self, count: int, bytes_each: int, what: str) -> None:
        """Refuse a count whose items cannot be in what is left of the file."""
        if count * bytes_each > self.size - self.position:
            self.fail(f"claims {count} {what}, more than it has room for")

    def take(self, n: int) -> bytes:
        if n > len(self._window) - self._at:
            self._load(self.position, n)
        self._at += n
        return self._window[self._at - n : self._at]

    def skip(self, n: int) -> None:
        self._check_room(self.position, n)
        self._at += n

    def skip_strings(self, count: int) -> None:
        """Step over `count` strings: for a quarter million tokens this loop is the whole cost of a header."""
        unpack, left = _U64.unpack_from, count
        while left:
            self._load(self.position, 8)
            window, at = self._window, 0
            try:
                for left in range(left, 0, -1):  # noqa: B007, B020
                    at += 8 + unpack(window, at)[0]
                left = 0
            except (struct.error, OverflowError):  # the next one lies behind the window, or nowhere
                pass
            self._at = at
            self._check_room(self.position, 0)

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def text(self, length: int, limit: int, what: str, errors: str = "strict") -> str:
        if length > limit:
            self.fail(f"claims {length} bytes for {what}")
        try:
            return self.take(length).decode("utf-8", errors)
        except UnicodeDecodeError:
            self.fail(f"has {what} that is no UTF-8")

    def scalar_struct(self, kind: int, key: str) -> struct.Struct:
        if kind not in _SCALARS:
            self.fail(f"has the key {key} of the unknown type {kind}")
        return _SCALARS[kind]

    def scalar(self, kind: int, key: str) -> bool | int | float:
        form = self.scalar_struct(kind, key)
        value: bool | int | float = form.unpack(self.take(form.size))[0]
        return value

    def _check_room(self, position: int, n: int) -> None:
        if position + n > self.size:
            self.fail("ends inside its header", "resume the download, or fetch it again")
        if position + n > MAX_HEADER:
            self.fail(f"has a header of more than {MAX_HEADER // 2**20} MiB")

    def _load(self, position: int, n: int) -> None:
        """Move the window to `position`, with at least `n` bytes in it."""
        self._check_room(position, n)
        self._file.seek(position)
        wanted = min(max(n, WINDOW), self.size - position)
        parts = []
        while wanted:
            part = self._file.read(wanted)
            if not part:
                self.fail("ends inside its header", "resume the download, or fetch it again")
            parts.append(part)
            wanted -= len(part)
        self._window, self._window_at, self._at = b"".join(parts), position, 0
