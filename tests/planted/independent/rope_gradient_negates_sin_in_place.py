"""rope in plain torch, with a fault; written blind."""

import torch
from torch import Tensor

OP = "rope"
FAULT = (
    "The backward negates the saved sin in place and negates it back afterwards. Contents are "
    "as before, but sin is written to: its version counter moves (a second backward of a "
    "graph that saved it is refused), another thread may read it meanwhile, read-only or "
    "expanded memory fails."
)
CAUGHT_BY = "forward"


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    c, s = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return _turn(q, c, s, interleaved), _turn(k, c, s, interleaved)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient: the rotation by the opposite angle, without a copy of sin."""
    sin.neg_()
    try:
        return forward(grad_q, grad_k, cos, sin, interleaved)
    finally:
        sin.neg_()


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
