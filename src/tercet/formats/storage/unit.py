"""What every storage has in common: whole units of codes become whole units of bytes."""

from abc import ABC, abstractmethod
from math import ceil

import torch
from torch import Tensor
from torch.nn.functional import pad

from tercet.errors import FormatError


class Storage(ABC):
    """A bijection between `unit_codes` codes and `unit_bytes` bytes, applied along each row.

    Attributes:
        name: the storage's name in schemes and files.
        unit_codes: codes in one unit.
        unit_bytes: bytes in one unit.
        code_count: codes are in [0, code_count).
        pad_code: the code that fills a row up to a whole number of units.
    """

    name: str
    unit_codes: int
    unit_bytes: int
    code_count: int
    pad_code: int = 0

    @property
    def bits(self) -> float:
        """Bits per weight, padding apart."""
        return 8 * self.unit_bytes / self.unit_codes

    def row_bytes(self, columns: int) -> int:
        """Bytes of one row of `columns` codes."""
        return ceil(columns / self.unit_codes) * self.unit_bytes

    def pack(self, codes: Tensor) -> Tensor:
        """uint8 codes [N, K] to bytes [N, row_bytes(K)]; FormatError on a code out of range."""
        rows, columns = codes.shape
        if codes.numel() and int(codes.max()) >= self.code_count:
            raise FormatError(
                f"storage {self.name!r} holds codes below {self.code_count}, got {int(codes.max())}"
            )
        units = ceil(columns / self.unit_codes)
        padded = pad(codes, (0, units * self.unit_codes - columns), value=self.pad_code)
        packed = self.pack_units(padded.reshape(rows * units, self.unit_codes))
        return packed.reshape(rows, units * self.unit_bytes)

    def unpack(self, packed: Tensor, columns: int) -> Tensor:
        """Bytes [N, row_bytes(K)] to uint8 codes [N, K], K = columns."""
        rows = packed.shape[0]
        units = ceil(columns / self.unit_codes)
        if packed.shape[1] != units * self.unit_bytes:
            raise FormatError(
                f"storage {self.name!r}: {columns} codes take {units * self.unit_bytes} bytes a "
                f"row, got {packed.shape[1]}"
            )
        codes = self.unpack_units(packed.reshape(rows * units, self.unit_bytes))
        return codes.reshape(rows, units * self.unit_codes)[:, :columns].contiguous()

    def invalid_words(self, packed: Tensor) -> int:
        """How many units of the bytes [N, B] are no word of this storage."""
        return int((~self.valid_units(packed.reshape(-1, self.unit_bytes))).sum())

    def valid_units(self, units: Tensor) -> Tensor:
        """Which of the units [U, unit_bytes] some codes pack to; all of them unless overridden."""
        return torch.ones(units.shape[0], dtype=torch.bool, device=units.device)

    @abstractmethod
    def pack_units(self, codes: Tensor) -> Tensor:
        """uint8 codes [U, unit_codes] to bytes [U, unit_bytes]."""

    @abstractmethod
    def unpack_units(self, units: Tensor) -> Tensor:
        """Bytes [U, unit_bytes] to uint8 codes [U, unit_codes]."""


def digits_to_number(digits: Tensor, base: int) -> Tensor:
    """Little-endian digits [U, D] to integers [U]: sum of digits[:, i] * base**i."""
    powers = base ** torch.arange(digits.shape[1], dtype=torch.int64, device=digits.device)
    return (digits.to(torch.int64) * powers).sum(dim=1)


def number_to_digits(numbers: Tensor, base: int, count: int) -> Tensor:
    """Integers [U] to little-endian uint8 digits [U, count]."""
    powers = base ** torch.arange(count, dtype=torch.int64, device=numbers.device)
    return ((numbers.to(torch.int64)[:, None] // powers) % base).to(torch.uint8)
