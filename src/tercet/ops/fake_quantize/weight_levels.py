"""Weight levels: scales of a weight and its levels, in Triton, to the bit as `formats.encode`."""

import triton
import triton.language as tl

from tercet.packed_weight.triton.row_quantizer import ratio_to

# adding 1.5 * 2^23 rounds to an integer, ties to even, and leaves it in the low bits of the pattern
_TO_INTEGER = tl.constexpr(12582912.0)
_TO_INTEGER_BITS = tl.constexpr(0x4B400000)


@triton.jit
def rounded(scale, SCALE: tl.constexpr):
    """float32 scales as the scheme's dtype holds them."""
    return scale.to(tl.float32).to(SCALE).to(tl.float32)


@triton.jit
def mean_scale(total, count, DIVISOR: tl.constexpr):
    """2 total / (count divisor), float64."""
    whole: tl.constexpr = int(DIVISOR)
    return 2 * total / (count.to(tl.int64) * whole).to(tl.float64)


@triton.jit
def divided(number, DIVISOR: tl.constexpr):
    """float32 numbers / divisor, rounded once."""
    return tl.div_rn(number, tl.full(number.shape, DIVISOR, tl.float32))


@triton.jit
def largest_scale(bits, DIVISOR: tl.constexpr):
    """absmax / divisor from the largest bit pattern."""
    return divided(bits.to(tl.float32, bitcast=True), DIVISOR)


@triton.jit
def bounded_ratio(w, scale):
    """w [ROWS, BLOCK] / scale [ROWS], rounded once up to 256 times the scale; there it saturates.

    NaN becomes some number; an infinite quotient would become NaN in the corrections.
    """
    most = (256.0 * tl.abs(scale))[:, None]
    return ratio_to(tl.minimum(tl.maximum(w, -most), most), scale)


@triton.jit
def level_of(
    ratio, uniform_number,
    LOWEST: tl.constexpr, HIGHEST: tl.constexpr, SHIFT: tl.constexpr, RANDOM: tl.constexpr,
):  # fmt: skip
    """Levels as int32 and as float32."""
    bounded = tl.minimum(tl.maximum(ratio - SHIFT, LOWEST), HIGHEST)
    if RANDOM:
        low = tl.floor(bounded)
        bounded = low + tl.where(uniform_number < bounded - low, 1.0, 0.0)
    shifted = bounded + _TO_INTEGER
    return shifted.to(tl.int32, bitcast=True) - _TO_INTEGER_BITS, shifted - _TO_INTEGER
