"""rope in plain torch, with a fault; written blind.

As a kernel with one program for each query head would, the loop goes over the heads of q and takes
the key head of the same number along, if there is one. With more key heads than query heads, which
the op allows, the last of them are not turned. A user hits it with a call that rotates keys alone
(q with one head or none), as for a cache that is rotated anew.
"""

import torch
from torch import Tensor

OP = "rope"
FAULT = (
    "With more key heads than query heads, those beyond the number of query heads stay as they are."
)
CAUGHT_BY = "forward"
DEVICE = "any"


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    half = cos.shape[-1]
    if interleaved:
        columns = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        columns = slice(0, half), slice(half, 2 * half)
    turned = [x.clone(memory_format=torch.contiguous_format) for x in (q, k)]
    for head in range(q.shape[2]):
        for x, y in zip((q, k), turned, strict=True):
            if head < x.shape[2]:
                first, second = (x[:, :, head, part].float() for part in columns)
                y[:, :, head, columns[0]] = (first * cos - second * sin).to(x.dtype)
                y[:, :, head, columns[1]] = (second * cos + first * sin).to(x.dtype)
    return turned[0], turned[1]


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient."""
    return forward(grad_q, grad_k, cos, -sin, interleaved)
