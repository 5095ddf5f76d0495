"""One row of x on AVX2, VNNI and Arm: as integers of 24 bits, in float32's bound whatever x is."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.formats import PackedTensor, encode, fit, parse_scheme
from tercet.ops.linear_packed.reference import magnitude
from tercet.packed_weight import prepare
from tercet.packed_weight.cpu.product import codes_product_for, isas, product_for

INTEGERS = [isa for isa in ("avx2", "avx512vnni", "neon", "dotprod") if isa in isas()]
"""The instruction sets whose products are these."""

SCHEMES = [
    *("ternary", "nonary-g32", "int2-g64", "int3-g20", "int4-g32", "int4-g128-asym"),
    *("int5-g64", "int5-g20-asym", "int5-channel", "int6-g64"),
]
ROWS, COLUMNS = 35, 300
Product = Callable[[Tensor, PackedTensor], Tensor]
BOUND = 2e-6
"""Of float32 results, relative to sum |w x|: the tolerance of linear_packed."""


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def packed(name: str, values: Tensor) -> PackedTensor:
    scheme = parse_scheme(name)
    return encode(values, scheme, *fit(values, scheme, "absmax"))


def product_on(isa: str, x: Tensor, stored: PackedTensor) -> Tensor:
    weight = prepare(stored)
    held = (weight.codes, weight.scale, weight.zero, None, weight.scheme)
    return product_for(isa)(x, *held, *weight.shape)


@pytest.fixture(params=INTEGERS)
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def product(isa: str) -> Product:
    return partial(product_on, isa)


def numbers() -> dict[str, Tensor]:
    """Rows of x [K] that integers hold badly, unless they are cut up with care."""
    x = torch.randn(COLUMNS, generator=seeded(1))
    alone = x * 1e-3
    alone[::67] = 3e4
    return {
        "normal": x,
        "heavy tails": x / torch.randn(COLUMNS, generator=seeded(2)),
        "outliers far above the rest": alone,
        "every magnitude": x * 10.0 ** torch.linspace(-20, 20, COLUMNS),
        "one number": torch.zeros(COLUMNS).index_fill(0, torch.tensor([77]), 1 / 3),
        "zeros": torch.zeros(COLUMNS),
        "huge": x * 1e36,
        "tiny": x * 1e-33,
        "subnormal": x * 1e-40,
    }


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", numbers())
def test_the_bound_of_float32(product: Product, scheme: str, kind: str) -> None:
    values = torch.randn(ROWS, COLUMNS, generator=seeded(3))
    # rows whose weights are zero where the outliers are
    values[:9, ::67] = 0
    x, stored = numbers()[kind], packed(scheme, values)
    found, wanted = product(x, stored).double(), stored.dequantize(torch.float64) @ x.double()
    limit = BOUND * magnitude(x, stored) + torch.finfo(torch.float32).smallest_normal
    assert ((found - wanted).abs() <= limit).all()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", numbers())
@pytest.mark.parametrize(("activations", "bound"), [("int16", 2.0**-14), ("int8", 1 / 254)])
def test_the_bound_of_fewer_digits(
    product: Product,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    kind: str,
    activations: str,
    bound: float,
) -> None:
    """Each number is off by at most so much of the largest of its segment of at most 64."""
    x = numbers()[kind]
    stored = packed(scheme, torch.randn(ROWS, COLUMNS, generator=seeded(3)))
    monkeypatch.setenv("TERCET_CPU_ACTIVATIONS", activations)
    found, wanted = product(x, stored).double(), stored.dequantize(torch.float64) @ x.double()
    near = torch.nn.functional.max_pool1d(x.abs()[None], 127, 1, 63)[0]
    limit = bound * magnitude(near, stored) + BOUND * magnitude(x, stored)
    assert ((found - wanted).abs() <= limit + torch.finfo(torch.float32).smallest_normal).all()


def test_fewer_digits_are_fewer(product: Product, monkeypatch: pytest.MonkeyPatch) -> None:
    """More is lost by each, where nothing is exact."""
    x, lost = torch.randn(COLUMNS, generator=seeded(1)), list[float]()
    stored = packed("nonary-g32", torch.randn(ROWS, COLUMNS, generator=seeded(3)))
    wanted = stored.dequantize(torch.float64) @ x.double()
    for activations in ("float32", "int16", "int8"):
        monkeypatch.setenv("TERCET_CPU_ACTIVATIONS", activations)
        lost.append(float((product(x, stored).double() - wanted).norm() / wanted.norm()))
    assert lost[0] < 1e-6 < 1e-5 < lost[1] < 1e-4 < 2e-3 < lost[2] < 1e-2


def test_another_word_is_refused(product: Product, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = packed("nonary-g32", torch.randn(ROWS, COLUMNS, generator=seeded(3)))
    monkeypatch.setenv("TERCET_CPU_ACTIVATIONS", "int4")
    with pytest.raises(UnsupportedError, match="allowed are float32, int16, int8"):
        product(torch.randn(COLUMNS), stored)


@pytest.mark.parametrize("columns", [2, 4, 17, 63])
def test_a_small_number_alone_in_a_short_row(product: Product, columns: int) -> None:
    """Levels are zero where x is large, so no large product hides what a segment rounds away."""
    x = torch.full((columns,), 1.5666)
    x[0] = 0.0535
    stored = packed("ternary-channel-float32", torch.eye(1, columns))
    found, wanted = product(x, stored).double(), stored.dequantize(torch.float64) @ x.double()
    assert ((found - wanted).abs() <= BOUND * magnitude(x, stored)).all()


@pytest.mark.parametrize(
    ("scheme", "top"),
    [
        ("nonary-channel-float32", 4),
        ("int4-channel-float32", 7),
        ("int5-channel-float32", 15),
    ],
)
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_digits_and_codes_do_not_overflow(
    product: Product, isa: str, scheme: str, top: int, sign: int
) -> None:
    """Each digit of x is -128 or 127, each code the lowest or highest level."""
    x = torch.full((64,), -8421504.0 / 4 if sign < 0 else 8355711.0 / 4)
    values = torch.full((ROWS, 64), float(top))
    values[::2] *= -1
    stored = packed(scheme, values)
    weight, dense = prepare(stored), stored.dequantize(torch.float64)
    found, wanted = product(x, stored).double(), dense @ x.double()
    assert ((found - wanted).abs() <= 2**-22 * wanted.abs()).all()
    for code in (-128, 127):
        codes = torch.full((64,), code, dtype=torch.int8)
        held = (weight.codes, weight.scale, None, None, weight.scheme, ROWS, 64, torch.float32)
        exact = codes_product_for(isa)(codes, torch.ones(()), *held)
        assert torch.equal(exact.double(), dense @ codes.double())


@pytest.mark.parametrize("odd", [float("inf"), float("-inf"), float("nan")])
def test_what_is_no_number_comes_through(product: Product, odd: float) -> None:
    weight = packed("nonary-g32", torch.randn(ROWS, COLUMNS, generator=seeded(4)))
    x = torch.randn(COLUMNS, generator=seeded(5))
    x[123] = odd
    torch.testing.assert_close(
        product(x, weight), product_on("portable", x, weight), equal_nan=True, atol=1e-5, rtol=1e-5
    )
    assert not product(x, weight).isfinite().all()


def test_half_precision_is_rounded_once(product: Product) -> None:
    weight = packed("ternary", torch.randn(ROWS, COLUMNS, generator=seeded(6)))
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.randn(COLUMNS, generator=seeded(7)).to(dtype)
        wanted = weight.dequantize(torch.float64) @ x.double()
        limit = (torch.finfo(dtype).eps / 2 + BOUND) * magnitude(x, weight)
        assert ((product(x, weight).double() - wanted).abs() <= limit).all()
