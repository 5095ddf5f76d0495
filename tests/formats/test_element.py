"""Elements: levels by hand, nearest level with ties to even, torch's own casts."""

from math import inf, isnan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tercet.errors import FormatError
from tercet.formats import ELEMENTS, element


def nearest_by_brute_force(name: str, values: Tensor) -> list[int]:
    """The code of least distance in float64; of two, the one with the even code or integer."""
    found = ELEMENTS[name]
    codes: list[int] = []
    for value in values.double().tolist():
        value = min(max(value, found.lowest), found.highest)
        ranked: list[tuple[float, int, int]] = []
        for code, level in enumerate(found.levels):
            if isnan(level) or (level == 0 and code != found.zero_code):
                continue
            odd = int(level) % 2 if found.integer else code % 2
            ranked.append((abs(level - value), odd, code))
        codes.append(min(ranked)[2])
    return codes


def every_level_tie_and_neighbour(name: str) -> Tensor:
    levels = torch.tensor(sorted({x for x in ELEMENTS[name].levels if not isnan(x)}))
    middles = (levels[:-1].double() + levels[1:].double()).div(2).float()
    points = torch.cat((levels, middles))
    below = torch.nextafter(points, torch.tensor(-inf))
    above = torch.nextafter(points, torch.tensor(inf))
    return torch.cat((points, below, above, torch.tensor([1e30, -1e30, -0.0, 0.0])))


@pytest.mark.parametrize("name", sorted(ELEMENTS))
def test_every_level_tie_and_neighbour_goes_to_the_nearest(name: str) -> None:
    values = every_level_tie_and_neighbour(name)
    assert ELEMENTS[name].encode(values).tolist() == nearest_by_brute_force(name, values)


@pytest.mark.parametrize("name", sorted(ELEMENTS))
@given(values=st.lists(st.floats(-500, 500, width=32), max_size=20))
def test_any_value_goes_to_the_nearest(name: str, values: list[float]) -> None:
    tensor = torch.tensor(values, dtype=torch.float32)
    assert ELEMENTS[name].encode(tensor).tolist() == nearest_by_brute_force(name, tensor)


@pytest.mark.parametrize("name", sorted(ELEMENTS))
def test_encode_undoes_decode_for_every_number(name: str) -> None:
    found = ELEMENTS[name]
    codes = torch.tensor(
        [
            code
            for code, level in enumerate(found.levels)
            if not isnan(level) and (level != 0 or code == found.zero_code)
        ],
        dtype=torch.uint8,
    )
    assert torch.equal(found.encode(found.decode(codes)), codes)
    assert torch.equal(found.decode(codes).double(), found.decode(codes, torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", sorted(ELEMENTS))
def test_encode_takes_every_float_dtype(name: str, dtype: torch.dtype) -> None:
    values = torch.linspace(-9, 9, 145).to(dtype)
    assert ELEMENTS[name].encode(values).tolist() == nearest_by_brute_force(name, values)


@pytest.mark.parametrize(
    ("name", "dtype", "largest"),
    [("fp8_e4m3", torch.float8_e4m3fn, 448.0), ("fp8_e5m2", torch.float8_e5m2, 57344.0)],
)
def test_fp8_is_the_cast_of_torch(name: str, dtype: torch.dtype, largest: float) -> None:
    generator = torch.Generator().manual_seed(0)
    spread = torch.exp2(torch.empty(20000).uniform_(-20, 16, generator=generator))
    signs = torch.randint(2, (20000,), generator=generator) * 2.0 - 1
    values = torch.cat((spread * signs, every_level_tie_and_neighbour(name)))
    values = values[values.abs() <= largest]
    cast = values.to(dtype)
    codes = ELEMENTS[name].encode(values)
    # the cast keeps the sign of zero, a code does not
    assert torch.equal(codes, torch.where(cast.float() == 0, 0, cast.view(torch.uint8)))
    assert torch.equal(ELEMENTS[name].decode(codes), cast.float())


@pytest.mark.parametrize(("name", "largest"), [("fp8_e4m3", 448.0), ("fp8_e5m2", 57344.0)])
def test_fp8_saturates(name: str, largest: float) -> None:
    values = torch.tensor([largest * 1.01, 1e9, inf, -largest * 1.5, -inf])
    decoded = ELEMENTS[name].decode(ELEMENTS[name].encode(values))
    assert decoded.tolist() == [largest, largest, largest, -largest, -largest]


def test_fp4_levels_ties_and_saturation() -> None:
    fp4 = element("fp4_e2m1")
    assert fp4.levels[:8] == (0, 0.5, 1, 1.5, 2, 3, 4, 6)
    assert fp4.levels[8:] == (0, -0.5, -1, -1.5, -2, -3, -4, -6)
    values = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0, -0.25, -0.75, -2.5, -9.0])
    expected = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, 0.0, -1.0, -2.0, -6.0]
    assert fp4.decode(fp4.encode(values)).tolist() == expected


@pytest.mark.parametrize(
    ("name", "lowest", "highest", "bits", "zero_code"),
    [
        ("ternary", -1, 1, 2, 1),
        ("nonary", -4, 4, 4, 4),
        ("int2", -2, 1, 2, 2),
        ("int3", -4, 3, 3, 4),
        ("int4", -8, 7, 4, 8),
        ("int5", -16, 15, 5, 16),
        ("int6", -32, 31, 6, 32),
        ("int8", -128, 127, 8, 128),
        ("fp8_e4m3", -448, 448, 8, 0),
        ("fp8_e5m2", -57344, 57344, 8, 0),
        ("fp4_e2m1", -6, 6, 4, 0),
    ],
)
def test_ranges_by_hand(
    name: str, lowest: float, highest: float, bits: int, zero_code: int
) -> None:
    found = element(name)
    assert (found.lowest, found.highest) == (lowest, highest)
    assert (found.bits, found.zero_code) == (bits, zero_code)


def test_patterns_that_are_no_number() -> None:
    broken = {
        name: [code for code, level in enumerate(found.levels) if isnan(level)]
        for name, found in ELEMENTS.items()
    }
    assert broken.pop("fp8_e4m3") == [0x7F, 0xFF]
    assert broken.pop("fp8_e5m2") == [0x7C, 0x7D, 0x7E, 0x7F, 0xFC, 0xFD, 0xFE, 0xFF]
    assert set(map(len, broken.values())) == {0}


def test_ternary_nonary_and_fp4_are_exact_in_8_bit_types() -> None:
    for name in ("ternary", "nonary", "fp4_e2m1"):
        levels = ELEMENTS[name].table()
        assert torch.equal(levels.to(torch.float8_e4m3fn).float(), levels)
    for name in ("ternary", "nonary"):
        levels = ELEMENTS[name].table()
        assert torch.equal(levels.to(torch.int8).float(), levels)
        assert set(levels.tolist()) <= set(ELEMENTS["fp4_e2m1"].levels)


def test_an_unknown_element_offers_the_nearest() -> None:
    with pytest.raises(FormatError, match=r"unknown element 'trinary': did you mean 'ternary'"):
        element("trinary")
