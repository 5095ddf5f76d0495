"""rope in plain torch: each pair times a 2 x 2 matrix, in float64."""

import torch
from torch import Tensor

OP = "rope"
UNUSUAL = (
    "Pairs are gathered into an axis of two and multiplied by rotation matrices with an "
    "einsum in float64; the gradient multiplies by the transposed matrices rather than by "
    "those of -angle."
)
DEVICE = "any"


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    matrices = _matrices(cos, sin)
    return _turn(q, matrices, interleaved), _turn(k, matrices, interleaved)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    matrices = _matrices(cos, sin).transpose(-1, -2)
    return _turn(grad_q, matrices, interleaved), _turn(grad_k, matrices, interleaved)


def _matrices(cos: Tensor, sin: Tensor) -> Tensor:
    """[B or 1, S, R, 2, 2]: rows (cos, -sin) and (sin, cos)."""
    c, s = cos.double(), sin.double()
    made = torch.stack((torch.stack((c, -s), -1), torch.stack((s, c), -1)), -2)
    return made if made.dim() == 5 else made[None]


def _turn(x: Tensor, matrices: Tensor, interleaved: bool) -> Tensor:
    half = matrices.shape[-3]
    turned = x[..., : 2 * half].double()
    # [B, S, H, R, 2]: whatever way pairs lie
    if interleaved:
        pairs = turned.reshape(*x.shape[:-1], half, 2)
    else:
        pairs = turned.reshape(*x.shape[:-1], 2, half).transpose(-1, -2)
    batch = matrices.expand(x.shape[0], *matrices.shape[1:])
    made = torch.einsum("bsrij,bshrj->bshri", batch, pairs)
    if not interleaved:
        made = made.transpose(-1, -2)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    y[..., : 2 * half] = made.reshape(*x.shape[:-1], 2 * half).to(x.dtype)
    y[..., 2 * half :] = x[..., 2 * half :]
    return y
