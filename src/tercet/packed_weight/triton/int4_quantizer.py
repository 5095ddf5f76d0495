"""`int4_rows` in Triton: both halves of one row, in registers, to codes and scales."""

import triton
import triton.language as tl


@triton.jit
def turn(first, second, BLOCK: tl.constexpr, HALF: tl.constexpr):
    """Both halves [HALF], 0 beyond their end, times the normalized Hadamard matrix of blocks."""
    one, other = first + second, first - second
    i = tl.arange(0, BLOCK)
    # the parity of the bits that row and column share
    shared = i[:, None] & i[None, :]
    shared = shared ^ (shared >> 4)
    shared = shared ^ (shared >> 2)
    shared = shared ^ (shared >> 1)
    sign = tl.where((shared & 1) == 0, 1.0, -1.0)[None]
    shape: tl.constexpr = (HALF // BLOCK, BLOCK, 1)
    size: tl.constexpr = 2 * BLOCK
    scale = size**-0.5
    one = tl.reshape(tl.sum(tl.reshape(one, shape) * sign, 1), (HALF,)) * scale
    other = tl.reshape(tl.sum(tl.reshape(other, shape) * sign, 1), (HALF,)) * scale
    return one, other


@triton.jit
def quantize(first, second, inside, HALF: tl.constexpr):
    """Bytes [HALF] of a row's halves, and step and least of its groups, float32 [HALF / 16].

    Both are bfloat16 numbers. What is not `inside` counts nothing.
    """
    shape: tl.constexpr = (HALF // 16, 16)
    first, second = tl.reshape(first, shape), tl.reshape(second, shape)
    inside = tl.reshape(inside, shape)
    unknown = inside & ((first != first) | (second != second))
    some = tl.max(unknown.to(tl.int32), 1) > 0
    lowest = tl.min(tl.where(inside, tl.minimum(first, second), float("inf")), 1)
    highest = tl.max(tl.where(inside, tl.maximum(first, second), float("-inf")), 1)
    least = tl.where(some, float("nan"), lowest).to(tl.bfloat16).to(tl.float32)
    step = tl.div_rn(highest * 0.5 - least * 0.5, tl.full(least.shape, 7.5, tl.float32))
    step = tl.where(step < 0, 0.0, step).to(tl.bfloat16).to(tl.float32)
    usable = (step > 0) & (step < float("inf")) & (tl.abs(least) < float("inf"))
    divisor = tl.where(usable, step * 0.5, 1.0)[:, None]
    low = _codes(first, least, divisor, usable)
    high = _codes(second, least, divisor, usable)
    return tl.reshape(low | (high << 4), (HALF,)).to(tl.uint8), step, least


@triton.jit
def _codes(y, least, divisor, usable):
    ratio = tl.div_rn(y * 0.5 - least[:, None] * 0.5, tl.broadcast_to(divisor, y.shape))
    ratio = tl.where(usable[:, None], tl.clamp(ratio, 0.0, 15.0), 0.0)
    # adding 1.5 * 2^23 rounds to an integer, ties to even
    return ((ratio + 12582912.0).to(tl.int32, bitcast=True)) - 0x4B400000
