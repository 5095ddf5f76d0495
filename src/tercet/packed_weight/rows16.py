"""rows16: the compute layout of packed weights, sixteen output rows side by side.

W [N, K] in groups of g columns is held as

    codes  int32 [ceil(N / 16), G * R, 16]
    scale  [ceil(N / 16), G, 16]            G = ceil(K / g) groups
    zero   None, or [ceil(N / 16), G, 16]

Dword [n, r, j] holds 32 / b consecutive codes of row 16 n + j along K, the first in the lowest
bits, b = 2, 4 or 8 bits a code. A group starts at a dword of its own: R = ceil(g / (32 / b)) dwords
each, the last filled up with code 0. So one 64-byte load brings the codes of sixteen rows, and one
table lookup with a shift turns sixteen codes into sixteen floats. 8-bit integer codes are stored as
the two's complement byte of their level; all others as they are in `formats`.
"""

from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from tercet.formats import Element, parse_scheme
from tercet.formats.chunks import chunk_rows

LANES = 16
ROWS_AT_ONCE = 1024


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How W [rows, columns] of an element in groups of `group` columns lies in memory."""

    element: Element
    rows: int
    columns: int
    group: int

    @cached_property
    def bits(self) -> int:
        """Bits a code: 2, 4 or 8."""
        return next(bits for bits in (2, 4, 8) if self.element.bits <= bits)

    @property
    def per_dword(self) -> int:
        """Codes in a dword."""
        return 32 // self.bits

    @property
    def is_signed(self) -> bool:
        """Whether codes are stored as two's complement levels."""
        return self.element.integer and self.bits == 8

    @property
    def blocks(self) -> int:
        """Blocks of 16 rows."""
        return -(-self.rows // LANES)

    @cached_property
    def groups(self) -> int:
        """Groups along K."""
        return -(-self.columns // self.group)

    @property
    def runs_per_group(self) -> int:
        """Dwords of one row in a group."""
        return -(-self.group // self.per_dword)

    @property
    def codes_shape(self) -> tuple[int, int, int]:
        """Shape of the codes."""
        return self.blocks, self.groups * self.runs_per_group, LANES

    @property
    def scale_shape(self) -> tuple[int, int, int]:
        """Shape of the scales, and of the zero points."""
        return self.blocks, self.groups, LANES

    def levels(self) -> Tensor:
        """float32 [256]: the level of each stored code, repeated for codes below 8 bits."""
        if self.is_signed:
            return torch.arange(256).to(torch.uint8).view(torch.int8).float()
        return levels_of(self.element, self.bits)


def levels_of(element: Element, bits: int) -> Tensor:
    """float32 [256]: the level of each code of `formats`, repeated for codes below 8 bits."""
    levels = element.table()
    padded = pad(levels, (0, 2**bits - len(levels)))
    return padded[torch.arange(256) % 2**bits]


@cache
def layout_of(scheme: str, rows: int, columns: int) -> Layout:
    """The layout of W [rows, columns] in the scheme of that name."""
    parsed = parse_scheme(scheme)
    _, group = parsed.scaling.block((rows, columns))
    return Layout(
        element=parsed.element, rows=rows, columns=columns, group=min(group, max(columns, 1))
    )


def pack_codes(codes: Tensor, layout: Layout) -> Tensor:
    """uint8 codes [rows, columns], as in `formats`, to int32 codes in rows16."""
    packed = torch.empty(layout.codes_shape, dtype=torch.int32, device=codes.device)
    for part in chunk_rows(layout.rows, ROWS_AT_ONCE):
        packed[part.start // LANES : -(-part.stop // LANES)] = _pack_block_rows(codes[part], layout)
    return packed


def _pack_block_rows(codes: Tensor, layout: Layout) -> Tensor:
    if layout.is_signed:
        # uint8 wraps around: the byte of the level
        codes = codes + (int(layout.element.lowest) & 255)
    group, per = layout.group, layout.per_dword
    blocks = -(-len(codes) // LANES)
    wide = pad(codes, (0, layout.groups * group - layout.columns, 0, blocks * LANES - len(codes)))
    wide = wide.reshape(blocks, LANES, layout.groups, group)
    wide = pad(wide, (0, layout.runs_per_group * per - group))
    digits = wide.reshape(blocks, LANES, layout.groups * layout.runs_per_group, per)
    dwords = torch.zeros(digits.shape[:-1], dtype=torch.int32, device=codes.device)
    for i in range(per):
        dwords |= digits[..., i].to(torch.int32) << (layout.bits * i)
    return dwords.transpose(1, 2)


def unpack_codes(packed: Tensor, layout: Layout) -> Tensor:
    """int32 codes of B blocks of rows in rows16 to stored codes int64 [16 B, columns]."""
    shifts = torch.arange(layout.per_dword, device=packed.device, dtype=torch.int32) * layout.bits
    digits = (packed.transpose(1, 2)[..., None] >> shifts) & (2**layout.bits - 1)
    padded = layout.runs_per_group * layout.per_dword
    wide = digits.reshape(len(packed) * LANES, layout.groups, padded)[..., : layout.group]
    return wide.reshape(len(wide), layout.groups * layout.group)[:, : layout.columns].long()


def pack_scale(scale: Tensor, layout: Layout) -> Tensor:
    """Scales or zero points [rows, groups] to rows16."""
    wide = pad(scale, (0, 0, 0, layout.blocks * LANES - layout.rows))
    return wide.reshape(layout.blocks, LANES, layout.groups).transpose(1, 2).contiguous()


def unpack_scale(scale: Tensor, layout: Layout) -> Tensor:
    """Scales or zero points of B blocks of rows in rows16 to float32 [16 B, columns]."""
    rows = scale.transpose(1, 2).reshape(len(scale) * LANES, layout.groups).float()
    return rows.repeat_interleave(layout.group, dim=1)[:, : layout.columns]
