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

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from tercet.errors import CheckpointError

_SCALARS: dict[int, str] = dict(zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 4

Value = int | float | bool | str | tuple[int | float | bool, ...]


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
    kind: GGMLQuantizationType
    begin: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class GgufHeader:
    """Metadata (arrays of strings left out) and tensors, in the file's order."""

    fields: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]


def read_gguf_header(path: Path) -> GgufHeader:
    """The header of that file.

    Errors:
        CheckpointError, naming the file, when it is no GGUF, is damaged, or is shorter than its
        tensors need.
    """
    size = path.stat().st_size
    if size < 24:
        raise damaged(path, f"it has {size} bytes, not even a header")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(path, data)
        tensor_count, field_count = _counts(cursor)
        fields = dict(_field(cursor) for _ in range(field_count))
        entries = [_tensor_entry(cursor) for _ in range(tensor_count)]
    start = _data_start(cursor, fields)
    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in entries:
        if name in tensors:
            raise damaged(path, f"tensor {name!r} is listed twice")
        tensors[name] = _place(path, name, shape, kind, start + offset, size)
    return GgufHeader(fields=fields, tensors=tensors)


def damaged(path: Path, what: str) -> CheckpointError:
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
            raise damaged(self.path, f"truncated: its header goes on past byte {self._size:,}")
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def integer(self, count: int) -> int:
        return int.from_bytes(self.bytes(count), "little")

    def text(self) -> str:
        try:
            return self.bytes(self.integer(8)).decode()
        except UnicodeDecodeError as error:
            raise damaged(self.path, f"no text at byte {self.position:,}") from error


def _counts(cursor: _Cursor) -> tuple[int, int]:
    if cursor.bytes(4) != b"GGUF":
        raise damaged(cursor.path, "it does not begin with 'GGUF'")
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
        raise damaged(cursor.path, f"unknown metadata type {kind} at byte {cursor.position:,}")
    width = struct.calcsize(f"<{_SCALARS[kind]}")
    return struct.unpack(f"<{count}{_SCALARS[kind]}", cursor.bytes(count * width))


_Entry = tuple[str, tuple[int, ...], GGMLQuantizationType, int]


def _tensor_entry(cursor: _Cursor) -> _Entry:
    name, rank = cursor.text(), cursor.integer(4)
    if rank > _MOST_DIMENSIONS:
        raise damaged(cursor.path, f"tensor {name!r} has {rank} dimensions")
    shape = tuple(cursor.integer(8) for _ in range(rank))[::-1]
    kind, offset = cursor.integer(4), cursor.integer(8)
    try:
        return name, shape, GGMLQuantizationType(kind), offset
    except ValueError as error:
        raise damaged(cursor.path, f"tensor {name!r} has the unknown type {kind}") from error


def _data_start(cursor: _Cursor, fields: Mapping[str, Value]) -> int:
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise damaged(cursor.path, f"its alignment is {alignment}")
    return -(-cursor.position // alignment) * alignment


def _place(
    path: Path, name: str, shape: tuple[int, ...], kind: GGMLQuantizationType, begin: int, size: int
) -> GgufTensor:
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if not shape or shape[-1] % block:
        raise damaged(path, f"tensor {name!r}: shape {list(shape)} in blocks of {block}")
    needed = prod(shape) // block * block_bytes
    if begin + needed > size:
        end = f"tensor {name!r} ends at byte {begin + needed:,}, the file at {size:,}"
        raise damaged(path, f"truncated: {end}")
    return GgufTensor(shape=shape, kind=kind, begin=begin, size_bytes=needed)
