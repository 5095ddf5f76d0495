"""rope in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

OP = "rope"
UNUSUAL = "Pairs are complex numbers, turned by one complex product (its conjugate backward)."


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    turn = torch.complex(cos.float(), sin.float()).unsqueeze(-2)
    return _turn(q, turn, interleaved), _turn(k, turn, interleaved)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient."""
    turn = torch.complex(cos.float(), -sin.float()).unsqueeze(-2)
    return _turn(grad_q, turn, interleaved), _turn(grad_k, turn, interleaved)


def _turn(x: Tensor, turn: Tensor, interleaved: bool) -> Tensor:
    half = turn.shape[-1]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    y[..., 2 * half :] = x[..., 2 * half :]
    if interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    turned = torch.complex(x[..., first].float(), x[..., second].float()) * turn
    y[..., first] = turned.real
    y[..., second] = turned.imag
    return y
