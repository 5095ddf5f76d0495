"""PreparedWeight: a packed weight in its compute layout, made once at load."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.formats import PackedTensor
from tercet.kernel.rows16 import (
    LANES,
    Layout,
    layout_of,
    pack_codes,
    pack_scale,
    unpack_codes,
    unpack_scale,
)

_EXACT_IN: dict[torch.dtype, torch.dtype] = {
    torch.float8_e8m0fnu: torch.bfloat16,
    torch.float8_e4m3fn: torch.float16,
    torch.int8: torch.float16,
}


@dataclass(frozen=True, kw_only=True)
class PreparedWeight:
    """W [N, K] in the rows16 layout (tercet/kernel/rows16.py), still packed.

    Attributes:
        codes: int32 [ceil(N / 16), runs, 16].
        scale: float32, float16 or bfloat16 [ceil(N / 16), groups, 16]; a second level is folded in.
        zero: None, or like scale.
        scheme: name of the scheme it was packed in.
        shape: (N, K).
        layout_name: the name of the layout.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor | None
    scheme: str
    shape: tuple[int, int]
    layout_name: str = "rows16"

    @property
    def layout(self) -> Layout:
        """Where each code and scale lies."""
        return layout_of(self.scheme, *self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors, padding counted."""
        parts = (self.codes, self.scale, self.zero)
        return sum(part.numel() * part.element_size() for part in parts if part is not None)

    def to(self, device: torch.device | str) -> "PreparedWeight":
        """The same weight on another device."""
        return PreparedWeight(
            codes=self.codes.to(device),
            scale=self.scale.to(device),
            zero=self.zero.to(device) if self.zero is not None else None,
            scheme=self.scheme,
            shape=self.shape,
        )


def prepare(packed: PackedTensor) -> PreparedWeight:
    """The weight in its compute layout, on the CPU. 16-bit and 8-bit scales stay 16 bits wide.

    FormatError where the packed tensor breaks one of its invariants.
    """
    packed.validate()
    layout = layout_of(packed.scheme.name, *packed.shape)
    scale = packed.scale.cpu()
    scale = scale.to(_EXACT_IN.get(scale.dtype, scale.dtype))
    if packed.second is not None:
        scale = scale.float() * packed.second.cpu()
    zero = packed.zero.cpu() if packed.zero is not None else None
    if zero is not None:
        zero = pack_scale(_per_row(zero.to(_EXACT_IN.get(zero.dtype, zero.dtype)), packed), layout)
    return PreparedWeight(
        codes=pack_codes(packed.unpack().cpu(), layout),
        scale=pack_scale(_per_row(scale, packed), layout),
        zero=zero,
        scheme=packed.scheme.name,
        shape=packed.shape,
    )


def _per_row(scale: Tensor, packed: PackedTensor) -> Tensor:
    """[ceil(N/br), G] to [N, G]."""
    rows = packed.scheme.scaling.block(packed.shape)[0]
    return scale.repeat_interleave(rows, dim=0)[: packed.shape[0]]


def concatenate(weights: list[PreparedWeight]) -> PreparedWeight:
    """One weight with the rows of all, for products of one input with several matrices.

    UnsupportedError unless they share scheme and K, and each row count is a multiple of 16.
    """
    if not weights:
        raise UnsupportedError("concatenate needs at least one weight, got none")
    first = weights[0]
    for weight in weights:
        if (weight.scheme, weight.shape[1]) != (first.scheme, first.shape[1]):
            raise UnsupportedError(
                f"cannot concatenate {weight.scheme} with K = {weight.shape[1]} to {first.scheme} "
                f"with K = {first.shape[1]}: scheme and K must agree; keep the weights apart"
            )
        if weight.scale.dtype != first.scale.dtype:
            raise UnsupportedError("cannot concatenate weights whose scales differ in dtype")
        if weight.shape[0] % LANES:
            raise UnsupportedError(
                f"cannot concatenate a weight of {weight.shape[0]} rows: "
                f"row counts must be multiples of {LANES}; keep the weights apart"
            )
    zeros = [weight.zero for weight in weights if weight.zero is not None]
    return PreparedWeight(
        codes=torch.cat([weight.codes for weight in weights]),
        scale=torch.cat([weight.scale for weight in weights]),
        zero=torch.cat(zeros) if zeros else None,
        scheme=first.scheme,
        shape=(sum(weight.shape[0] for weight in weights), first.shape[1]),
    )


def decode_blocks(weight: PreparedWeight, blocks: Tensor | slice) -> Tensor:
    """float32 W of the chosen blocks of 16 rows, [16 B, K]; rows past N are zeros."""
    layout = weight.layout
    levels = layout.levels().to(weight.codes.device)[unpack_codes(weight.codes[blocks], layout)]
    if weight.zero is not None:
        levels = levels - unpack_scale(weight.zero[blocks], layout)
    return levels * unpack_scale(weight.scale[blocks], layout)
