"""What groups of a weight's columns have to do with one another, on a GPU.

The products of H with levels are of H's size times the rows and are read once only, to be summed by
group: so no product is written, but the sums.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

GROUPS = (64, 128)
"""Columns in a group that it is made for."""
_ROWS = 128


@triton.jit
def _group_products(
    gram,
    basis,
    out,
    columns,
    rows,
    groups,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    # the last blocks meet the most groups
    block = tl.num_programs(1) - 1 - tl.program_id(1)
    i = block * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    mask = (i < columns)[:, None] & here[None, :]
    own = tl.load(basis + i.to(tl.int64)[:, None] * rows + row[None, :], mask, 0.0).to(tl.float32)
    MINE: tl.constexpr = BLOCK // GROUP
    mine = block * MINE + tl.arange(0, MINE)
    k = tl.arange(0, GROUP)
    for g in range(tl.minimum((block + 1) * MINE, groups)):
        j = g * GROUP + k
        inside = (i < columns)[:, None] & (j < columns)[None, :]
        h = tl.load(gram + i.to(tl.int64)[:, None] * columns + j[None, :], inside, 0.0)
        mask = (j < columns)[:, None] & here[None, :]
        levels = tl.load(basis + j.to(tl.int64)[:, None] * rows + row[None, :], mask, 0.0)
        # three bfloat16 have all 24 bits of H; levels are integers of at most 9 bits
        high = h.to(tl.bfloat16)
        rest = h - high.to(tl.float32)
        middle = rest.to(tl.bfloat16)
        low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
        product = tl.dot(low, levels)
        product = tl.dot(middle, levels, product)
        product = tl.dot(high, levels, product)
        found = tl.sum(tl.reshape(product * own, (MINE, GROUP, ROWS)), 1)
        at = row[None, :] * groups * groups + (mine * groups + g)[:, None]
        wanted = (mine[:, None] < groups) & (mine[:, None] >= g) & here[None, :]
        tl.store(out + at, found.to(tl.float64), wanted)


def group_products(gram: Tensor, basis: Tensor, group: int) -> Tensor:
    """b_g H b_h^T [N, G, G] for h <= g, float64; nothing is said of the others.

    Args:
        gram: H [K, K], float32.
        basis: the transposed levels [K, N], bfloat16; b_g is zero outside of group g.
        group: columns in a group, one of GROUPS; the last may be shorter.
    """
    columns, rows = basis.shape
    groups = triton.cdiv(columns, group)
    out = gram.new_empty(rows, groups, groups, dtype=torch.float64)
    block = max(group, 64)
    _group_products[(triton.cdiv(rows, _ROWS), triton.cdiv(columns, block))](
        *(gram, basis, out, columns, rows, groups),
        GROUP=group,
        BLOCK=block,
        ROWS=_ROWS,
        num_warps=block // 16,
        num_stages=2,
    )
    return out
