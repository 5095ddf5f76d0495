"""The blocks of a GGUF tensor, read from the file and dequantized, a piece at a time."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from tercet.checkpoints.gguf.codes import CODE_BLOCKS, CODE_BLOCKS_BY_NUMBER
from tercet.checkpoints.gguf.header import GgufKind, GgufTensor, damage_error
from tercet.checkpoints.hashed_file import ReadableFile

# 1 MB of float32: stays in cache, and keeps what is held beside the result small
_PIECE_WEIGHTS = 1 << 18

PLAIN_DTYPES: dict[GGMLQuantizationType, torch.dtype] = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
    GGMLQuantizationType.F64: torch.float64,
}

QUANTIZED_KINDS: tuple[GGMLQuantizationType, ...] = (
    GGMLQuantizationType.Q4_0,
    GGMLQuantizationType.Q4_1,
    GGMLQuantizationType.Q5_0,
    GGMLQuantizationType.Q5_1,
    GGMLQuantizationType.Q8_0,
    GGMLQuantizationType.Q2_K,
    GGMLQuantizationType.Q3_K,
    GGMLQuantizationType.Q4_K,
    GGMLQuantizationType.Q5_K,
    GGMLQuantizationType.Q6_K,
    GGMLQuantizationType.IQ4_NL,
    GGMLQuantizationType.IQ4_XS,
    GGMLQuantizationType.TQ1_0,
    GGMLQuantizationType.TQ2_0,
    GGMLQuantizationType.MXFP4,
)


_Q2_0 = CODE_BLOCKS["Q2_0"].number
KNOWN_NUMBERS = frozenset((*QUANTIZED_KINDS, *PLAIN_DTYPES, _Q2_0))


def plain_dtype(kind: GgufKind) -> torch.dtype | None:
    """The dtype of a type that is no block format; None for the others."""
    return {plain.value: dtype for plain, dtype in PLAIN_DTYPES.items()}.get(kind.number)


def known_names() -> str:
    """The types that can be read, for a message."""
    names = [kind.name for kind in QUANTIZED_KINDS]
    return ", ".join((*names, "Q2_0", *(kind.name for kind in PLAIN_DTYPES)))


def read_blocks(path: Path, tensor: GgufTensor) -> Tensor:
    """That tensor: plain types in their own dtype, quantized ones exactly, in float32."""
    with path.open("rb") as file:
        return read_blocks_from(file, path, tensor)


def read_blocks_from(file: ReadableFile, path: Path, tensor: GgufTensor) -> Tensor:
    """The same, from the file `path` that is open already."""
    plain = plain_dtype(tensor.kind)
    if plain is not None:
        return _read_bytes(file, path, tensor).view(plain).reshape(tensor.shape)
    block, block_bytes = tensor.kind.weights, tensor.kind.size_bytes
    blocks = tensor.size_bytes // block_bytes
    piece = max(1, _PIECE_WEIGHTS // block)
    values = np.empty((blocks, block), dtype=np.float32)
    file.seek(tensor.begin)
    for first in range(0, blocks, piece):
        count = min(piece, blocks - first)
        raw = file.read(count * block_bytes)
        if len(raw) != count * block_bytes:
            raise damage_error(path, "it became shorter while it was read")
        # one long row: gguf works on 16 rows at a time, which is slow where rows are short
        row = np.frombuffer(raw, dtype=np.uint8)[None]
        values[first : first + count] = _dequantize(row, tensor.kind).reshape(count, block)
    return torch.from_numpy(values).reshape(tensor.shape)


def _dequantize(row: npt.NDArray[np.uint8], kind: GgufKind) -> npt.NDArray[np.float32]:
    if kind.number != _Q2_0:
        return dequantize(row, GGMLQuantizationType(kind.number))
    layout = CODE_BLOCKS_BY_NUMBER[_Q2_0]
    codes, scale, _ = layout.decode(torch.from_numpy(row.reshape(-1, layout.size_bytes).copy()))
    return ((codes.float() + layout.lowest) * scale.float().unsqueeze(1)).numpy()


def read_code_blocks(path: Path, tensor: GgufTensor) -> Tensor:
    """The blocks of a tensor as they lie in the file, uint8 [blocks, bytes of one]."""
    with path.open("rb") as file:
        return _read_bytes(file, path, tensor).reshape(-1, tensor.kind.size_bytes)


def _read_bytes(file: ReadableFile, path: Path, tensor: GgufTensor) -> Tensor:
    if not tensor.size_bytes:
        return torch.empty(0, dtype=torch.uint8)
    data = bytearray(tensor.size_bytes)
    file.seek(tensor.begin)
    if file.readinto(data) != tensor.size_bytes:
        raise damage_error(path, "it became shorter while it was read")
    return torch.frombuffer(data, dtype=torch.uint8)
