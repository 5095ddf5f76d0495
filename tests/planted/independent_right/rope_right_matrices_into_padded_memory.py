"""A right kernel that is unusual; FAULT says how."""

import torch
from torch import Tensor

OP = "rope"
FAULT = (
    "None: pairs are multiplied by 2 x 2 matrices in float64, and results lie 16 elements behind "
    "the start of their own, fresh memory, so their storage offset is not 0."
)
CAUGHT_BY = ""
DEVICE = "any"

__all__ = ["forward", "gradient"]

_PAD = 16


def _turn(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    pairs, c, s = cos.shape[-1], cos.double(), sin.double()
    matrices = torch.stack((torch.stack((c, -s), -1), torch.stack((s, c), -1)), -2).unsqueeze(-4)
    turned = x[..., : 2 * pairs].double()
    split = (pairs, 2) if interleaved else (2, pairs)
    both = turned.reshape(*x.shape[:-1], *split)
    both = both if interleaved else both.transpose(-1, -2)
    new = (matrices * both.unsqueeze(-2)).sum(-1)
    new = new if interleaved else new.transpose(-1, -2)
    memory = torch.empty(_PAD + x.numel(), dtype=x.dtype, device=x.device)
    y = memory[_PAD:].view(x.shape)
    y[..., : 2 * pairs] = new.reshape(turned.shape).to(x.dtype)
    y[..., 2 * pairs :] = x[..., 2 * pairs :]
    return y


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    return _turn(q, cos, sin, interleaved), _turn(k, cos, sin, interleaved)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient."""
    return forward(grad_q, grad_k, cos, -sin, interleaved)
