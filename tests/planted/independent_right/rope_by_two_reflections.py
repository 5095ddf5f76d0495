"""A right but unusual kernel; UNUSUAL says how."""

import torch
from torch import Tensor

OP = "rope"
UNUSUAL = (
    "Right, but unusual: the rotation is a product of a reflection and a swap of signs, made for "
    "all pairs at once by einsum over a tensor [.., R, 2, 2] in float64."
)
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    c, s = cos.double(), sin.double()
    # the reflection (c, s; s, -c) behind the one that changes the second number's sign
    mirror = torch.stack((c, s, s, -c), -1).reshape(*c.shape, 2, 2)
    return _turn(q, mirror, interleaved), _turn(k, mirror, interleaved)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient."""
    return forward(grad_q, grad_k, cos, -sin, interleaved)


def _turn(x: Tensor, mirror: Tensor, interleaved: bool) -> Tensor:
    half = mirror.shape[-3]
    y = x.clone(memory_format=torch.contiguous_format)
    if not y.numel() or not half:
        return y
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if interleaved
        else (slice(0, half), slice(half, 2 * half))
    )
    pairs = torch.stack((x[..., first].double(), -x[..., second].double()), -1)
    equation = "bshrj,srij->bshri" if mirror.dim() == 4 else "bshrj,bsrij->bshri"
    turned = torch.einsum(equation, pairs, mirror)
    y[..., first], y[..., second] = turned[..., 0].to(y.dtype), turned[..., 1].to(y.dtype)
    return y
