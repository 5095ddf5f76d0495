"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

OP = "rope"
FAULT = (
    "Where cos and sin have q's 16-bit dtype the rotation is computed in it, as transformers "
    "does: each product is rounded, and where they cancel the result is far off."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    c, s = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return _turn(q, c, s, interleaved), _turn(k, c, s, interleaved)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    return forward(grad_q, grad_k, cos, -sin, interleaved)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    half = cos.shape[-1]
    y = x.clone(memory_format=torch.contiguous_format)
    columns = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if interleaved
        else (slice(0, half), slice(half, 2 * half))
    )
    # float32 angles widen the products by themselves
    first, second = (x[..., column] for column in columns)
    y[..., columns[0]] = (first * cos - second * sin).to(x.dtype)
    y[..., columns[1]] = (second * cos + first * sin).to(x.dtype)
    return y
