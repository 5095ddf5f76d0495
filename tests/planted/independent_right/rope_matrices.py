"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

OP = "rope"
UNUSUAL = (
    "Each pair times a 2 x 2 matrix by einsum in double precision; the gradient by the "
    "transposed one."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]


def _turn(x: Tensor, matrix: Tensor, interleaved: bool) -> Tensor:
    """matrix [B or 1, S, R, 2, 2]."""
    count = matrix.shape[2]
    lead = x.shape[:3]
    turned = x[..., : 2 * count].double()
    pairs = turned.reshape(*lead, count, 2) if interleaved else turned.reshape(*lead, 2, count).mT
    made = torch.einsum("bsrij,bshrj->bshri", matrix.expand(lead[0], *matrix.shape[1:]), pairs)
    flat = (made if interleaved else made.mT).reshape(*lead, 2 * count).to(x.dtype)
    return torch.cat((flat, x[..., 2 * count :]), -1).contiguous()


def _run(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    c, s = cos.double(), sin.double()
    matrix = torch.stack((c, -s, s, c), -1).unflatten(-1, (2, 2))
    matrix = matrix if cos.dim() == 3 else matrix[None]
    return _turn(q, matrix, interleaved), _turn(k, matrix, interleaved)


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    return _run(q, k, cos, sin, interleaved)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient."""
    return _run(grad_q, grad_k, cos, -sin, interleaved)
