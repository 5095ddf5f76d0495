"""rope in plain torch, with a fault; written blind."""

import torch
from torch import Tensor

OP = "rope"
FAULT = (
    "The backward keeps the angles in float32 by address, shape and dtype of cos and sin. "
    "Shows in gradients only, when other angles come to lie at the same addresses with the "
    "same shape (an in-place update for longer contexts, or memory that was freed and taken "
    "again)."
)
CAUGHT_BY = "forward"

_ANGLES: dict = {}


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    c, s = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return _turn(q, c, s, interleaved), _turn(k, c, s, interleaved)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient: the rotation by the opposite angle, which all layers share."""
    key = (cos.data_ptr(), sin.data_ptr(), tuple(cos.shape), cos.stride(), cos.dtype, cos.device)
    if key not in _ANGLES:
        if len(_ANGLES) >= 32:
            _ANGLES.clear()
        _ANGLES[key] = (cos.float().clone().unsqueeze(-2), -sin.float().unsqueeze(-2))
    c, s = _ANGLES[key]
    return _turn(grad_q, c, s, interleaved), _turn(grad_k, c, s, interleaved)


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
