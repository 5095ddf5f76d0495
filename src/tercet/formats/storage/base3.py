"""base3: five ternary digits in a byte, 1.6 bits a weight.

byte = t0 + 3 t1 + 9 t2 + 27 t3 + 81 t4 with codes t in {0, 1, 2}; bytes 243 to 255 are no word.
"""

import torch
from torch import Tensor

from tercet.formats.storage.unit import Storage, digits_to_number, number_to_digits


class Base3(Storage):
    name = "base3"
    unit_codes = 5
    unit_bytes = 1
    code_count = 3
    pad_code = 1

    def pack_units(self, codes: Tensor) -> Tensor:
        return digits_to_number(codes, 3).to(torch.uint8)[:, None]

    def unpack_units(self, units: Tensor) -> Tensor:
        return number_to_digits(units[:, 0], 3, 5)

    def valid_units(self, units: Tensor) -> Tensor:
        return units[:, 0] < 3**5


BASE3 = Base3()
