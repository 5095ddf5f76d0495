"""Grid: the values a weight may take under given scales, exactly as they will be stored."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tercet.formats import Granularity, PackedTensor, Scheme, from_codes
from tercet.formats.encode import round_scale, round_zero
from tercet.formats.packed import expand_blocks


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Stored scales and zero points of a weight W [N, K], spread out over the weights.

    Attributes:
        scheme: the number format.
        shape: (N, K).
        stored, second, stored_zero: scales, second level and zero points as a checkpoint has them.
        scale: float32 [N, K].
        zero: float32 [N, K], or None for a symmetric scheme.
    """

    scheme: Scheme
    shape: tuple[int, int]
    stored: Tensor
    second: Tensor | None
    stored_zero: Tensor | None
    scale: Tensor
    zero: Tensor | None

    @classmethod
    def of(
        cls, scheme: Scheme, shape: tuple[int, int], scale: Tensor, zero: Tensor | None, name: str
    ) -> "Grid":
        """The grid after rounding scales and zero points [blocks] to the scheme's dtypes."""
        stored, second = round_scale(scale, scheme, name)
        stored_zero = round_zero(zero, scheme, name)
        block = scheme.scaling.block(shape)
        exact = stored.float() if second is None else stored.float() * second
        return cls(
            scheme=scheme,
            shape=shape,
            stored=stored,
            second=second,
            stored_zero=stored_zero,
            scale=expand_blocks(exact, block, shape),
            zero=None if stored_zero is None else expand_blocks(stored_zero.float(), block, shape),
        )

    @property
    def group(self) -> int | None:
        """Columns that share a scale where every row has its own scales; None otherwise."""
        by_row = self.scheme.scaling.granularity in (Granularity.GROUP, Granularity.CHANNEL)
        return self.scheme.scaling.block(self.shape)[1] if by_row else None

    def values(self, levels: Tensor) -> Tensor:
        """(levels - zero) * scale [N, K]."""
        return (levels if self.zero is None else levels - self.zero) * self.scale

    def nearest(self, weight: Tensor) -> Tensor:
        """The levels [N, K] nearest to W [N, K]."""
        inverse = torch.where(self.scale > 0, 1.0 / self.scale, 0.0)
        values = weight * inverse
        return self.scheme.element.decode(
            self.scheme.element.encode(values if self.zero is None else values + self.zero)
        )

    def pack(self, levels: Tensor) -> PackedTensor:
        """The packed weight of these levels [N, K]."""
        codes = self.scheme.element.encode(levels)
        return from_codes(codes, self.scheme, self.stored, self.stored_zero, self.second)
