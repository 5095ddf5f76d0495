"""What a sum of e4m3 products may lose on Hopper's tensor cores, derived from how they add.

One wgmma of 32 columns cuts its 32 products and the sum so far, towards zero, at 2^-FRACTION of the
power of two of the largest of them, adds what is left exactly, and cuts the result to FRACTION bits
behind the point (measured, to the bit: tests/ops/linear_packed/test_fp8_sums.py). Let m be the sum
of |x w| over the columns of one sum.

- The largest product is not cut: it has six bits behind the point, and is at most m. Each of the 31
  others of the first wgmma loses less than 2^-FRACTION m.
- In every wgmma after it, 32 of the 33 summands are cut: the largest, product or sum, is not.
- Each wgmma cuts its result, at most m, by less than 2^-FRACTION m.

So a sum of C wgmmas is off by less than (31 + 32 (C - 1) + C) 2^-FRACTION m, which is (33 C - 1)
2^-FRACTION m; and sums of all of K, added up in float32, by that part of their magnitude, whatever
K is. A factor that is not zero, but below e4m3's smallest normal number, 2^-6, counts as 2^-6 in m:
a product's power of two is that of its factors together.
"""

import torch

from tercet.kernel.contract import Tolerance
from tercet.packed_weight.call import SUMS

COLUMNS = 64  # of one sum, in mainloop_fp8.cuh
FRACTION = 13
_STEP = 32  # columns of one wgmma
_ROUNDING = 2**-8  # to bfloat16, of the result


def lost(columns: int) -> float:
    """The part of its magnitude that a sum of so many columns, a multiple of 32, may lose."""
    return (33 * columns // _STEP - 1) * 2**-FRACTION


TOLERANCE = Tolerance(
    dtype=torch.bfloat16,
    relative=_ROUNDING,
    inner=lost(COLUMNS) * (1 + _ROUNDING) + SUMS,
    gradient=4 * (_ROUNDING + SUMS),
    reason="one rounding to 8 bits at the end, of sums of 64 columns by fp8 tensor cores, which "
    "keep 13 bits behind the point of the largest number added: 65 times 2^-13 may be cut off",
)
