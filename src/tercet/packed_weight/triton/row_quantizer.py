"""Row quantizer: `row_codes` in Triton, to the bit, at a cost that hides behind memory.

A kernel takes `absolute_bits` of its row, `scale_of` their maximum, `encode`s each element and
`total`s the units.
"""

import triton
import triton.language as tl

_BIG = tl.constexpr(2.0**64)
_SMALL = tl.constexpr(2.0**-64)
# adding 1.5 * 2^23 rounds to an integer, ties to even, and leaves it in the low bits of the pattern
_TO_INTEGER = tl.constexpr(12582912.0)
_TO_INTEGER_BITS = tl.constexpr(0x4B400000)
# likewise to a multiple of 2^-9, of which every e4m3 number is one
_TO_UNITS = tl.constexpr(24576.0)
_TO_UNITS_BITS = tl.constexpr(0x46C00000)
_KEEPS_THREE_BITS = tl.constexpr(1.5 * 2.0**20)
_LEAST_NORMAL = tl.constexpr(2.0**-6)


@triton.jit
def absolute_bits(x):
    """The bit pattern of |x|, float32, as int32: it orders as |x| does, with NaN above inf.

    A maximum of floats would drop NaN.
    """
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def scale_of(bits, FP8: tl.constexpr):
    """The scale of a row [ROWS] from the maximum of its `absolute_bits`."""
    absmax = bits.to(tl.float32, bitcast=True)
    limit: tl.constexpr = 448.0 if FP8 else 127.0
    return tl.div_rn(absmax, tl.full(absmax.shape, limit, tl.float32))


@triton.jit
def ratio_to(x, scale):
    """x [ROWS, BLOCK] / scale [ROWS], rounded to nearest float32; 0 in rows without a usable scale.

    An IEEE division takes a dozen instructions an element, with a branch; a kernel that moves three
    bytes an element has time for about twenty in all. One division a row gives the correctly
    rounded reciprocal; the product with it is off by two units in the last place at most, the first
    correction makes it faithful, and the second correctly rounded (Markstein, IBM J. Res. Dev. 34,
    1990). The residuals have to be exact: a power of two, which changes no quotient, brings very
    large and very small scales to where they neither underflow nor overflow. Ratios below 2^-10
    are coarser, but every element rounds those to zero.
    """
    plain = (scale >= _SMALL) & (scale <= _BIG)
    power = tl.where(scale < _SMALL, _BIG, tl.where(scale > _BIG, _SMALL, 1.0))
    usable = (scale > 0.0) & (scale < float("inf"))
    divisor = tl.where(usable, scale * power, 1.0)
    inverse = tl.div_rn(tl.full(divisor.shape, 1.0, tl.float32), divisor)[:, None]
    minus = (0.0 - divisor)[:, None]
    # almost never taken: it would cost two instructions an element
    if tl.min(plain.to(tl.int32), 0) == 0:
        x = tl.where(usable[:, None], x * power[:, None], 0.0)
    ratio = x * inverse
    ratio = tl.fma(tl.fma(ratio, minus, x), inverse, ratio)
    return tl.fma(tl.fma(ratio, minus, x), inverse, ratio)


@triton.jit
def encode(x, scale, FP8: tl.constexpr):
    """Codes of x [ROWS, BLOCK], float32, and their values as int32 units: 1 for int8, 2^-9 for fp8.

    Zeros, such as lanes beyond the row's end, have code 0.
    """
    ratio = ratio_to(x, scale)
    if FP8:
        ratio = tl.clamp(ratio, -448.0, 448.0)
        # to e4m3 in float32 first: reading codes back on a GPU gave other numbers at small shapes.
        # 1.5 * 2^20 times the power of two below keeps three bits of the mantissa, ties to even,
        # and a zero becomes +0
        power = (ratio.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
        keep = tl.maximum(power, _LEAST_NORMAL) * _KEEPS_THREE_BITS
        rounded = (ratio + keep) - keep
        codes = rounded.to(tl.float8e4nv)
        units = (rounded + _TO_UNITS).to(tl.int32, bitcast=True) - _TO_UNITS_BITS
    else:
        shifted = tl.clamp(ratio, -127.0, 127.0) + _TO_INTEGER
        units = shifted.to(tl.int32, bitcast=True) - _TO_INTEGER_BITS
        codes = units.to(tl.int8)
    return codes, units


@triton.jit
def total(units, FP8: tl.constexpr, SUMS: tl.constexpr = False):
    """row_sum [ROWS] of units [ROWS, BLOCK].

    9363 codes of 448 exceed an int32 of 2^-9 units: fp8 units are added up in groups of 16, those
    in two halves; where they are SUMS already, of up to 9362 codes, in two halves at once.
    """
    if FP8:
        group: tl.constexpr = 16 if units.shape[1] >= 16 and not SUMS else 1
        shape: tl.constexpr = (units.shape[0], units.shape[1] // group, group)
        sums = tl.sum(tl.reshape(units, shape), 2)
        high = tl.sum(sums >> 9, 1).to(tl.int64)
        row_sum = (high * 512 + tl.sum(sums & 511, 1)).to(tl.float32) * (1.0 / 512.0)
    else:
        row_sum = tl.sum(units, 1)
    return row_sum
