"""What Hopper's tensor cores keep of sums of fp8 products, as measured on an H200, and what sums
that are begun anew every 64 columns lose beside the rounding to bfloat16."""

import pytest
import torch
from torch import Tensor

from tercet.kernel.packed_call import TOLERANCES

FRACTION = 13  # bits behind the point of the largest number added
STEP = 32  # columns of one product
ALLOWED = {tolerance.dtype: tolerance.relative for tolerance in TOLERANCES}[torch.bfloat16]
ROUNDING = 2**-8  # to bfloat16, relative, at most
ROWS = 64


def exponent(x: Tensor, least: int) -> Tensor:
    """Of float64 x; of zeros as small as can be, and of subnormals `least`."""
    found = torch.frexp(x)[1] - 1
    return torch.where(x == 0, -1000, found.clamp_min(least))


def cut(x: Tensor, largest: Tensor) -> Tensor:
    """x without what lies FRACTION bits below 2^largest, towards zero."""
    unit = torch.exp2((largest - FRACTION).double())
    return (x / unit).trunc() * unit


def product(sums: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """sums [M] + the sum of x w, [M, 32], as one wgmma of e4m3 makes it, on an H200 to the bit.

    A product's exponent is that of its factors together.
    """
    factors = exponent(x, -6) + exponent(w, -6)
    largest = torch.maximum(factors.amax(-1), exponent(sums, -140)).clamp_min(-140)
    whole = cut(x * w, largest[:, None]).sum(-1) + cut(sums, largest)
    return cut(whole, exponent(whole, -140))


def summed(x: Tensor, w: Tensor, every: int) -> Tensor:
    """Sums over K of x w, [M, K], begun anew every so many columns and added in float32."""
    total = torch.zeros(len(x))
    for first in range(0, x.shape[1], every):
        sums = torch.zeros(len(x), dtype=torch.float64)
        for at in range(first, min(first + every, x.shape[1]), STEP):
            sums = product(sums, x[:, at : at + STEP], w[:, at : at + STEP])
        total += sums.float()
    return total


def codes(x: Tensor) -> Tensor:
    """Quantized to e4m3 by row, as float64."""
    return (x / x.abs().amax(-1, keepdim=True) * 448).to(torch.float8_e4m3fn).double()


def numbers(kind: str, k: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(k)
    x, w = torch.randn(2, ROWS, k, generator=generator).double()
    match kind:
        case "positive":
            x, w = x.abs(), w.abs()
        case "heavy":
            x, w = (2 * x).exp(), w.exp()
        case "one large":
            x, w = x.abs(), w.abs()
            x[:, 5] = 1000.0
        case "subnormal":
            return codes(x.abs()), (w.abs() * 2**-8).to(torch.float8_e4m3fn).double()
        case _:
            pass
    return codes(x), codes(w)


def off(x: Tensor, w: Tensor, every: int) -> float:
    """The largest error of a sum, relative to its magnitude."""
    wrong = (summed(x, w, every).double() - (x * w).sum(-1)).abs()
    return (wrong / (x * w).abs().sum(-1)).max().item()


def test_a_product_13_bits_below_the_largest_is_kept_and_one_of_14_is_lost() -> None:
    """Of 28 products beside a 1 and three of 2^-8 or 2^-9; 1.0151367 and 1.0058594 on an H200."""
    x = torch.full((1, STEP), 2.0**-5, dtype=torch.float64)
    x[:, ::9] = 1.0
    for shift, kept in ((8, 1 + 3 * 2**-8 + 28 * 2**-13), (9, 1 + 3 * 2**-9)):
        w = torch.full((1, STEP), 2.0**-shift, dtype=torch.float64)
        w[:, 0] = 1.0
        assert product(torch.zeros(1, dtype=torch.float64), x, w).item() == kept


@pytest.mark.parametrize(
    ("kind", "part"),
    [("normal", 1 / 64), ("positive", 1 / 16), ("subnormal", 1 / 16), ("heavy", 1 / 2)],
)
@pytest.mark.parametrize("k", [2048, 4096])
def test_sums_of_64_columns_lose_a_part_of_the_rounding(kind: str, part: float, k: int) -> None:
    assert off(*numbers(kind, k), every=64) < part * ROUNDING


def test_sums_of_128_columns_lose_more_than_half_of_it_to_one_large_number() -> None:
    x, w = numbers("one large", 2048)
    assert off(x, w, every=64) < ROUNDING / 2 < off(x, w, every=128)


def test_what_growing_sums_lose_is_more_than_the_tolerance_has_beside_the_rounding() -> None:
    """Why nobody gets them who did not ask, with TERCET_FP8_SUMS."""
    assert off(*numbers("positive", 2048), every=64) > ALLOWED - ROUNDING
    assert off(*numbers("positive", 2048), every=32) > ALLOWED - ROUNDING


def test_growing_sums_of_many_columns_are_off_by_as_much_as_of_few() -> None:
    few, many = (off(*numbers("positive", k), every=64) for k in (2048, 4096))
    assert many < few
