"""Random uniform: `philox.uniform` and `coarse_uniform` in Triton, to the bit."""

import triton
import triton.language as tl


@triton.jit
def uniform(seed, rows, first, blocks, COLUMNS: tl.constexpr):
    """[ROWS, COLUMNS] float32 in [0, 1) for COLUMNS columns of each row, from its `first` on.

    Args:
        seed: int64.
        rows, first: [ROWS]; each first a multiple of 4.
        blocks: ceil(columns / 4) of the whole matrix.
        COLUMNS: a power of two, from 4 on.
    """
    quads = first[:, None] // 4 + tl.arange(0, COLUMNS // 4)[None, :]
    at = rows.to(tl.int64)[:, None] * blocks + quads
    low = (at & 0xFFFFFFFF).to(tl.uint32)
    high = (at >> 32).to(tl.uint32)
    none = tl.zeros_like(low)
    # one block of Philox serves four columns: a fourth of the multiplications
    a, b, c, d = tl.philox(seed, low, high, none, none)
    bits = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (quads.shape[0], COLUMNS))
    # 23 bits under the exponent of 1: no conversion instruction
    return ((bits >> 9) | 0x3F800000).to(tl.float32, bitcast=True) - 1.0


@triton.jit
def coarse_uniform(seed, rows, first, blocks, COLUMNS: tl.constexpr):
    """As uniform, multiples of 2^-16: `philox.coarse_uniform`.

    Each first is a multiple of 8, blocks are ceil(columns / 8), COLUMNS is 8 or more.
    """
    eights = first[:, None] // 8 + tl.arange(0, COLUMNS // 8)[None, :]
    at = rows.to(tl.int64)[:, None] * blocks + eights
    low = (at & 0xFFFFFFFF).to(tl.uint32)
    high = (at >> 32).to(tl.uint32)
    none = tl.zeros_like(low)
    a, b, c, d = tl.philox(seed, low, high, none, none)
    words = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (eights.shape[0], COLUMNS // 2))
    bits = tl.reshape(tl.join(words & 0xFFFF, words >> 16), (eights.shape[0], COLUMNS))
    return ((bits << 7) | 0x3F800000).to(tl.float32, bitcast=True) - 1.0
