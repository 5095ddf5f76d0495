"""rope in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

OP = "rope"
UNUSUAL = (
    "Each column takes its partner through a table of columns and turns alone, with a sign, in "
    "float64; the heads of q and k are turned as one tensor and parted again."
)
DEVICE = "any"


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    half = cos.shape[-1]
    column = torch.arange(2 * half, device=q.device)
    if interleaved:
        partner, pair, second = column ^ 1, column // 2, column % 2 == 1
    else:
        partner = (column + half) % max(2 * half, 1)
        pair, second = column % max(half, 1), column >= half
    sign = torch.where(second, 1.0, -1.0).double()
    heads = torch.cat((q, k), 2)
    turned = heads[..., : 2 * half].double()
    along = cos.double().index_select(-1, pair).unsqueeze(-2)
    across = (sin.double().index_select(-1, pair) * sign).unsqueeze(-2)
    found = turned * along + turned.index_select(-1, partner) * across
    y = heads.clone(memory_format=torch.contiguous_format)
    y[..., : 2 * half] = found.float().to(q.dtype)
    of_q, of_k = y.split((q.shape[2], k.shape[2]), 2)
    return (
        of_q.clone(memory_format=torch.contiguous_format),
        of_k.clone(memory_format=torch.contiguous_format),
    )


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient."""
    return forward(grad_q, grad_k, cos, -sin, interleaved)
