"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

OP = "rope"
UNUSUAL = "Pairs as complex128 numbers times cos + i sin, the gradient times the conjugate."
DEVICE = "any"
__all__ = ["forward", "gradient"]


def _pairs(x: Tensor, half: int, interleaved: bool) -> Tensor:
    turned = x[..., : 2 * half].double()
    if interleaved:
        parts = turned.unflatten(-1, (half, 2)).unbind(-1)
    else:
        parts = turned.unflatten(-1, (2, half)).unbind(-2)
    return torch.complex(*parts)


def _turn(x: Tensor, by: Tensor, interleaved: bool) -> Tensor:
    half = by.shape[-1]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    y[..., 2 * half :] = x[..., 2 * half :]
    if half and x.numel():
        z = _pairs(x, half, interleaved)
        # by hand: a complex product would take inf * 0 into both parts no otherwise, but may fuse
        real = z.real * by.real - z.imag * by.imag
        imaginary = z.imag * by.real + z.real * by.imag
        parts = torch.stack((real, imaginary), -1 if interleaved else -2)
        y[..., : 2 * half] = parts.flatten(-2).to(x.dtype)
    return y


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    by = torch.complex(cos.double(), sin.double()).unsqueeze(-2)
    return _turn(q, by, interleaved), _turn(k, by, interleaved)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient."""
    by = torch.complex(cos.double(), -sin.double()).unsqueeze(-2)
    return _turn(grad_q, by, interleaved), _turn(grad_k, by, interleaved)
