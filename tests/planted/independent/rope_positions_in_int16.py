"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rope import torch_path

OP = "rope"
FAULT = (
    "The row of the angles that a token reads is kept in int16: from position 32768 on it wraps "
    "around and, as a negative index, silently names another row."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def _rows(angles: Tensor) -> Tensor:
    """The angles in the order of the tokens."""
    tokens = torch.arange(angles.shape[-2], device=angles.device).to(torch.int16)
    return angles.index_select(-2, tokens.long() % max(angles.shape[-2], 1))


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    return torch_path.forward(q, k, _rows(cos), _rows(sin), interleaved)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient."""
    return torch_path.gradient(grad_q, grad_k, _rows(cos), _rows(sin), interleaved)
