"""What every storage has in common: whole units of codes become whole units of bytes."""

from abc import ABC, abstractmethod
from functools import cached_property
from math import ceil

import torch
from torch import Tensor
from torch.nn.functional import pad

from tercet.errors import FormatError
from tercet.formats.chunks import chunk_rows
from tercet.formats.dispatch_mode import in_dispatch_mode

_CODES_AT_ONCE = 1 << 19
LONGEST_WORD_BITS = 16
"""Words of so many bits are few enough for a table of all."""


class Storage(ABC):
    """A bijection between `unit_codes` codes and `unit_bytes` bytes, applied along each row.

    Attributes:
        name: the storage's name in schemes and files.
        unit_codes: codes in one unit.
        unit_bytes: bytes in one unit.
        code_count: codes are in [0, code_count).
        words_per_unit: independent words of equal length that a unit is a run of, the first in the
            lowest bits.
        pad_code: the code that fills a row up to a whole number of units.
    """

    name: str
    unit_codes: int
    unit_bytes: int
    code_count: int
    pad_code: int = 0
    words_per_unit: int = 1

    def __eq__(self, other: object) -> bool:
        """Storages of one name are one: a copy, or one that was pickled, too."""
        return isinstance(other, Storage) and self.name == other.name

    def __hash__(self) -> int:
        """As they are equal."""
        return hash(self.name)

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
        codes = torch.empty(rows, columns, dtype=torch.uint8, device=packed.device)
        for part in _row_slices(rows, units * self.unit_codes):
            words = self._units(packed[part].reshape(-1, self.unit_bytes))
            codes[part] = words.reshape(len(codes[part]), units * self.unit_codes)[:, :columns]
        return codes

    def invalid_words(self, packed: Tensor) -> int:
        """How many units of the bytes [N, B] are no word of this storage."""
        units = packed.shape[1] // self.unit_bytes
        return sum(
            int((~self.valid_units(packed[part].reshape(-1, self.unit_bytes))).count_nonzero())
            for part in _row_slices(packed.shape[0], units * self.unit_codes)
        )

    def _units(self, units: Tensor) -> Tensor:
        """unpack_units, by a table of all words where they have at most 16 bits."""
        if self.unit_bytes > 2:
            return self.unpack_units(units)
        numbers = units[:, 0].to(torch.int32)
        if self.unit_bytes == 2:
            numbers |= units[:, 1].to(torch.int32) << 8
        # a tensor made inside a mode (torch's fakes) must not outlive it
        table = self._make_table() if in_dispatch_mode() else self._table
        return table.to(units.device).index_select(0, numbers)

    @cached_property
    def _table(self) -> Tensor:
        return self._make_table()

    def _make_table(self) -> Tensor:
        words = torch.arange(256**self.unit_bytes)
        return self.unpack_units(number_to_digits(words, 256, self.unit_bytes))

    def valid_units(self, units: Tensor) -> Tensor:
        """Which of the units [U, unit_bytes] some codes pack to; all of them unless overridden."""
        return torch.ones(units.shape[0], dtype=torch.bool, device=units.device)

    @abstractmethod
    def pack_units(self, codes: Tensor) -> Tensor:
        """uint8 codes [U, unit_codes] to bytes [U, unit_bytes]."""

    @abstractmethod
    def unpack_units(self, units: Tensor) -> Tensor:
        """Bytes [U, unit_bytes] to uint8 codes [U, unit_codes]."""


def _row_slices(rows: int, row_codes: int) -> list[slice]:
    """Rows cut so that a chunk has about _CODES_AT_ONCE codes, to bound temporary memory."""
    return chunk_rows(rows, max(_CODES_AT_ONCE // max(row_codes, 1), 1))


def digits_to_number(digits: Tensor, base: int) -> Tensor:
    """Little-endian digits [U, D] to integers [U]: sum of digits[:, i] * base**i."""
    # Horner's rule: all digits as int64 at once took three times as long
    numbers = digits[:, -1].to(torch.int64, copy=True)
    for place in reversed(range(digits.shape[1] - 1)):
        numbers = numbers.mul_(base).add_(digits[:, place])
    return numbers


def number_to_digits(numbers: Tensor, base: int, count: int) -> Tensor:
    """Integers [U] to little-endian uint8 digits [U, count]."""
    powers = base ** torch.arange(count, dtype=torch.int64, device=numbers.device)
    return ((numbers.to(torch.int64)[:, None] // powers) % base).to(torch.uint8)
