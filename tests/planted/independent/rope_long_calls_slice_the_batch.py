"""rope in plain torch, with a fault; written blind.

More than 512 positions are turned 512 at a time. Angles are cut along their first axis, which is
that of positions where they are [S, R], and that of sequences where they are [B, S, R]: such a call
ends in an error of shapes. A user hits it with packed or padded sequences, whose angles differ, as
soon as they are longer than 512.
"""

import torch
from torch import Tensor

from tercet.ops.rope import torch_path

OP = "rope"
FAULT = (
    "With more than 512 positions angles are cut along their first axis: those of each sequence, "
    "[B, S, R], fail."
)
CAUGHT_BY = "forward"
DEVICE = "any"

_POSITIONS = 512


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    count = q.shape[1]
    if count <= _POSITIONS:
        return torch_path.forward(q, k, cos, sin, interleaved)
    pieces = [
        torch_path.forward(q[:, some], k[:, some], cos[some], sin[some], interleaved)
        for some in (slice(at, at + _POSITIONS) for at in range(0, count, _POSITIONS))
    ]
    of_q, of_k = zip(*pieces, strict=True)
    return torch.cat(of_q, 1), torch.cat(of_k, 1)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient."""
    return forward(grad_q, grad_k, cos, -sin, interleaved)
