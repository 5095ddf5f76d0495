"""Philox: random bits that depend on a seed and a place, and on nothing else; in plain torch.

Philox 4x32 with 10 rounds (Salmon et al. 2011, Random123): a block of four 32-bit words is a
function of a 64-bit key and a 128-bit counter. Element [n, k] of a matrix [N, K] takes word k % 4
of block n * ceil(K / 4) + k // 4 under the seed, so the numbers do not depend on how the work is
cut up. Rounding wants a uniform number: the upper 23 bits of the word, times 2^-23.
"""

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF
_ROUNDS = 10

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(key: tuple[Tensor, Tensor], counter: Words) -> Words:
    """Four words of 32 bits, int64 tensors, of key and counter, whose words are like them."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(_ROUNDS):
        # 64 bits wrap around; their upper half, masked, is right all the same
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((second >> 32) & _LOW) ^ c1 ^ k0,
            second & _LOW,
            ((first >> 32) & _LOW) ^ c3 ^ k1,
            first & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def uniform(seed: Tensor, rows: int, columns: int) -> Tensor:
    """[rows, columns] float32 in [0, 1), multiples of 2^-23.

    Args:
        seed: one int64; where it lies, the numbers lie.
        rows, columns: of the matrix.
    """
    blocks = -(-columns // 4)
    bits = torch.stack(_words(seed, rows * blocks), -1).reshape(rows, 4 * blocks)[:, :columns]
    return (bits >> 9).float() * 2.0**-23


def coarse_uniform(seed: Tensor, rows: int, columns: int) -> Tensor:
    """As `uniform`, but multiples of 2^-16, at half of the cost: eight of a block.

    Element [n, k] takes half k % 8, the lower of a word first, of block n * ceil(K / 8) + k // 8.
    """
    blocks = -(-columns // 8)
    words = torch.stack(_words(seed, rows * blocks), -1)
    bits = torch.stack((words & 0xFFFF, words >> 16), -1).reshape(rows, 8 * blocks)[:, :columns]
    return bits.float() * 2.0**-16


def _words(seed: Tensor, blocks: int) -> Words:
    """Of that many blocks under the seed, from the first on."""
    at = torch.arange(blocks, device=seed.device)
    none = torch.zeros_like(at)
    key = seed.reshape(()).to(torch.int64)
    return philox((key & _LOW, (key >> 32) & _LOW), (at & _LOW, at >> 32, none, none))
