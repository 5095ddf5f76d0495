"""The corrected interpreter gives a GPU's numbers."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from tercet.kernel.interpreter.corrections import interpreting

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


@triton.jit
def sum_along(x_ptr, y_ptr, AXIS: tl.constexpr, KEEP: tl.constexpr, N: tl.constexpr):
    rows, columns = tl.arange(0, N)[:, None], tl.arange(0, 2)[None, :]
    at = rows * 2 + columns if AXIS == 0 else columns * N + rows
    x = tl.load(x_ptr + at)
    if AXIS == 1:
        x = tl.trans(x)
    total = tl.sum(x, AXIS, keep_dims=KEEP)
    tl.store(y_ptr + tl.arange(0, 2), tl.reshape(total, (2,)))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("keep", [False, True])
def test_sums_add_in_a_tree_along_every_axis(axis: int, keep: bool) -> None:
    """One after the other, each 0.3 would be rounded at the size of the whole sum."""
    n = 8192
    values = torch.full((n, 2), 0.3)
    x = values if axis == 0 else values.T.contiguous()
    y = torch.empty(2)
    sum_along[(1,)](x, y, AXIS=axis, KEEP=keep, N=n)
    exact = values.double().sum(0)
    assert ((y.double() - exact).abs() / exact).max() < 2e-7


def test_bfloat16_keeps_nan_and_infinity_and_rounds_the_largest_up_to_it() -> None:
    x = torch.tensor([torch.nan, -torch.nan, torch.inf, -torch.inf, 3.4e38, 1e-40, -0.0])
    x.view(torch.int32)[0] = 0x7FFFFFFF  # the payload that a carry would turn into -0.0
    y = torch.empty(7, dtype=torch.bfloat16)
    convert[(1,)](x, y, 7, BLOCK=8)
    assert y[:2].isnan().all()
    assert torch.equal(y[2:].view(torch.int16), x[2:].bfloat16().view(torch.int16))


@triton.jit
def both(a, b):
    return tl.where(a < b, a * 2, b - 3)


@triton.jit
def mixed(
    x_ptr, shift_ptr, out_ptr, far_ptr, flag_ptr, factor, R,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    inside = (row < R) & (column >= 0)
    at = row * COLUMNS + column
    x = tl.load(x_ptr + at, inside, 0)  # int8: widened by what it meets
    shift = tl.load(shift_ptr + row, row < R, 0)
    tl.store(out_ptr + at, both(x, shift) / 4 + factor * row, inside)
    tl.store(far_ptr + at, tl.full((), 1 << 30, tl.int64) * (shift >> 1) + (x & 7), inside)
    tl.store(flag_ptr + at, (x == shift) | (column == 2), inside)


def test_operands_of_different_shapes_and_types_meet_as_on_a_gpu() -> None:
    rows = 3
    x = torch.arange(-12, 12, dtype=torch.int8).reshape(3, 8)
    shift = torch.tensor([[-7], [100000], [7]], dtype=torch.int32)
    out, far = torch.zeros(4, 8), torch.zeros(4, 8, dtype=torch.int64)
    flag = torch.zeros(4, 8, dtype=torch.int8)
    for factor in (0.5, -1.5):  # the second launch finds what the first one kept
        mixed[(1,)](x, shift, out, far, flag, factor, rows, ROWS=4, COLUMNS=8)
        row, column = torch.arange(3)[:, None], torch.arange(8)[None, :]
        wide = x.int()
        wanted = torch.where(wide < shift, wide * 2, shift - 3) / 4 + factor * row
        assert torch.equal(out[:3], wanted)
        assert torch.equal(far[:3], (1 << 30) * (shift >> 1).long() + (wide & 7))
        assert torch.equal(flag[:3] != 0, (wide == shift) | (column == 2))
        assert not out[3].any()
        assert not far[3].any()


@triton.jit
def scaled(x_ptr, y_ptr, factor, ADD: tl.constexpr):
    at = tl.arange(0, 4)
    half = tl.load(x_ptr + at)
    tl.store(y_ptr + at, half * tl.load(factor) + (at + ADD))


def test_what_was_kept_of_one_launch_is_right_for_the_next() -> None:
    factor, x, y = torch.tensor([1.5]), torch.tensor([1.0, 2.0, -3.0, 0.25]), torch.empty(4)
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
        for add in (1, 2**20):
            scaled[(1,)](x.to(dtype), y, factor, ADD=add)
            assert torch.equal(y, x * 1.5 + (torch.arange(4) + add))
    with pytest.raises(InterpreterError, match="out of range for type"):
        scaled[(1,)](x, y, factor, ADD=2**40)


def test_after_a_launch_the_language_is_as_it_was() -> None:
    convert[(1,)](torch.ones(8), torch.empty(8), 8, BLOCK=8)
    assert tl.core.is_builtin(tl.tensor.__add__)
