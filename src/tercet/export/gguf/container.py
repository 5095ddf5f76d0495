"""Writes a GGUF file from metadata and tensors, one tensor in memory at a time.

gguf.GGUFWriter holds all tensors until the end and refuses type numbers that it does not know.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from tercet.checkpoints.gguf.notes import CHECKSUMS, DIGITS, crc32, join_checksums

_ALIGNMENT = 32
_VERSION = 3
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9

Field = int | float | bool | str | Sequence[str] | Sequence[int] | Sequence[float]
"""int: uint32; float: float32; arrays: of strings, of int32, or of float32."""


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """One tensor to write.

    Attributes:
        name: GGUF's.
        shape: row-major.
        number: ggml's type id.
        size_bytes: how many bytes `chunks` gives.
        chunks: reads and encodes the tensor.
    """

    name: str
    shape: tuple[int, ...]
    number: int
    size_bytes: int
    chunks: Callable[[], Iterable[bytes]]


def write_container(
    path: Path, fields: Mapping[str, Field], tensors: Sequence[TensorEntry]
) -> None:
    """Writes the file at `path`, with checksums of its header and of every tensor."""
    # first, so that no other run of zeros comes before it
    blank = "0" * (DIGITS * (1 + len(tensors)))
    head = _header({CHECKSUMS: blank, **fields}, tensors)
    checksums = [crc32([head])]
    with path.open("wb") as file:
        file.write(head)
        checksums += [_write_tensor(file, tensor) for tensor in tensors]
        file.seek(head.index(blank.encode()))
        file.write(join_checksums(checksums))


def _header(fields: Mapping[str, Field], tensors: Sequence[TensorEntry]) -> bytes:
    parts = [b"GGUF", struct.pack("<IQQ", _VERSION, len(tensors), len(fields))]
    parts += [_string(key) + _field(value) for key, value in fields.items()]
    offset = 0
    for tensor in tensors:
        sizes = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape[::-1])
        parts.append(_string(tensor.name) + sizes + struct.pack("<IQ", tensor.number, offset))
        offset += _align(tensor.size_bytes)
    head = b"".join(parts)
    return head.ljust(_align(len(head)), b"\0")


def _field(value: Field) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _UINT32, value)
        case float():
            return struct.pack("<If", _FLOAT32, value)
        case str():
            return struct.pack("<I", _STRING) + _string(value)
        case _ if all(isinstance(item, int) for item in value):
            return _numbers(cast(Sequence[int], value), _INT32, "i")
        case _ if all(isinstance(item, float) for item in value):
            return _numbers(cast(Sequence[float], value), _FLOAT32, "f")
        case _:
            texts = cast(Sequence[str], value)
            head = struct.pack("<IIQ", _ARRAY, _STRING, len(texts))
            return head + b"".join(map(_string, texts))


def _numbers(items: Sequence[float], kind: int, letter: str) -> bytes:
    head = struct.pack("<IIQ", _ARRAY, kind, len(items))
    return head + struct.pack(f"<{len(items)}{letter}", *items)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _align(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _write_tensor(file: BinaryIO, tensor: TensorEntry) -> str:
    begin = file.tell()

    def write_chunks() -> Iterable[bytes]:
        for chunk in tensor.chunks():
            file.write(chunk)
            yield chunk

    checksum = crc32(write_chunks())
    size = file.tell() - begin
    assert size == tensor.size_bytes, f"{tensor.name}: {size} bytes, not {tensor.size_bytes}"
    file.write(bytes(_align(size) - size))
    return checksum
