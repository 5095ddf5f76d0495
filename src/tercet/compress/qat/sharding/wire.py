"""Wire: how codes travel between devices, at 2, 4 or 8 bits each.

A code is a field in two's complement, the first of a byte in its lowest bits: two shifts decode it.
(`formats.storage` decodes by tables and in pieces that bound memory: on a GPU a hundred launches a
layer, each with a copy from the host.)
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from tercet.errors import PlanError
from tercet.formats import Granularity, Scheme


@dataclass(frozen=True)
class Wire:
    """Fields of codes.

    Attributes:
        bits: of a code, 2, 4 or 8.
    """

    bits: int

    def pack(self, codes: Tensor) -> Tensor:
        """int8 [N, K], each in [-2^(bits-1), 2^(bits-1)), to uint8 [N, ceil(K bits / 8)]."""
        if codes.device.type == "cuda":
            from tercet.packed_weight.triton import packed_codes

            return packed_codes.pack(codes.contiguous(), self.bits)
        fields = 8 // self.bits
        rows, columns = codes.shape
        padded = pad(codes, (0, -columns % fields)).view(torch.uint8)
        parts = (padded & (1 << self.bits) - 1).view(rows, -1, fields).unbind(-1)
        packed = parts[0].clone()
        for at, part in enumerate(parts[1:], 1):
            packed |= part << self.bits * at
        return packed

    def unpack(self, packed: Tensor, out: Tensor) -> None:
        """The same back into out: int8 [N, K], contiguous."""
        if packed.device.type == "cuda":
            from tercet.packed_weight.triton import packed_codes

            packed_codes.unpack(packed.contiguous(), self.bits, out)
            return
        # the topmost field last; what lies above a field is shifted out, below it falls away
        up = torch.arange(8 - self.bits, -1, -self.bits, dtype=torch.uint8, device=packed.device)
        fields = (packed[..., None] << up).view(torch.int8)
        fields >>= 8 - self.bits
        out.copy_(fields.view(len(packed), -1)[:, : out.shape[1]])


def wire_of(scheme: Scheme) -> Wire:
    """How codes of this scheme travel; PlanError where rows do not have scales of their own."""
    if scheme.scaling.granularity is not Granularity.CHANNEL or scheme.scaling.zero is not None:
        raise PlanError(
            f"{scheme.name!r} over several devices: rows are quantized where they lie, which needs "
            f"one scale a row and no zero point: use {scheme.element.name}-channel"
        )
    return Wire(next(bits for bits in (2, 4, 8) if bits >= scheme.element.bits))
