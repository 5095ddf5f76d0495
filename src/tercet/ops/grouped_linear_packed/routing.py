"""Routing: from the experts that a router chose to rows sorted by expert."""

import torch
from torch import Tensor


def sort_by_expert(expert_ids: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """The order of a call's rows by expert, and where each expert's rows begin.

    Plain torch on any device, without a synchronization: a CUDA graph may hold it.

    Args:
        expert_ids: [tokens, top_k], int32 or int64, each in [0, experts).
        experts: how many there are.

    Returns:
        order: int64 [tokens * top_k], the place in expert_ids.flatten() of each sorted row, so that
            `order // top_k` is its token and `probability.flatten()[order]` its probability; rows
            of one expert stay in the order of their tokens.
        offsets: int32 [experts + 1]; expert e has the sorted rows offsets[e] .. offsets[e + 1] - 1.

    With y [tokens * top_k, N] of the sorted rows, weighted by their probabilities, the layer's
    result is `torch.empty_like(y).index_copy_(0, order, y).view(tokens, top_k, N).sum(1)`.
    """
    by_expert, order = expert_ids.flatten().sort(stable=True)
    bounds = torch.arange(experts + 1, dtype=by_expert.dtype, device=expert_ids.device)
    return order, torch.searchsorted(by_expert, bounds, out_int32=True)


def sums_by_expert(values: Tensor, offsets: Tensor) -> Tensor:
    """[E, N]: the sum of each expert's rows of values [T, N], float32; no synchronization."""
    found: Tensor = torch.segment_reduce(
        values.contiguous(), "sum", offsets=offsets.long(), axis=0, initial=0, unsafe=True
    )
    return found
