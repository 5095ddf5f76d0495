"""base9: five nonary digits in 16 bits, 3.2 bits a weight.

word = d0 + 9 d1 + 81 d2 + 729 d3 + 6561 d4 with codes d in 0..8, little-endian; words from
59049 on are none. Because 9 = 3 * 3, each digit is a pair of ternary digits.
"""

import torch
from torch import Tensor

from tercet.formats.storage.unit import Storage, digits_to_number, number_to_digits


class Base9(Storage):
    name = "base9"
    unit_codes = 5
    unit_bytes = 2
    code_count = 9
    pad_code = 4

    def pack_units(self, codes: Tensor) -> Tensor:
        words = digits_to_number(codes, 9)
        return torch.stack((words & 0xFF, words >> 8), dim=1).to(torch.uint8)

    def unpack_units(self, units: Tensor) -> Tensor:
        return number_to_digits(_words(units), 9, 5)

    def valid_units(self, units: Tensor) -> Tensor:
        return _words(units) < 9**5


def _words(units: Tensor) -> Tensor:
    wide = units.to(torch.int64)
    return wide[:, 0] + (wide[:, 1] << 8)


BASE9 = Base9()
