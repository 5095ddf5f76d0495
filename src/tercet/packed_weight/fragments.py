"""fragments: the compute layout of packed weights on GPUs, in the order of tensor-core registers.

W [N, K] of an element of b = 2, 4 or 8 bits is held as

    codes  int32 [ceil(N / 16), KU, 32, 4]     U = 256 / b columns a unit
    scale  [ceil(N / 16), G, 16]               KU = ceil(K / 128) * (128 / U) units
    zero   None, or like scale                 G = ceil(K / g) groups, as in rows16

A unit is 16 rows by U columns in 512 contiguous bytes; lane l of a warp owns 16 of them,
[unit, l, 0..3], so that one 16-byte load per lane brings it in. Byte B of word i, at bits
b j .. b j + b - 1, is the code of

    row    = 16 n + l / 4 + 8 (i % 2)
    column = U u + 32 j + 16 (i / 2) + 4 (l % 4) + B

so word i, once its field j is widened to bytes, is register i of the A operand of
`mma.m16n8k32` (PTX ISA, "Matrix Fragments for mma.m16n8k32") for the columns U u + 32 j ..+ 31.

A code of an integer element is its level in two's complement in b bits: a left shift and a mask
decode it, without an offset or a table. Every other code is its bit pattern. Padding is 0, whose
level is 0, so what lies beyond N and K changes no sum.
"""

import torch
from torch import Tensor

from tercet.formats.chunks import chunk_rows
from tercet.packed_weight.rows16 import LANES, ROWS_AT_ONCE, Layout, levels_of

COLUMNS = 128
_STEP = 32


def unit_columns(layout: Layout) -> int:
    """Columns of a unit: 128, 64 or 32."""
    return 256 // layout.bits


def units(layout: Layout) -> int:
    """Units along K, padding counted."""
    return -(-layout.columns // COLUMNS) * (COLUMNS // unit_columns(layout))


def codes_shape(layout: Layout) -> tuple[int, int, int, int]:
    """Shape of the codes."""
    return layout.blocks, units(layout), 32, 4


def levels(layout: Layout) -> Tensor:
    """float32 [256]: the level of each stored code, repeated for codes below 8 bits."""
    codes = torch.arange(256)
    if not layout.element.integer:
        return levels_of(layout.element, layout.bits)
    low = codes % 2**layout.bits
    signed = torch.where(low < 2 ** (layout.bits - 1), low, low - 2**layout.bits)
    return signed.float()


def pack_codes(codes: Tensor, layout: Layout) -> Tensor:
    """uint8 codes [rows, columns], as in `formats`, to int32 codes in fragments, on their device.

    In chunks of rows: what is held beside codes and result is a few bytes for each of 1024 x K.
    """
    packed = torch.empty(codes_shape(layout), dtype=torch.int32, device=codes.device)
    for part in chunk_rows(layout.rows, ROWS_AT_ONCE):
        packed[part.start // LANES : -(-part.stop // LANES)] = _pack_block_rows(codes[part], layout)
    return packed


def _pack_block_rows(codes: Tensor, layout: Layout) -> Tensor:
    bits, fields = layout.bits, 8 // layout.bits
    blocks, along = -(-len(codes) // LANES), units(layout)
    if layout.element.integer:
        # uint8 wraps around: the low bits are those of the level
        codes = (codes + (int(layout.element.lowest) & 255)) & (2**bits - 1)
    shape = (blocks * LANES, along * unit_columns(layout))
    wide = torch.zeros(shape, dtype=torch.uint8, device=codes.device)
    wide[: len(codes), : layout.columns] = codes
    # row = (i % 2, l / 4), column = (unit, j, i / 2, l % 4, B)
    places = wide.view(blocks, 2, 8, along, fields, 2, 4, 4)
    octets = places[:, :, :, :, 0]
    for j in range(1, fields):
        octets = octets | (places[:, :, :, :, j] << (bits * j))
    # to [block, unit, l / 4, l % 4, i / 2, i % 2, B]
    ordered = octets.permute(0, 3, 2, 5, 4, 1, 6).contiguous()
    return ordered.view(blocks, along, 32, 16).view(torch.int32)


def unpack_codes(packed: Tensor, layout: Layout) -> Tensor:
    """int32 codes of B blocks of rows in fragments to stored codes int64 [16 B, columns]."""
    bits, fields = layout.bits, 8 // layout.bits
    blocks, along = len(packed), units(layout)
    octets = packed.contiguous().view(torch.uint8).view(blocks, along, 8, 4, 2, 2, 4)
    octets = octets.permute(0, 5, 2, 1, 4, 3, 6)
    columns = [(octets >> (bits * j)) & (2**bits - 1) for j in range(fields)]
    wide = torch.stack(columns, 4).reshape(blocks * LANES, along * unit_columns(layout))
    return wide[:, : layout.columns].long()
