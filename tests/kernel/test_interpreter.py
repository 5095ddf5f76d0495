"""The corrected interpreter gives a GPU's numbers."""

import pytest
import torch
import triton
import triton.language as tl

from tercet.kernel.interpreter import interpreting

pytestmark = pytest.mark.skipif(not interpreting(), reason="kernels run on a GPU here")


@triton.jit
def convert(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    for first in tl.range(tl.program_id(0) * BLOCK, N, tl.num_programs(0) * BLOCK, num_stages=2):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, at < N, 0.0)
        tl.store(y_ptr + at, x.to(y_ptr.dtype.element_ty), at < N)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_conversions_round_as_torch_does(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    scale = 10.0 ** torch.linspace(-9, 2, 1000)
    x = torch.randn(1000, generator=generator) * scale
    x = x.clamp(-400, 400) if dtype.itemsize == 1 else x
    x[0], x[1] = 1.00390625, -1.01171875  # ties in bfloat16
    y = torch.empty(1000, dtype=dtype)
    convert[(3,)](x, y, 1000, BLOCK=64)
    assert torch.equal(y.float(), x.to(dtype).float())
    back = torch.empty(1000)
    convert[(2,)](y, back, 1000, BLOCK=128)
    assert torch.equal(back, y.float())
