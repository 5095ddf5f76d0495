"""Elements: the finite sets of values that one stored weight can take.

A code is an unsigned integer in [0, len(levels)); `levels[code]` is its value. Integer sets are
ordered by value (code = value - lowest); floating-point sets are ordered by bit pattern, so a
code is the byte (or nibble) that tensor cores read.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from math import isnan

import torch
from torch import Tensor

from tercet.errors import FormatError, unknown_name


@dataclass(frozen=True, kw_only=True)
class Element:
    """A finite set of values.

    Attributes:
        name: the element's name in schemes and files.
        levels: the value of each code; NaN marks a bit pattern that is not a number.
        integer: True when the levels are consecutive integers.
        storage: the storage that a scheme takes which names none: the densest that holds it.
    """

    name: str
    levels: tuple[float, ...]
    integer: bool
    storage: str

    @cached_property
    def lowest(self) -> float:
        """The smallest finite value."""
        return min(level for level in self.levels if not isnan(level))

    @cached_property
    def highest(self) -> float:
        """The largest finite value."""
        return max(level for level in self.levels if not isnan(level))

    @cached_property
    def zero_code(self) -> int:
        """The code of the value +0."""
        return self.levels.index(0.0)

    @cached_property
    def bits(self) -> int:
        """Bits of one code when each is stored alone."""
        return (len(self.levels) - 1).bit_length()

    def table(
        self, dtype: torch.dtype = torch.float32, device: torch.device | None = None
    ) -> Tensor:
        """levels as a tensor [codes]."""
        return torch.tensor(self.levels, dtype=dtype, device=device)

    def encode(self, values: Tensor) -> Tensor:
        """The code of the nearest level, ties to even, saturating at both ends.

        Args:
            values: any shape, floating point, finite.

        Returns:
            uint8 codes of the same shape.
        """
        if self.integer:
            return (values.round().clamp_(self.lowest, self.highest) - self.lowest).to(torch.uint8)
        codes, middles, tie_goes_up = (t.to(values.device) for t in _rounding_tables(self))
        flat = values.to(torch.float64).reshape(-1)
        index = torch.bucketize(flat, middles)
        at_middle = index.clamp(max=len(middles) - 1)
        tie = (index < len(middles)) & (flat == middles[at_middle]) & tie_goes_up[at_middle]
        return codes[index + tie.to(index.dtype)].reshape(values.shape)

    def decode(self, codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The value of each code; exact in float32 for every element."""
        # a third of the time of table[codes] on a CPU, which takes int64 alone
        chosen = self.table(dtype, codes.device).index_select(0, codes.flatten().int())
        return chosen.reshape(codes.shape)


@cache
def _rounding_tables(element: Element) -> tuple[Tensor, Tensor, Tensor]:
    """Codes in order of value, the midpoints between neighbours, and which ties round up.

    A tie goes to the neighbour with the even bit pattern, as IEEE 754 and torch's own casts do.
    Negative zero is left out, so zero has one code.
    """
    finite = [
        (level, code)
        for code, level in enumerate(element.levels)
        if not isnan(level) and not (level == 0.0 and code != element.zero_code)
    ]
    finite.sort()
    values = torch.tensor([level for level, _ in finite], dtype=torch.float64)
    codes = torch.tensor([code for _, code in finite], dtype=torch.uint8)
    middles = (values[:-1] + values[1:]) / 2
    return codes, middles, codes[:-1] % 2 == 1


def _integers(name: str, lowest: int, highest: int, storage: str) -> Element:
    levels = tuple(float(value) for value in range(lowest, highest + 1))
    return Element(name=name, levels=levels, integer=True, storage=storage)


def _floats(name: str, dtype: torch.dtype) -> Element:
    patterns = torch.arange(256, dtype=torch.uint8).view(dtype).to(torch.float64)
    finite = torch.where(patterns.isinf(), torch.nan, patterns)
    levels = tuple(float(pattern) for pattern in finite)
    return Element(name=name, levels=levels, integer=False, storage="bits8")


_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

ELEMENTS: dict[str, Element] = {
    element.name: element
    for element in (
        _integers("ternary", -1, 1, "base3"),
        _integers("nonary", -4, 4, "base9"),
        _integers("int2", -2, 1, "bits2"),
        _integers("int3", -4, 3, "bits3"),
        _integers("int4", -8, 7, "bits4"),
        _integers("int5", -16, 15, "bits5"),
        _integers("int6", -32, 31, "bits6"),
        _integers("int8", -128, 127, "bits8"),
        _floats("fp8_e4m3", torch.float8_e4m3fn),
        _floats("fp8_e5m2", torch.float8_e5m2),
        Element(
            name="fp4_e2m1",
            levels=_E2M1 + tuple(-level for level in _E2M1),
            integer=False,
            storage="bits4",
        ),
    )
}


def element(name: str) -> Element:
    """The element of that name; an unknown name raises FormatError with the nearest ones."""
    if name not in ELEMENTS:
        raise FormatError(unknown_name("element", name, ELEMENTS))
    return ELEMENTS[name]
