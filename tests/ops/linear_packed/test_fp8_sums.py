"""What Hopper's tensor cores keep of sums of fp8 products, as measured on an H200, what sums that
are begun anew every 64 columns lose, and the bound of it that is derived in fp8_sums."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tercet.ops.linear_packed.hopper_prefill.fp8_sums import COLUMNS, TOLERANCE, lost
from tercet.ops.linear_packed.op import OP
from tercet.packed_weight.call import TOLERANCES

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


def test_what_growing_sums_lose_is_more_than_float32_sums_are_allowed_beside_the_rounding() -> None:
    """Why the product in fp8 has a tolerance of its own, and others do not get it."""
    assert off(*numbers("positive", 2048), every=64) > ALLOWED - ROUNDING
    assert off(*numbers("positive", 2048), every=32) > ALLOWED - ROUNDING


def test_growing_sums_of_many_columns_are_off_by_as_much_as_of_few() -> None:
    few, many = (off(*numbers("positive", k), every=64) for k in (2048, 4096))
    assert many < few


def spread_out(seed: int) -> tuple[Tensor, Tensor]:
    """x and w [ROWS, 128] of all exponents from 2^-6 on, most of them far below a row's largest."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, ROWS, 128)
    exponents = torch.randint(-6, 3, shape, generator=generator).double()
    large = torch.rand(shape, generator=generator) < 0.02
    exponents = torch.where(large, torch.randint(3, 8, shape, generator=generator), exponents)
    fractions = 1 + torch.randint(0, 8, shape, generator=generator) / 8
    signs = torch.where(torch.rand(shape, generator=generator) < 0.1, -1.0, 1.0)
    x, w = signs.double() * fractions * torch.exp2(exponents)
    return x, w


def one_beside_the_least_that_is_lost(columns: int) -> tuple[Tensor, Tensor]:
    """256 * 256 = 2^16, and otherwise 2.25 * 3.5 = 7.875, just below 2^(16 - 13)."""
    x, w = (torch.full((1, columns), value, dtype=torch.float64) for value in (2.25, 3.5))
    x[0, 0] = w[0, 0] = 256.0
    return x, w


@pytest.mark.parametrize("columns", [32, 64, 128])
def test_no_sum_loses_more_than_is_derived_and_the_worst_nearly_as_much(columns: int) -> None:
    for seed in range(20):
        assert off(*spread_out(seed), every=columns) < lost(columns)
    assert 0.9 < off(*one_beside_the_least_that_is_lost(columns), every=columns) / lost(columns) < 1


def test_a_factor_below_the_smallest_normal_number_counts_as_that() -> None:
    """256 * 2^-9 makes others lose as much as 256 * 2^-6 would: more than the bound of itself."""
    x = torch.full((1, COLUMNS), 2.0**-9 * 7, dtype=torch.float64)
    w = torch.full((1, COLUMNS), 2.0**-5, dtype=torch.float64)
    x[0, 0], w[0, 0] = 256.0, 2.0**-9
    wrong = ((x * w).sum() - summed(x, w, every=COLUMNS).double().sum()).item()
    counted = x.clamp_min(2**-6) * w.clamp_min(2**-6)
    assert lost(COLUMNS) * (x * w).sum().item() < wrong < lost(COLUMNS) * counted.sum().item()


def allowed(x: Tensor, w: Tensor) -> Tensor:
    """What a check lets the product in fp8 be off by, as a part of the magnitude."""
    assert TOLERANCE.inner is not None
    return TOLERANCE.relative * (x * w).sum(-1).abs() / (x * w).abs().sum(-1) + TOLERANCE.inner


def test_the_check_finds_sums_of_all_columns_of_positive_numbers() -> None:
    """What torch's fast sums are: off by 4 %. The op's cases have such numbers, 2068 columns."""
    for k in (2048, 4096):
        x, w = numbers("positive", k)
        wrong = (summed(x, w, every=k).double() - (x * w).sum(-1)).abs() / (x * w).sum(-1)
        assert (wrong > 2 * allowed(x, w)).all()
        assert off(x, w, every=COLUMNS) + ROUNDING < allowed(x, w).min()
    assert any(case.name == "fp8_e4m3-prefill-fp8-positive" for case in OP.cases)


def test_only_the_product_in_fp8_is_held_to_it_and_no_candidate() -> None:
    for one in OP.implementations:
        held = OP.held_to(one).tolerance(torch.bfloat16)
        assert (held == TOLERANCE) == (one.name == "hopper_prefill_fp8")
        for dtype in (torch.float16, torch.float32):
            assert OP.held_to(one).tolerance(dtype) == OP.tolerance(dtype)
    candidate = replace(OP.implementation("hopper_prefill_fp8"), module="/tmp/candidate.py")
    assert OP.held_to(candidate).tolerance(torch.bfloat16) == OP.tolerance(torch.bfloat16)


def test_gradients_are_held_to_what_they_were() -> None:
    assert TOLERANCE.gradient_relative == OP.tolerance(torch.bfloat16).gradient_relative
