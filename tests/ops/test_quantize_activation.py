"""quantize_activation: golden values, ties, rows that have no scale, agreement with the formats."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.formats import encode, fit, parse_scheme
from tercet.kernel.select import load, using
from tercet.ops.quantize_activation import quantize_activation
from tercet.ops.quantize_activation.op import OP

every_implementation = pytest.mark.parametrize("name", ["triton", "torch"])
every_element = pytest.mark.parametrize("element", ["int8", "fp8_e4m3"])
interpreted = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of NaN and inf
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LEAST = 2.0**-149


def quantized(x: Tensor, element: str, name: str) -> tuple[Tensor, Tensor, Tensor]:
    with using(OP, load(OP, name)):
        codes, scale, row_sum = quantize_activation(x.to(DEVICE), element)
    return codes.cpu(), scale.cpu(), row_sum.cpu()


def rows_of_every_size(seed: int, columns: int = 300) -> Tensor:
    """Rows whose largest element lies anywhere in float32, subnormals included."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(277, columns, generator=generator, dtype=torch.float64)
    return (x * torch.exp2(torch.arange(-149.0, 128.0).double())[:, None]).float().nan_to_num()


def rows_of_ties(limit: float, halves: Tensor) -> Tensor:
    """Rows of elements at (half code) * scale and one unit in the last place to either side."""
    generator = torch.Generator().manual_seed(0)
    absmax = torch.exp2(torch.rand(200, 1, generator=generator) * 40 - 20) * 1.37
    middle = (absmax / limit) * halves
    inf = torch.tensor(torch.inf)
    return torch.cat((absmax, middle, middle.nextafter(inf), middle.nextafter(-inf)), 1)


@every_implementation
def test_golden_int8(name: str) -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, -0.5, -2.5, 63.5, -127.0], [0.0, -0.0, 0, 0, 0, 0, 0]])
    codes, scale, row_sum = quantized(x, "int8", name)
    assert codes.tolist() == [[127, 0, 2, 0, -2, 64, -127], [0] * 7]
    assert scale.tolist() == [1.0, 0.0]
    assert row_sum.tolist() == [64, 0]
    assert (codes.dtype, scale.dtype, row_sum.dtype) == (torch.int8, torch.float32, torch.int32)


@every_implementation
def test_golden_fp8(name: str) -> None:
    tie = 2.0**-10
    x = torch.tensor([[448.0, 17.0, 19.0, tie, -tie, 3 * tie, -0.0, -448.0]])
    codes, scale, row_sum = quantized(x, "fp8_e4m3", name)
    assert codes.float().tolist() == [[448.0, 16.0, 20.0, 0.0, 0.0, 4 * tie, 0.0, -448.0]]
    assert codes.view(torch.uint8)[0, [3, 4, 6]].tolist() == [0, 0, 0], "zero is +0"
    assert scale.tolist() == [1.0]
    assert row_sum.tolist() == [36.0 + 4 * tie]


@every_implementation
def test_rounds_the_ieee_quotient(name: str) -> None:
    """The code is that of the quotient as float32 rounds it, worked out in rational numbers."""
    x = rows_of_ties(127.0, torch.arange(0, 127) + 0.5)[:40]
    codes, scale, _ = quantized(x, "int8", name)
    for row in range(0, 40, 7):
        for column in range(0, x.shape[1], 5):
            exact = Fraction(float(x[row, column])) / Fraction(float(scale[row]))
            assert int(codes[row, column]) == round(Fraction(nearest_float32(exact)))


def nearest_float32(exact: Fraction) -> float:
    """A positive rational number as float32, ties to even."""
    exponent = 0
    while exact * Fraction(2) ** exponent < 2**23:
        exponent += 1
    while exact * Fraction(2) ** exponent >= 2**24:
        exponent -= 1
    return float(Fraction(round(exact * Fraction(2) ** exponent)) / Fraction(2) ** exponent)


@every_element
@interpreted
def test_implementations_agree_to_the_bit(element: str) -> None:
    halves = torch.arange(0, 127) + 0.5
    values = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = rows_of_ties(127.0, halves)
    if element == "fp8_e4m3":
        ties = rows_of_ties(448.0, (values[1:] + values[:-1]) / 2)
    for x in (rows_of_every_size(1), ties, -ties, ties.bfloat16(), ties.half()):
        found, wanted = quantized(x, element, "triton"), quantized(x, element, "torch")
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@every_implementation
@every_element
@interpreted
def test_rows_that_are_not_finite(name: str, element: str) -> None:
    x = torch.ones(3, 5)
    x[0, 1], x[1, 4] = torch.inf, torch.nan
    codes, scale, row_sum = quantized(x, element, name)
    assert scale[0] == torch.inf
    assert scale[1].isnan()
    assert codes.view(torch.uint8)[:2].count_nonzero() == 0
    assert row_sum[:2].tolist() == [0, 0]
    assert (codes[:2].float() * scale[:2, None]).isnan().all(), "dequantized, the row is NaN"
    assert codes[2].float().unique().numel() == 1, "rows do not disturb each other"
    assert row_sum[2] == 5 * codes[2, 0].float()


@every_implementation
def test_rows_that_are_nearly_zero(name: str) -> None:
    x = torch.tensor([[2 * LEAST, LEAST], [190 * LEAST, -189 * LEAST], [0.0, 0.0]])
    codes, scale, row_sum = quantized(x, "int8", name)
    assert scale.tolist() == [0.0, LEAST, 0.0], "the first underflows"
    assert codes.tolist() == [[0, 0], [127, -127], [0, 0]], "the second is clamped"
    assert row_sum.tolist() == [0, 0, 0]
    codes, scale, _ = quantized(x, "fp8_e4m3", name)
    assert scale.tolist() == [0.0, 0.0, 0.0]
    assert codes.view(torch.uint8).count_nonzero() == 0


@every_implementation
@pytest.mark.parametrize("columns", [9000, 40000])
def test_row_sum_is_exact(name: str, columns: int) -> None:
    """All codes the largest, and one of the smallest: a float32 sum would lose it on the way."""
    x = torch.full((1, columns), 448.0)
    x[0, 0], x[0, 1] = 2.0**-9, -448.0
    codes, _, row_sum = quantized(x, "fp8_e4m3", name)
    exact = 448 * (columns - 3) + 2.0**-9
    assert codes.float().double().sum() == exact
    assert row_sum.item() == torch.tensor(exact, dtype=torch.float64).float().item()
    codes, _, row_sum = quantized(x, "int8", name)
    assert row_sum.item() == codes.long().sum() == 127 * (columns - 3)


@every_implementation
def test_fp8_row_sum_rounds_once(name: str) -> None:
    x = torch.full((1, 9000), 2.0**-9)
    x[0, :100] = 448.0
    _, _, row_sum = quantized(x, "fp8_e4m3", name)
    assert row_sum.item() == torch.tensor(44800 + 8900 * 2.0**-9).item()


@every_implementation
@pytest.mark.parametrize(
    ("element", "scheme"),
    [("int8", "int8-channel-float32"), ("fp8_e4m3", "fp8_e4m3-channel-float32")],
)
def test_agrees_with_the_formats(name: str, element: str, scheme: str) -> None:
    """Where scales are normal numbers: the element int8 has a level -128 that is never used here.

    With a subnormal scale the formats clamp at -128, activations at -127.
    """
    limit, halves = (127.0, 0.5) if element == "int8" else (448.0, 16.0)
    ties = rows_of_ties(limit, torch.arange(1, 14, 2) * halves)
    everywhere = rows_of_every_size(3, ties.shape[1])[30:]
    x = torch.cat((everywhere, ties, -ties))
    kind = parse_scheme(scheme)
    packed = encode(x, kind, *fit(x, kind, "absmax"))
    codes, scale, _ = quantized(x, element, name)
    assert torch.equal(scale, packed.scale.reshape(-1))
    assert torch.equal(codes.float(), kind.element.decode(packed.unpack()))


def test_leading_axes() -> None:
    x = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
    codes, scale, row_sum = quantize_activation(x.to(DEVICE))
    assert (codes.shape, scale.shape, row_sum.shape) == ((2, 3, 16), (2, 3), (2, 3))
    flat = quantize_activation(x.to(DEVICE).reshape(6, 16))
    assert torch.equal(codes.reshape(6, 16), flat[0])
    assert torch.equal(scale.reshape(6), flat[1])


def test_bad_input() -> None:
    with pytest.raises(UnsupportedError, match=r"x is torch.int32 \[2, 3\]"):
        quantize_activation(torch.ones(2, 3, dtype=torch.int32))
    with pytest.raises(UnsupportedError, match=r"of \[..., K\]"):
        quantize_activation(torch.ones(()))
    with pytest.raises(UnsupportedError, match=r"'int9': did you mean 'int8'.*fp8_e4m3, int8"):
        quantize_activation(torch.ones(2, 3), "int9")
