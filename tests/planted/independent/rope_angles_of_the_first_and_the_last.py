"""rope in plain torch, with a fault; written blind.

Angles of each sequence are often the same for all, and then need reading once. Whether they are is
asked of the first and the last sequence alone. A user hits it with three and more sequences of
which some in the middle are padded on the left, or continue at another position, and the first and
the last are not.
"""

import torch
from torch import Tensor

from tercet.ops.rope import torch_path

OP = "rope"
FAULT = (
    "Angles [B, S, R] whose first and last sequence are equal are taken to be the first one's for "
    "all."
)
CAUGHT_BY = "forward"
DEVICE = "any"


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    return torch_path.forward(q, k, *_once(cos, sin), interleaved)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient."""
    return torch_path.gradient(grad_q, grad_k, *_once(cos, sin), interleaved)


def _once(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    several = cos.dim() == 3 and len(cos) > 1
    if several and torch.equal(cos[0], cos[-1]) and torch.equal(sin[0], sin[-1]):
        return cos[0], sin[0]
    return cos, sin
