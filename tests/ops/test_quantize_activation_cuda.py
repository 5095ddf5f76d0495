"""quantize_activation in CUDA C++: proof of its division, rows on a GPU against the definition."""

import pytest
import torch
from torch import Tensor

from tercet.kernel.select import explain, load
from tercet.kernel.tuned import force
from tercet.ops.quantize_activation import cuda
from tercet.ops.quantize_activation.op import OP
from tercet.packed_weight.row_codes import quantize

needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
    reason="the kernel needs compute capability 9.0",
)


def fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c of float32, rounded once: the float64 sum is rounded to odd, so that the second
    rounding, to float32, sees on which side of a tie the exact sum lies."""
    product, c = a.double() * b.double(), c.double()
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    even = (total.view(torch.int64) & 1) == 0
    odd = total.nextafter(torch.where(error > 0, torch.inf, -torch.inf).double())
    return torch.where((error != 0) & even, odd, total).float()


def corrected(x: Tensor, scale: Tensor, corrections: int) -> Tensor:
    """The kernel's quotient."""
    inverse = 1 / scale
    quotient = x * inverse
    for _ in range(corrections):
        quotient = fused(fused(quotient, -scale, x), inverse, quotient)
    return quotient


def test_one_correction_gives_the_ieee_quotient() -> None:
    """Of every x of 11 significant bits and a part of the scales; none at all needs two."""
    x = torch.arange(1024, 2048, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(2**23, 2**24, (600,), generator=generator)
    ends = torch.cat((torch.arange(2**23, 2**23 + 200), torch.arange(2**24 - 200, 2**24)))
    # next to few-bit numbers, where quotients come nearest to the middle of two floats
    near = (torch.arange(64, 128)[:, None] * 2**17 + torch.arange(-3, 4)).reshape(-1)
    scale = torch.cat((drawn, ends, near.clamp(2**23, 2**24 - 1))).float()[:, None]
    exact = x / scale
    assert torch.equal(corrected(x, scale, 1), exact)
    assert not torch.equal(corrected(x, scale, 0), exact), "without it quotients are wrong"


def test_takes_many_rows_of_whole_units_only() -> None:
    def reason(rows: int, k: int, dtype: torch.dtype = torch.bfloat16) -> str:
        verdicts = explain(OP, "cuda", dtype, {"M": rows, "K": k})
        return next(one.reason for one in verdicts if one.implementation == "cuda")

    missing = OP.implementation("cuda").requirement
    assert missing.unfit({"M": 16384, "K": 4096}) is None
    assert "multiple of 8" in reason(4096, 4097)
    assert "takes M from 1024" in reason(16, 4096)
    assert "takes K from 8 to 65536" in reason(4096, 65544)
    assert "float32" in reason(4096, 4096, torch.float32)


@pytest.mark.parametrize(("k", "fits"), [(8, True), (65536, True), (65544, False), (12, False)])
def test_rows_that_fit(k: int, fits: bool) -> None:
    assert cuda._fits(torch.empty(2, k, dtype=torch.bfloat16)) == fits
    assert not cuda._fits(torch.empty(2, k))
    assert not cuda._fits(torch.empty(2, k + 4, dtype=torch.float16)[:, :k])


@needs_hopper
@pytest.mark.parametrize("element", ["int8", "fp8_e4m3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("k", [8, 264, 4096, 11008, 28672, 53248])
def test_rows_on_a_gpu_are_the_definition(element: str, dtype: torch.dtype, k: int) -> None:
    """Rows of every size, zeros, infinities and NaN among them, walked over by the same blocks."""
    generator = torch.Generator("cuda").manual_seed(k)
    x = torch.randn(1600, k, generator=generator, device="cuda")
    x = (x * torch.linspace(-60, 30, 1600, device="cuda").exp2()[:, None]).to(dtype)
    x[0], x[1], x[2, 0], x[3, k // 2], x[4, k - 1] = 0.0, -0.0, torch.inf, torch.nan, -torch.inf
    x[5], x[6], x[7] = 448.0, torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
    x[5, 0] = 2.0**-9
    run = load(OP, "cuda").forward
    wanted = quantize(x, element)
    wide = torch.empty(1600, k + 16, dtype=dtype, device="cuda")
    wide[:, :k] = x
    for vectors, stages in ((4, 1), (4, 3), (8, 1), (8, 2)):
        with force(OP.name, "cuda", "forward", {"VECTORS": vectors, "STAGES": stages}):
            for source in (x, wide[:, :k]):
                codes, scale, row_sum = run(source, element)
                assert torch.equal(codes.view(torch.uint8), wanted[0].view(torch.uint8))
                torch.testing.assert_close(scale, wanted[1], rtol=0, atol=0, equal_nan=True)
                assert torch.equal(row_sum, wanted[2])
