"""Packed codes: fields of 2, 4 or 8 bits from int8 codes and back, in Triton.

Each byte moves once: in torch's operations a layer of Llama-3.2-1B takes 28 launches to unpack,
and five times the bytes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048


@triton.jit
def _pack(in_ptr, out_ptr, K, WIDTH, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """out [N, WIDTH] bytes of in [N, K]; a program has a part of a row."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    packed = tl.zeros((BLOCK,), tl.int32)
    for field in tl.static_range(8 // BITS):
        column = at * (8 // BITS) + field
        code = tl.load(in_ptr + row * K + column, column < K, 0).to(tl.int32)
        packed |= (code & ((1 << BITS) - 1)) << (BITS * field)
    tl.store(out_ptr + row * WIDTH + at, packed.to(tl.uint8), at < WIDTH)


@triton.jit
def _unpack(in_ptr, out_ptr, K, WIDTH, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """out [N, K] of in [N, WIDTH] bytes."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    byte = tl.load(in_ptr + row * WIDTH + column // (8 // BITS), column < K, 0).to(tl.int32)
    # the field in the topmost bits, then its sign over what lies above
    up = byte << (32 - BITS - BITS * (column % (8 // BITS)))
    tl.store(out_ptr + row * K + column, (up >> (32 - BITS)).to(tl.int8), column < K)


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
        _unpack[(rows, triton.cdiv(columns, _BLOCK))](
            packed, out, columns, packed.shape[1], BITS=bits, BLOCK=_BLOCK, num_warps=4
        )
