"""A packed weight as com.microsoft MatMulNBits and GatherBlockQuantized hold it.

W [N, K] is cut into blocks of `block` columns, K padded to whole blocks, and

    W[n, k] = (code[n, k] - zero[n, k // block]) * scale[n, k // block]

with codes of 2, 4 or 8 bits, the first in the lowest bits. Without a zero point it is 2^(bits - 1);
ternary and nonary codes are shifted so that this is their zero, which saves the zero points.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor
from torch.nn.functional import pad

from tercet.checkpoints.packed.layout import PackedModule
from tercet.export.integer_codes import BITS, pack, refusal, zero_codes
from tercet.export.target import Holding
from tercet.formats import PackedTensor, Scheme

_HOLDER = "MatMulNBits"
# ONNX Runtime's CPU provider has kernels for blocks of 16 to 256; 2 bits are fast up to 128 only
_SMALLEST_BLOCK = 16
_LARGEST_BLOCK = {2: 128, 4: 256, 8: 256}
# MatMulNBits' accuracy_level by bits: 0 multiplies in float32, 4 rounds its input to int8 in the
# weight's blocks. There is a float32 kernel for 4 bits only: with 2 and 8 bits, level 0 unpacks the
# whole weight for every token (SmolLM2-135M: 5 to 8 tokens a second against 57 to 90)
FAST_LEVELS = {2: 4, 4: 0, 8: 4}


@dataclass(frozen=True, kw_only=True)
class QuantizedBlocks:
    """A weight [N, K] cut into C blocks a row.

    Attributes:
        bits: of one code.
        block: columns of one block.
        codes: uint8 [N, C, block * bits / 8].
        scale: [N, C] in the dtype of the checkpoint.
        zero: uint8 [N, ceil(C * bits / 8)], packed like codes; None for 2^(bits - 1) everywhere.
        shape: (N, K).
    """

    bits: int
    block: int
    codes: Tensor
    scale: Tensor
    zero: Tensor | None
    shape: tuple[int, int]


def block_size(scheme: Scheme) -> int:
    """The largest block that divides the scheme's groups; 0 where there is none.

    Scales of larger groups, of channels and of tensors are repeated for each block.
    """
    block = _LARGEST_BLOCK[BITS[scheme.element.name]]
    while (scheme.scaling.group_size or 0) % block:
        block //= 2
    return block if block >= _SMALLEST_BLOCK else 0


def held(module: str, entry: PackedModule, levels: Mapping[int, int]) -> Holding:
    """How a module is held there, from its scheme and shape alone; `levels` as in FAST_LEVELS."""
    reason = _refusal(entry)
    if reason is not None:
        return Holding(module=module, reason=reason)
    scheme, (_, columns) = entry.scheme, entry.shape
    bits, block = BITS[scheme.element.name], block_size(scheme)
    per_row = ceil(columns / block)
    row_bits = per_row * (block * bits + scheme.scaling.torch_dtype.itemsize * 8)
    zeros = ", zero points" if scheme.scaling.zero else ""
    row_bits += ceil(per_row * bits / 8) * 8 if scheme.scaling.zero else 0
    return Holding(
        module=module,
        kind=f"MatMulNBits {bits} bits, blocks of {block}{zeros}",
        bits_per_weight=row_bits / columns,
        activation_block=block if levels.get(bits) == 4 else None,
    )


def _refusal(entry: PackedModule) -> str | None:
    reason = refusal(entry, _HOLDER, "onnx")
    if reason is None and not block_size(entry.scheme):
        return (
            f"groups of {entry.scheme.scaling.group_size}: {_HOLDER} has blocks of 16, 32, 64, 128 "
            f"and 256: use a group size that is a multiple of 16 (g32, g64, g128)"
        )
    return reason


def quantized_blocks(weight: PackedTensor, module: str) -> QuantizedBlocks:
    """The same codes, scales and zero points in blocks; nothing is rounded.

    Raises:
        UnsupportedError: a zero point lies outside of the codes.
    """
    scheme, (rows, columns) = weight.scheme, weight.shape
    bits, block = BITS[scheme.element.name], block_size(scheme)
    blocks = ceil(columns / block)
    middle, zero_code = 1 << bits - 1, scheme.element.zero_code
    shift = middle - zero_code if weight.zero is None else 0
    codes = pad(weight.unpack() + shift, (0, blocks * block - columns), value=middle)
    zero = None
    if weight.zero is not None:
        points = zero_codes(weight.zero, weight, module, _HOLDER)
        zero = pack(_per_block(points, weight, block, blocks), bits)
    return QuantizedBlocks(
        bits=bits,
        block=block,
        codes=pack(codes, bits).view(rows, blocks, block * bits // 8),
        scale=_per_block(weight.scale, weight, block, blocks),
        zero=zero,
        shape=weight.shape,
    )


def _per_block(values: Tensor, weight: PackedTensor, block: int, blocks: int) -> Tensor:
    """Values per group [R, C] to values per block [N, blocks]."""
    rows, columns = weight.shape
    _, group = weight.scheme.scaling.block(weight.shape)
    starts = (torch.arange(blocks) * block).clamp_(max=max(columns - 1, 0))
    return values.expand(rows, -1)[:, starts // group].contiguous()
