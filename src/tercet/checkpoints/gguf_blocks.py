"""The blocks of a GGUF tensor, read from the file and dequantized, a piece at a time."""

from pathlib import Path

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from tercet.checkpoints.gguf_header import GgufTensor, damaged

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
)


def read_blocks(path: Path, tensor: GgufTensor) -> Tensor:
    """That tensor: plain types in their own dtype, quantized ones exactly, in float32."""
    plain = PLAIN_DTYPES.get(tensor.kind)
    if plain is not None:
        return _read_bytes(path, tensor).view(plain).reshape(tensor.shape)
    block, block_bytes = GGML_QUANT_SIZES[tensor.kind]
    blocks = tensor.size_bytes // block_bytes
    piece = max(1, _PIECE_WEIGHTS // block)
    values = np.empty((blocks, block), dtype=np.float32)
    with path.open("rb") as file:
        file.seek(tensor.begin)
        for first in range(0, blocks, piece):
            count = min(piece, blocks - first)
            raw = file.read(count * block_bytes)
            if len(raw) != count * block_bytes:
                raise damaged(path, "it became shorter while it was read")
            # one long row: gguf works on 16 rows at a time, which is slow where rows are short
            row = np.frombuffer(raw, dtype=np.uint8)[None]
            values[first : first + count] = dequantize(row, tensor.kind).reshape(count, block)
    return torch.from_numpy(values).reshape(tensor.shape)


def _read_bytes(path: Path, tensor: GgufTensor) -> Tensor:
    if not tensor.size_bytes:
        return torch.empty(0, dtype=torch.uint8)
    data = bytearray(tensor.size_bytes)
    with path.open("rb") as file:
        file.seek(tensor.begin)
        if file.readinto(data) != tensor.size_bytes:
            raise damaged(path, "it became shorter while it was read")
    return torch.frombuffer(data, dtype=torch.uint8)
