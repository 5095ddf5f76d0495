"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

OP = "rope"
UNUSUAL = (
    "Each pair is a vector that a 2 x 2 matrix of its angle turns, by one einsum in float64; "
    "the gradient multiplies with the transposed matrix; pairs are gathered and scattered by "
    "index."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    turn = _matrices(cos, sin)
    return _turned(q, turn, interleaved), _turned(k, turn, interleaved)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient."""
    turn = _matrices(cos, sin).transpose(-1, -2)
    return _turned(grad_q, turn, interleaved), _turned(grad_k, turn, interleaved)


def _matrices(cos: Tensor, sin: Tensor) -> Tensor:
    """[(B,) S, R, 2, 2]."""
    c, s = cos.double(), sin.double()
    return torch.stack((torch.stack((c, -s), -1), torch.stack((s, c), -1)), -2)


def _turned(x: Tensor, turn: Tensor, interleaved: bool) -> Tensor:
    pairs = turn.shape[-3]
    at = torch.arange(2 * pairs, device=x.device)
    at = at.reshape(pairs, 2) if interleaved else at.reshape(2, pairs).t()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    y.copy_(x)
    vectors = x[..., at.reshape(-1)].double().reshape(*x.shape[:-1], pairs, 2)
    batched = "bsrij" if turn.dim() == 5 else "srij"
    turned = torch.einsum(f"{batched},bshrj->bshri", turn, vectors)
    y[..., at.reshape(-1)] = turned.reshape(*x.shape[:-1], 2 * pairs).to(x.dtype)
    return y
