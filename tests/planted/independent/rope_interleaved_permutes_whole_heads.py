"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rope import torch_path

OP = "rope"
FAULT = (
    "Interleaved pairs are brought into halves over the whole head, turned there as (i, i + R), "
    "and brought back: with 2 R less than D the wrong columns are paired."
)
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    if not interleaved or q.shape[-1] % 2:
        return torch_path.forward(q, k, cos, sin, interleaved)
    halves = torch_path.forward(_part(q), _part(k), cos, sin, False)
    return _join(halves[0]), _join(halves[1])


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient."""
    return forward(grad_q, grad_k, cos, -sin, interleaved)


def _part(x: Tensor) -> Tensor:
    return torch.cat((x[..., 0::2], x[..., 1::2]), -1)


def _join(x: Tensor) -> Tensor:
    return torch.stack(x.tensor_split(2, -1), -1).flatten(-2).contiguous()
