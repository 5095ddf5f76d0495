"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

OP = "rope"
FAULT = (
    "Where every sine is 0, as at position 0, q and k are copied, though the cosines may be"
    " other than 1, as YaRN's attention factor makes them."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    if not bool(sin.any()):
        # position 0 turns nothing
        return (
            q.clone(memory_format=torch.contiguous_format),
            k.clone(memory_format=torch.contiguous_format),
        )
    c, s = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return _turn(q, c, s, interleaved), _turn(k, c, s, interleaved)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient: the rotation by the opposite angle."""
    return forward(grad_q, grad_k, cos, -sin, interleaved)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    half = cos.shape[-1]
    y = x.clone(memory_format=torch.contiguous_format)
    columns = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if interleaved
        else (slice(0, half), slice(half, 2 * half))
    )
    first, second = (x[..., column].float() for column in columns)
    y[..., columns[0]] = first * cos - second * sin
    y[..., columns[1]] = second * cos + first * sin
    return y
