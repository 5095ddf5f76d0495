"""Scaling: how many weights share one scale, and in what precision the scale is held."""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil

import torch

from tercet.errors import FormatError


class Granularity(StrEnum):
    """Which weights of W [N, K] share a scale."""

    TENSOR = "tensor"
    CHANNEL = "channel"
    GROUP = "group"
    BLOCK = "block"


SCALE_DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "e8m0": torch.float8_e8m0fnu,
    "e4m3": torch.float8_e4m3fn,
}

ZERO_DTYPES: dict[str, torch.dtype] = {
    "int8": torch.int8,
    "float16": torch.float16,
    "float32": torch.float32,
}


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How the scales of a weight W [N, K] are laid out.

    Attributes:
        granularity: tensor, channel (one per output row), group (along K), block (rows x columns).
        group_size: columns that share a scale; for group and block only.
        block_rows: rows that share a scale; for block only.
        dtype: a key of SCALE_DTYPES.
        zero: None for symmetric, else a key of ZERO_DTYPES; zero points are in units of levels.
        second_level: one float32 scale for the whole tensor multiplies the stored ones (NVFP4).
    """

    granularity: Granularity
    group_size: int | None = None
    block_rows: int | None = None
    dtype: str = "float16"
    zero: str | None = None
    second_level: bool = False

    def __post_init__(self) -> None:
        grouped = self.granularity in (Granularity.GROUP, Granularity.BLOCK)
        if grouped != (self.group_size is not None):
            raise FormatError(
                f"granularity {self.granularity.value!r} with group_size {self.group_size}: "
                "group and block need a group_size, tensor and channel take none"
            )
        if (self.granularity is Granularity.BLOCK) != (self.block_rows is not None):
            raise FormatError(
                f"granularity {self.granularity.value!r} with block_rows {self.block_rows}: "
                "block needs block_rows, the others take none"
            )
        for label, size in (("group_size", self.group_size), ("block_rows", self.block_rows)):
            if size is not None and size < 1:
                raise FormatError(f"{label} {size}: must be at least 1")
        if self.dtype not in SCALE_DTYPES:
            raise FormatError(f"scale dtype {self.dtype!r}: one of {', '.join(SCALE_DTYPES)}")
        if self.zero is not None and self.zero not in ZERO_DTYPES:
            raise FormatError(f"zero dtype {self.zero!r}: one of {', '.join(ZERO_DTYPES)}, or None")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype in which scales are stored."""
        return SCALE_DTYPES[self.dtype]

    @property
    def zero_torch_dtype(self) -> torch.dtype | None:
        """The dtype in which zero points are stored, or None for a symmetric scaling."""
        return ZERO_DTYPES[self.zero] if self.zero is not None else None

    def block(self, shape: tuple[int, int]) -> tuple[int, int]:
        """(rows, columns) of W [N, K] that share one scale."""
        rows, columns = shape
        match self.granularity:
            case Granularity.TENSOR:
                return max(rows, 1), max(columns, 1)
            case Granularity.CHANNEL:
                return 1, max(columns, 1)
            case Granularity.GROUP:
                return 1, self.group_size or 1
            case Granularity.BLOCK:
                return self.block_rows or 1, self.group_size or 1

    def scale_shape(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Shape of the scale tensor of W [N, K]."""
        rows, columns = self.block(shape)
        return ceil(shape[0] / rows), ceil(shape[1] / columns)

    def size_bits(self, shape: tuple[int, int]) -> int:
        """Bits that scales and zero points of W [N, K] take in storage."""
        rows, columns = self.scale_shape(shape)
        one = self.torch_dtype.itemsize * 8
        zero = self.zero_torch_dtype
        one += zero.itemsize * 8 if zero is not None else 0
        return rows * columns * one + (32 if self.second_level else 0)
