"""Packed codes: fields of 2, 4 or 8 bits from int8 codes and back, in Triton.

Each byte moves once: in torch's operations a layer of Llama-3.2-1B takes 28 launches to unpack,
and five times the bytes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 512


@triton.jit
def together(codes, field, BITS: tl.constexpr, AXIS: tl.constexpr):
    """int32 codes, those of a byte along AXIS, in its fields: they do not overlap: a sum."""
    return tl.sum((codes & ((1 << BITS) - 1)) << (BITS * field), AXIS)


@triton.jit
def _pack(in_ptr, out_ptr, K, WIDTH, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """out [N, WIDTH] bytes of in [N, K]; a program has BLOCK bytes of a row."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    field = tl.arange(0, 8 // BITS)[None, :]
    column = at[:, None] * (8 // BITS) + field
    code = tl.load(in_ptr + row * K + column, column < K, 0).to(tl.int32)
    packed = together(code, field, BITS, 1)
    tl.store(out_ptr + row * WIDTH + at, packed.to(tl.uint8), at < WIDTH)


@triton.jit
def _unpack(in_ptr, out_ptr, K, WIDTH, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """out [N, K] of in [N, WIDTH] bytes; a program has BLOCK bytes of a row."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    field = tl.arange(0, 8 // BITS)[None, :]
    column = at[:, None] * (8 // BITS) + field
    byte = tl.load(in_ptr + row * WIDTH + at, at < WIDTH, 0).to(tl.int32)[:, None]
    # the field in the topmost bits, then its sign over what lies above
    code = (byte << (32 - BITS - BITS * field)) >> (32 - BITS)
    tl.store(out_ptr + row * K + column, code.to(tl.int8), column < K)


def pack(codes: Tensor, bits: int) -> Tensor:
    """codes [N, K] int8, contiguous, as fields: uint8 [N, ceil(K bits / 8)], the first lowest."""
    rows, columns = codes.shape
    width = -(-columns * bits // 8)
    packed = torch.empty((rows, width), dtype=torch.uint8, device=codes.device)
    if packed.numel():
        _pack[(rows, triton.cdiv(width, _BLOCK))](
            codes, packed, columns, width, BITS=bits, BLOCK=_BLOCK, num_warps=4
        )
    return packed


def unpack(packed: Tensor, bits: int, out: Tensor) -> None:
    """Writes the codes of packed [N, ceil(K bits / 8)] into out [N, K] int8; both contiguous."""
    rows, columns = out.shape
    if out.numel():
        _unpack[(rows, triton.cdiv(packed.shape[1], _BLOCK))](
            packed, out, columns, packed.shape[1], BITS=bits, BLOCK=_BLOCK, num_warps=4
        )
