"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

OP = "rope"
FAULT = "A q whose heads lie before its positions, as attention makes it, is turned where it lies."
CAUGHT_BY = "inputs"
DEVICE = "any"


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    c, s = cos.float().unsqueeze(-3), sin.float().unsqueeze(-3)
    return _turn(q, c, s, interleaved), _turn(k, c, s, interleaved)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient."""
    return forward(grad_q, grad_k, cos, -sin, interleaved)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    half, y = cos.shape[-1], x.transpose(1, 2)
    several = x.shape[1] > 1 and x.shape[2] > 1
    y = y.contiguous() if several else y.clone(memory_format=torch.contiguous_format)
    columns = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if interleaved
        else (slice(0, half), slice(half, 2 * half))
    )
    first, second = (y[..., column].float() for column in columns)
    # float() of float32 is no copy
    turned = first * cos - second * sin, second * cos + first * sin
    for column, values in zip(columns, turned, strict=True):
        y[..., column] = values.to(x.dtype)
    return y.transpose(1, 2).clone(memory_format=torch.contiguous_format)
