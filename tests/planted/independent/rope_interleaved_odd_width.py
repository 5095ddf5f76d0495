"""A planted fault; FAULT says which."""

import torch
from torch import Tensor
from torch.nn.functional import pad

OP = "rope"
FAULT = (
    "With interleaved pairs an odd head width is cut to whole pairs, so the last column, "
    "which has no partner, comes out as 0 rather than copied."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
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
    if interleaved:
        width = x.shape[-1]
        pairs = x[..., : width // 2 * 2].unflatten(-1, (width // 2, 2)).float()
        one, two = pairs[..., :half, 0], pairs[..., :half, 1]
        turned = torch.stack((one * cos - two * sin, two * cos + one * sin), -1)
        joined = torch.cat((turned, pairs[..., half:, :]), -2).flatten(-2)
        return pad(joined, (0, width % 2)).to(x.dtype)
    first, second = (x[..., column].float() for column in columns)
    y[..., columns[0]] = first * cos - second * sin
    y[..., columns[1]] = second * cos + first * sin
    return y
