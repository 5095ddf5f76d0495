"""The header of a GGUF file: metadata and where each tensor lies.

Read here rather than by gguf.GGUFReader because that one takes 2 s over a vocabulary of
49,152, and a damaged array length makes it run on past the end of the file.

Format: "GGUF", version u32, tensor count u64, metadata count u64, the metadata as (key, type,
value), the tensors as (name, dimensions from the fastest, type, offset), the data from the next
multiple of `general.alignment`. All little-endian.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from gguf.constants import GGML_QUANT_SIZES

from tercet.checkpoints.gguf.codes import CODE_BLOCKS_BY_NUMBER
from tercet.errors import CheckpointError

_SCALARS: dict[int, str] = dict(zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 4
# a fork writes blocks of 128 weights in 34 bytes under the number of Q2_0, blocks of 64 in 18
_Q2_0 = 42
_FORK_WEIGHTS, _FORK_BYTES = 128, 34

Value = int | float | bool | str | tuple[int | float | bool, ...]


@dataclass(frozen=True, kw_only=True)
class GgufKind:
    """A type of block: ggml's number and name, weights and bytes of one block."""

    number: int
    name: str
    weights: int
    size_bytes: int


# the gguf package 0.19 does not know Q2_0
KINDS: dict[int, GgufKind] = {
    kind.value: GgufKind(number=kind.value, name=kind.name, weights=weights, size_bytes=size)
    for kind, (weights, size) in GGML_QUANT_SIZES.items()
} | {
    number: GgufKind(
        number=number, name=blocks.name, weights=blocks.weights, size_bytes=blocks.size_bytes
    )
    for number, blocks in CODE_BLOCKS_BY_NUMBER.items()
}


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """Where one tensor lies.

    Attributes:
        shape: row-major, as torch has it.
        kind: the type of its blocks.
        begin: the first byte, counted from the start of the file.
        size_bytes: how many bytes it takes.
    """

    shape: tuple[int, ...]
    kind: GgufKind
    begin: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class GgufHeader:
    """Metadata (arrays of strings left out) and tensors, in the file's order.

    `fields_end` is the byte after the metadata, `data_begin` the first byte of tensor data.
    """

    fields: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]
    fields_end: int
    data_begin: int


def read_gguf_header(path: Path) -> GgufHeader:
    """The header of that file.

    Errors:
        CheckpointError, naming the file, when it is no GGUF, is damaged, is shorter than its
        tensors need, or has tensors that are not one after the other (llama.cpp refuses that too;
        a flipped bit in a shape shows so, and so do blocks of another size under a known number).
    """
    size = path.stat().st_size
    if size < 24:
        raise damage_error(path, f"it has {size} bytes, not even a header")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(path, data)
        tensor_count, field_count = _counts(cursor)
        fields = dict(_field(cursor) for _ in range(field_count))
        fields_end = cursor.position
        entries = [_tensor_entry(cursor) for _ in range(tensor_count)]
    alignment = _alignment(path, fields)
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for place, (name, shape, kind, offset) in enumerate(entries):
        if name in tensors:
            raise damage_error(path, f"tensor {name!r} is listed twice")
        follower = entries[place + 1][3] if place + 1 < len(entries) else None
        end = size if follower is None else start + follower
        space = _Space(begin=start + offset, end=end, file_end=size, alignment=alignment)
        tensors[name] = _place(path, name, shape, kind, space)
    return GgufHeader(fields=fields, tensors=tensors, fields_end=fields_end, data_begin=start)


def damage_error(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is no sound GGUF file: {what}; download or copy it again")


class _Cursor:
    """Reads forward and refuses to leave the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.position = 0
        self._data = data
        self._size = len(data)

    def bytes(self, count: int) -> bytes:
        end = self.position + count
        if end > self._size:
            raise damage_error(self.path, f"truncated: its header goes on past byte {self._size:,}")
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def integer(self, count: int) -> int:
        return int.from_bytes(self.bytes(count), "little")

    def text(self) -> str:
        try:
            return self.bytes(self.integer(8)).decode()
        except UnicodeDecodeError as error:
            raise damage_error(self.path, f"no text at byte {self.position:,}") from error


def _counts(cursor: _Cursor) -> tuple[int, int]:
    if cursor.bytes(4) != b"GGUF":
        raise damage_error(cursor.path, "it does not begin with 'GGUF'")
    version = cursor.integer(4)
    if version not in _VERSIONS:
        big_endian = version.to_bytes(4, "little")[:2] == b"\0\0"
        why = "its numbers are big-endian" if big_endian else f"its version is {version}"
        raise CheckpointError(f"{cursor.path}: {why}: Tercet reads little-endian GGUF 2 and 3")
    return cursor.integer(8), cursor.integer(8)


def _field(cursor: _Cursor) -> tuple[str, Value]:
    key, kind = cursor.text(), cursor.integer(4)
    if kind == _STRING:
        return key, cursor.text()
    if kind != _ARRAY:
        return key, _numbers(cursor, kind, 1)[0]
    item, length = cursor.integer(4), cursor.integer(8)
    if item != _STRING:
        return key, _numbers(cursor, item, length)
    for _ in range(length):
        cursor.bytes(cursor.integer(8))
    return key, ()


def _numbers(cursor: _Cursor, kind: int, count: int) -> tuple[int | float | bool, ...]:
    if kind not in _SCALARS:
        raise damage_error(cursor.path, f"unknown metadata type {kind} at byte {cursor.position:,}")
    width = struct.calcsize(f"<{_SCALARS[kind]}")
    return struct.unpack(f"<{count}{_SCALARS[kind]}", cursor.bytes(count * width))


_Entry = tuple[str, tuple[int, ...], GgufKind, int]


def _tensor_entry(cursor: _Cursor) -> _Entry:
    name, rank = cursor.text(), cursor.integer(4)
    if rank > _MOST_DIMENSIONS:
        raise damage_error(cursor.path, f"tensor {name!r} has {rank} dimensions")
    shape = tuple(cursor.integer(8) for _ in range(rank))[::-1]
    kind, offset = cursor.integer(4), cursor.integer(8)
    if kind not in KINDS:
        raise damage_error(cursor.path, f"tensor {name!r} has the unknown type {kind}")
    return name, shape, KINDS[kind], offset


def _alignment(path: Path, fields: Mapping[str, Value]) -> int:
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise damage_error(path, f"its alignment is {alignment}")
    return alignment


@dataclass(frozen=True, kw_only=True)
class _Space:
    """Where a tensor may lie: from its own offset to the next one's, or to the file's end."""

    begin: int
    end: int
    file_end: int
    alignment: int

    def just_holds(self, needed: int) -> bool:
        """Whether so many bytes fill the space, padding apart."""
        padded = -(-needed // self.alignment) * self.alignment
        # not every writer pads the last tensor
        return self.end - self.begin in (needed, padded)


def _place(path: Path, name: str, shape: tuple[int, ...], kind: GgufKind, at: _Space) -> GgufTensor:
    if not shape or shape[-1] % kind.weights:
        raise damage_error(
            path, f"tensor {name!r}: shape {list(shape)} in blocks of {kind.weights}"
        )
    blocks = prod(shape) // kind.weights
    needed = blocks * kind.size_bytes
    if at.just_holds(needed):
        return GgufTensor(shape=shape, kind=kind, begin=at.begin, size_bytes=needed)
    fork = prod(shape) // _FORK_WEIGHTS * _FORK_BYTES
    if kind.number == _Q2_0 and shape[-1] % _FORK_WEIGHTS == 0 and at.just_holds(fork):
        raise CheckpointError(
            f"{path}: tensor {name!r} is marked type {_Q2_0}, Q2_0: blocks of 64 weights in 18 "
            f"bytes, {needed:,} bytes in all; but it lies in {at.end - at.begin:,} bytes, which is "
            f"blocks of {_FORK_WEIGHTS} weights in {_FORK_BYTES}: a fork of llama.cpp writes those "
            f"under the same number; get the file with groups of 64, or the model's Hugging Face "
            f"directory"
        )
    if at.begin + needed > at.file_end:
        end = f"tensor {name!r} ends at byte {at.begin + needed:,}, the file at {at.file_end:,}"
        raise damage_error(path, f"truncated: {end}")
    raise damage_error(
        path,
        f"tensor {name!r}, {list(shape)} in {kind.name}, takes {needed:,} bytes, but the next "
        f"one begins (or the file ends) {at.end - at.begin:,} bytes after it does",
    )
