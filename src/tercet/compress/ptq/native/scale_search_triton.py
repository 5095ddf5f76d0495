"""The search for each group's scale on a GPU: a program takes a few groups through all scales."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.compress.ptq.native.columns_triton import nearest

_WEIGHTS_AT_ONCE = 4096


@triton.jit
def _search(
    weight,
    candidate,
    candidate_zero,
    importance,
    best,
    count,
    groups,
    columns,
    group,
    steps,
    HAS_ZERO: tl.constexpr,
    HAS_IMPORTANCE: tl.constexpr,
    LOWEST: tl.constexpr,
    HIGHEST: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    here = at < count
    inner = tl.arange(0, BLOCK)[None, :]
    column = (at % groups * group)[:, None] + inner
    inside = (inner < group) & (column < columns) & here[:, None]
    wanted = tl.load(weight + (at // groups * columns)[:, None] + column, inside, 0.0)
    share = inside.to(tl.float32)
    if HAS_IMPORTANCE:
        share = tl.load(importance + column, inside, 0.0)
    least = tl.full([GROUPS], float("inf"), tl.float32)
    found = tl.full([GROUPS], -1, tl.int32)
    for step in range(steps):
        scale = tl.load(candidate + at * steps + step, here, 0.0)
        divisor = tl.where(scale > 0, scale, float("inf"))
        zero = tl.zeros([GROUPS], tl.float32)
        if HAS_ZERO:
            zero = tl.load(candidate_zero + at * steps + step, here, 0.0)
        ratio = tl.div_rn(wanted, tl.broadcast_to(divisor[:, None], (GROUPS, BLOCK)))
        level = nearest(ratio + zero[:, None], LOWEST, HIGHEST)
        error = (level - zero[:, None]) * scale[:, None] - wanted
        cost = tl.sum(error * error * share, 1)
        better = cost < least
        least = tl.where(better, cost, least)
        found = tl.where(better, step, found)
    tl.store(best + at, found, here)


def search(
    weight: Tensor,
    candidate: Tensor,
    candidate_zero: Tensor | None,
    importance: Tensor | None,
    group: int,
    bounds: tuple[float, float],
) -> Tensor:
    """Of each group the candidate of least squared error, [N, G]; -1 where none has a finite one.

    Args:
        weight: W [N, K], float32, contiguous.
        candidate: the scales to try [N, G, F], likewise.
        candidate_zero: the zero points that go with them, or None.
        importance: [K] weights of the squared errors; None counts all columns alike.
        group: columns of a group; the last one may be shorter.
        bounds: the lowest and the highest level.
    """
    best = torch.empty(candidate.shape[:2], dtype=torch.int32, device=weight.device)
    block = triton.next_power_of_2(group)
    groups_at_once = max(_WEIGHTS_AT_ONCE // block, 1)
    _search[(triton.cdiv(best.numel(), groups_at_once),)](
        *(weight, candidate, candidate if candidate_zero is None else candidate_zero),
        *(weight if importance is None else importance, best),
        *(best.numel(), best.shape[1], weight.shape[1], group, candidate.shape[2]),
        HAS_ZERO=candidate_zero is not None,
        HAS_IMPORTANCE=importance is not None,
        LOWEST=bounds[0],
        HIGHEST=bounds[1],
        BLOCK=block,
        GROUPS=groups_at_once,
        num_warps=8,
    )
    return best
