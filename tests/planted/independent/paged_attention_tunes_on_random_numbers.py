"""A planted fault; FAULT says which."""

from functools import cache
from time import perf_counter

import torch
from torch import Tensor

from tercet.ops.paged_attention import torch_path
from tercet.ops.paged_attention.visible import gather, see

OP = "paged_attention"
FAULT = (
    "The first call of a head width and block size times two ways on numbers drawn from "
    "torch's global generator, so a seeded sampler behind it draws other tokens than in a "
    "process that was warm."
)
DEVICE = "any"
CAUGHT_BY = "state"
__all__ = ["forward"]


@cache
def _by_product(width: int, block: int) -> bool:
    """Whether a product is faster than an einsum; timed once."""
    left, right = torch.randn(8, 4, width), torch.randn(8, width, block)
    start = perf_counter()
    torch.matmul(left, right)
    middle = perf_counter()
    torch.einsum("bqd,bdn->bqn", left, right)
    return middle - start < perf_counter() - middle


def forward(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    lengths: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    scale: float,
    window: int,
    soft_cap: float,
) -> Tensor:
    """As op.paged_attention."""
    if keys.dtype == torch.uint8:
        # rows in 4 bits, as the op has them
        return torch_path.forward(
            q, keys, values, blocks, lengths, key_scales,
            value_scales, scale, window, soft_cap,
        )  # fmt: skip
    batch, new, heads, width = q.shape
    groups = keys.shape[1]
    if not q.numel() or not blocks.shape[1] * keys.shape[2]:
        return q.new_zeros(q.shape)
    seen = see(keys, blocks, lengths, new, window)[:, None, None]
    # what no query sees may be anything: NaN times a share of 0 would be NaN
    present = seen.any(-2)[:, 0, 0, :, None, None]
    k, v = (
        torch.where(present, _gather(part, scales, blocks), 0.0)
        for part, scales in ((keys, key_scales), (values, value_scales))
    )
    split = q.float().reshape(batch, new, groups, heads // groups, width)
    if _by_product(width, keys.shape[2]):
        left, right = split.permute(0, 2, 3, 1, 4), k.permute(0, 2, 3, 1)[:, :, None]
        score = torch.matmul(left, right) * scale
    else:
        score = torch.einsum("bqgrd,bngd->bgrqn", split, k) * scale
    if soft_cap:
        score = soft_cap * torch.tanh(score / soft_cap)
    share = score.masked_fill(~seen, float("-inf")).softmax(-1)
    share = torch.where(seen.any(-1, keepdim=True), share, 0.0)
    mixed = torch.einsum("bgrqn,bngd->bqgrd", share, v)
    return mixed.reshape(q.shape).to(q.dtype).contiguous()


def _gather(part: Tensor, scales: Tensor | None, blocks: Tensor) -> Tensor:
    """Keys or values [B, T * S, G, D] of each sequence, in float32."""
    found = gather(part, blocks).float()
    return found if scales is None else found * gather(scales[..., None], blocks)
