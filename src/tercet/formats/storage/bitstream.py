"""bits2 to bits6, bits8: codes of fixed width, first code in the lowest bits.

A unit is the shortest run of codes that fills whole bytes: four 2-bit codes in one byte, eight
3-bit codes in three, two nibbles in one, eight 5-bit codes in five, four 6-bit codes in three, one
byte in one.
"""

from torch import Tensor

from tercet.formats.storage.unit import (
    LONGEST_WORD_BITS,
    Storage,
    digits_to_number,
    number_to_digits,
)


class Bitstream(Storage):
    def __init__(self, width: int, unit_codes: int) -> None:
        self.name = f"bits{width}"
        self.width = width
        self.unit_codes = unit_codes
        self.unit_bytes = unit_codes * width // 8
        self.code_count = 1 << width
        # a part of a long unit is a word by itself: four 3-bit codes in 12 bits
        self.words_per_unit = next(
            count for count in (1, 2, 4) if unit_codes * width // count <= LONGEST_WORD_BITS
        )

    def pack_units(self, codes: Tensor) -> Tensor:
        return number_to_digits(digits_to_number(codes, self.code_count), 256, self.unit_bytes)

    def unpack_units(self, units: Tensor) -> Tensor:
        return number_to_digits(digits_to_number(units, 256), self.code_count, self.unit_codes)


BITS2 = Bitstream(2, 4)
BITS3 = Bitstream(3, 8)
BITS4 = Bitstream(4, 2)
BITS5 = Bitstream(5, 8)
BITS6 = Bitstream(6, 4)
BITS8 = Bitstream(8, 1)
