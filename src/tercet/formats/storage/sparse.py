"""sparse_2_4 and sparse_3_4: sparse ternary, four weights in 5 bits, 1.25 bits a weight.

Of every four weights exactly two (2:4) or exactly three (3:4) are not zero. The patterns of four
codes are numbered in ascending order of t0 + 3 t1 + 9 t2 + 27 t3: 24 patterns for 2:4, followed by
the all-zero one, and 32 for 3:4. Eight numbers of 5 bits fill five bytes, first in the lowest bits.
"""

from itertools import product

import torch
from torch import Tensor

from tercet.errors import FormatError
from tercet.formats.storage.unit import Storage, digits_to_number, number_to_digits

_ZERO = 1


class SparseTernary(Storage):
    unit_codes = 32
    unit_bytes = 5
    code_count = 3
    words_per_unit = 4

    def __init__(self, nonzero: int, with_empty: bool) -> None:
        self.name = f"sparse_{nonzero}_4"
        self.nonzero = nonzero
        patterns = [
            pattern
            for pattern in product(range(3), repeat=4)
            if sum(code != _ZERO for code in pattern) == nonzero
        ]
        patterns.sort(key=lambda pattern: sum(code * 3**i for i, code in enumerate(pattern)))
        self.patterns = torch.tensor(patterns + [(_ZERO,) * 4] * with_empty, dtype=torch.uint8)
        self.number_of = torch.full((81,), -1, dtype=torch.int64)
        self.number_of[digits_to_number(self.patterns, 3)] = torch.arange(len(self.patterns))

    def pack(self, codes: Tensor) -> Tensor:
        """As Storage.pack; a row is filled up to whole units with the last pattern."""
        rows, columns = codes.shape
        if columns % 4:
            raise FormatError(f"storage {self.name!r} needs K divisible by 4, got K = {columns}")
        missing = -columns % self.unit_codes // 4
        filler = self.patterns[-1].to(codes.device).repeat(rows, missing)
        return super().pack(torch.cat((codes, filler), dim=1))

    def pack_units(self, codes: Tensor) -> Tensor:
        quads = codes.reshape(-1, 4)
        numbers = self.number_of.to(codes.device)[digits_to_number(quads, 3)]
        wrong = numbers < 0
        if bool(wrong.any()):
            first = int(wrong.nonzero()[0])
            raise FormatError(
                f"storage {self.name!r} needs exactly {self.nonzero} non-zero weights in each "
                f"four; {int(wrong.sum())} of {len(quads)} have another number, the first is codes "
                f"{quads[first].tolist()} (1 is zero): prune to {self.nonzero}:4 first"
            )
        return number_to_digits(digits_to_number(numbers.reshape(-1, 8), 32), 256, 5)

    def unpack_units(self, units: Tensor) -> Tensor:
        numbers = number_to_digits(digits_to_number(units, 256), 32, 8).long()
        return self.patterns.to(units.device)[numbers].reshape(-1, self.unit_codes)

    def valid_units(self, units: Tensor) -> Tensor:
        numbers = number_to_digits(digits_to_number(units, 256), 32, 8)
        return (numbers < len(self.patterns)).all(dim=1)


SPARSE_2_4 = SparseTernary(2, with_empty=True)
SPARSE_3_4 = SparseTernary(3, with_empty=False)
