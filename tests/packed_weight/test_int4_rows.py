"""Rows in 4 bits: what they stand for, their turn, and the same in Triton to the bit."""

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.testing import assert_close

from tercet.errors import UnsupportedError
from tercet.packed_weight.exact_int4_rows import room_of_rows, round_rows
from tercet.packed_weight.int4_rows import dequantize, quantize, turn
from tercet.packed_weight.triton import int4_quantizer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTHS = (2, 8, 20, 32, 64, 80, 96, 128, 256)


def drawn(width: int, seed: int = 0) -> Tensor:
    """Rows whose columns are of very different sizes."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(7, width, generator=draw) * torch.rand(width, generator=draw).mul(6).exp()


def groups_of(width: int) -> list[list[int]]:
    half = width // 2
    starts = range(0, half, 16)
    firsts = [list(range(start, min(start + 16, half))) for start in starts]
    return [[*first, *(half + column for column in first)] for first in firsts]


@pytest.mark.parametrize("width", WIDTHS)
def test_each_number_is_within_half_a_step_of_its_own(width: int) -> None:
    y = drawn(width)
    codes, scales = quantize(y)
    assert codes.shape == (7, width // 2)
    assert scales.shape == (7, 2 * len(groups_of(width)))
    found = dequantize(codes, scales)
    for columns in groups_of(width):
        part = y[:, columns]
        span = part.amax(-1, keepdim=True) - part.amin(-1, keepdim=True)
        # half a step, and what bfloat16 loses of the least and of 15 steps
        limit = span / 30 + (span + part.abs().amax(-1, keepdim=True)) * 2**-8
        assert ((found[:, columns] - part).abs() <= limit).all()


def test_which_bits_are_whose() -> None:
    y = torch.zeros(1, 64)
    y[0, 3], y[0, 35], y[0, 16], y[0, 63] = 15.0, 7.0, -15.0, 30.0
    codes, scales = quantize(y)
    # 3 and 35 are of the first group, 0 to 15; 16 and 63 of the second, -15 to 30 by 3
    assert scales.tolist() == [[1.0, 0.0, 3.0, -15.0]]
    expected = torch.full((32,), 5 + 16 * 5)
    expected[:16] = 0
    expected[3], expected[16], expected[31] = 15 + 16 * 7, 0 + 16 * 5, 5 + 16 * 15
    assert codes[0].tolist() == expected.tolist()


def test_groups_without_a_usable_step() -> None:
    y = torch.ones(4, 8)
    y[0], y[1, 3], y[2, 6], y[3, 0] = 0.0, float("nan"), float("inf"), float("-inf")
    codes, scales = quantize(y)
    assert not codes.any()
    assert scales[0].tolist() == [0.0, 0.0]
    found = dequantize(codes, scales)
    assert not found[0].any()
    assert found[1:].isnan().all()


def test_neighbours_of_the_largest_float32_do_not_overflow() -> None:
    codes, scales = quantize(torch.tensor([[3e38, -3e38, 2e37, 1e38]]))
    assert scales.isfinite().all()
    assert codes.tolist() == [[15 + 16 * 8, 0 + 16 * 10]]


@pytest.mark.parametrize("width", WIDTHS)
def test_turning_keeps_products_and_undoes_itself(width: int) -> None:
    x, y = drawn(width), drawn(width, 1)
    assert_close(turn(turn(x)), x, rtol=1e-5, atol=1e-4 * float(x.abs().max()))
    expected = x.double() @ y.double().T
    assert_close(turn(x.double()) @ turn(y.double()).T, expected)
    if width > 2:
        one = torch.zeros(width, dtype=torch.float64)
        one[1] = 1.0
        spread = turn(one)
        assert int((spread != 0).sum()) == 2 * (width // 2 & -(width // 2))


@pytest.mark.parametrize("width", WIDTHS)
def test_float64_says_how_far_codes_may_be_off(width: int) -> None:
    y, error = drawn(width).double(), drawn(width, 1).double().abs() * 1e-6
    expected, exact = round_rows(y), room_of_rows(y, torch.zeros_like(y))
    for seed in range(5):
        draw = torch.Generator().manual_seed(seed)
        moved = y + error * (2 * torch.rand(y.shape, generator=draw).double() - 1)
        codes, scales = quantize(moved.float())
        # what float32 loses of them, too
        room = room_of_rows(y, error + moved.abs() * 2**-24)
        assert ((codes.double() - expected.codes).abs() <= room.codes).all()
        assert ((scales.double() - expected.scales).abs() <= room.scales).all()
        assert (room.codes >= exact.codes).all()
    # hardly any code may be another one
    assert float((exact.codes > 0).double().mean()) < 1e-2


def test_an_odd_width_is_refused() -> None:
    for call in (quantize, turn):
        with pytest.raises(UnsupportedError, match="rows of 7 columns cannot be kept in 4 bits"):
            call(torch.zeros(2, 7))


@triton.jit
def _both(  # pyright: ignore[reportUnknownParameterType]
    y_ptr, codes_ptr, scales_ptr, turned_ptr, WIDTH, HALF: tl.constexpr, BLOCK: tl.constexpr
):
    row, columns = tl.program_id(0), tl.arange(0, HALF)
    half = WIDTH // 2
    inside = columns < half
    first = tl.load(y_ptr + row * WIDTH + columns, inside, 0.0)
    second = tl.load(y_ptr + row * WIDTH + half + columns, inside, 0.0)
    codes, step, least = int4_quantizer.quantize(first, second, inside, HALF)
    tl.store(codes_ptr + row * half + columns, codes, inside)
    groups = tl.arange(0, HALF // 16)
    real, count = groups < (half + 15) // 16, (half + 15) // 16
    at = scales_ptr + row * 2 * count + 2 * groups
    tl.store(at, step.to(tl.bfloat16), real)
    tl.store(at + 1, least.to(tl.bfloat16), real)
    one, other = int4_quantizer.turn(first, second, BLOCK, HALF)
    tl.store(turned_ptr + row * WIDTH + columns, one, inside)
    tl.store(turned_ptr + row * WIDTH + half + columns, other, inside)


@pytest.mark.parametrize("width", WIDTHS)
def test_triton_has_the_same_bits(width: int) -> None:
    y = drawn(width)
    y[5], y[6, 1] = 3.25, float("nan")
    expected, half = quantize(y), width // 2
    codes = torch.zeros_like(expected[0], device=DEVICE)
    scales = torch.zeros_like(expected[1], device=DEVICE)
    turned = torch.zeros_like(y, device=DEVICE)
    _both[(7,)](
        y.to(DEVICE), codes, scales, turned, width,
        HALF=max(16, triton.next_power_of_2(half)), BLOCK=max(half & -half, 1),
    )  # fmt: skip
    assert torch.equal(codes.cpu(), expected[0])
    assert_close(scales.cpu(), expected[1], rtol=0, atol=0, equal_nan=True)
    size = float(y[:6].abs().max())
    assert_close(turned.cpu()[:6], turn(y[:6]), rtol=1e-5, atol=1e-6 * size)
