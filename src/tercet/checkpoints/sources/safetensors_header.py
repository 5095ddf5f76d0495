"""The header of a safetensors file, checked before any weight is read.

Format: 8 bytes little-endian header length, the header as JSON
{name: {dtype, shape, data_offsets: [begin, end]}}, then the data without holes, to the last byte.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from tercet.checkpoints.hashed_file import ReadableFile
from tercet.errors import CheckpointError

_LONGEST_HEADER = 100_000_000

DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
}


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """Where one tensor lies.

    Attributes:
        path: the file.
        dtype: as stored.
        shape: as stored, row-major.
        begin: the first byte, counted from the start of the file.
        size_bytes: how many bytes it takes.
    """

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    size_bytes: int

    def read(self) -> Tensor:
        """The tensor, in memory of its own."""
        with self.path.open("rb") as file:
            return self.read_from(file)

    def read_from(self, file: ReadableFile) -> Tensor:
        """The same, from the file `path` that is open already."""
        if not self.size_bytes:
            return torch.empty(self.shape, dtype=self.dtype)
        data = bytearray(self.size_bytes)
        file.seek(self.begin)
        if file.readinto(data) != self.size_bytes:
            raise _damage_error(self.path, "it became shorter while it was read")
        return torch.frombuffer(data, dtype=self.dtype).reshape(self.shape)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Where each tensor of the file lies.

    Errors:
        CheckpointError, naming the file, for a header that is damaged or does not fit the file's
        size: a truncated file is found here, before any work.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise _damage_error(path, f"its header says {length:,} bytes, the file has {size:,}")
        text = file.read(length)
    tensors = {
        name: _entry(path, name, raw, 8 + length)
        for name, raw in _parse(path, text).items()
        if name != "__metadata__"
    }
    _check_layout(path, tensors, 8 + length, size)
    return tensors


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except ValueError as error:
        raise _damage_error(path, "its header is not JSON") from error
    if not isinstance(header, dict):
        raise _damage_error(path, "its header is not a JSON object")
    return cast(dict[str, Any], header)


def _entry(path: Path, name: str, raw: Any, data_start: int) -> StoredTensor:
    def refuse(what: str) -> NoReturn:
        raise _damage_error(path, f"the header's entry {name!r} has {what}")

    if not isinstance(raw, dict):
        refuse("no fields")
    fields = cast(Mapping[str, Any], raw)
    dtype = fields.get("dtype")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        refuse(f"the dtype {dtype!r}, known are {', '.join(DTYPES)}")
    shape, offsets = _integers(fields.get("shape")), _integers(fields.get("data_offsets"))
    if shape is None:
        refuse("no shape")
    if offsets is None or len(offsets) != 2:
        refuse("no data offsets")
    begin, end = offsets
    size = prod(shape) * DTYPES[dtype].itemsize
    if end - begin != size:
        refuse(f"shape {list(shape)} in {dtype}: {size:,} bytes, but {end - begin:,} are stored")
    return StoredTensor(
        path=path, dtype=DTYPES[dtype], shape=shape, begin=data_start + begin, size_bytes=size
    )


def _integers(raw: Any) -> tuple[int, ...] | None:
    if not isinstance(raw, list):
        return None
    values = cast(list[Any], raw)
    good = all(type(value) is int and value >= 0 for value in values)
    return tuple(values) if good else None


def _check_layout(path: Path, tensors: dict[str, StoredTensor], start: int, size: int) -> None:
    position = start
    ordered = sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].size_bytes))
    for name, tensor in ordered:
        if tensor.begin != position:
            raise _damage_error(
                path, f"tensor {name!r} begins at {tensor.begin:,}, not at {position:,}"
            )
        position += tensor.size_bytes
    if position != size:
        what = "truncated" if position > size else "too long"
        raise _damage_error(
            path, f"it is {what}: its header needs {position:,} bytes, it has {size:,}"
        )


def _damage_error(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is no sound safetensors file: {what}; download or copy the file again"
    )
