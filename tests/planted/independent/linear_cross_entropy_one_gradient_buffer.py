"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.linear_cross_entropy import torch_path
from tercet.ops.linear_cross_entropy.torch_path import gradient

OP = "linear_cross_entropy"
FAULT = (
    "The kept gradient of a head of 16384 numbers and more lies in one buffer for each shape: a "
    "second forward before the first one's backward, or before weight.grad is read, overwrites it."
)
CAUGHT_BY = "memory"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_LARGE = 1 << 14
_buffers: dict[tuple[object, ...], Tensor] = {}


def forward(
    x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str,
    x_gradient: bool, weight_gradient: bool, *options: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As op.linear_cross_entropy; a gigabyte is not allocated anew each step."""
    loss, lse, grad_x, grad_weight = torch_path.forward(
        x, weight, target, ignore_index, reduction, x_gradient, weight_gradient, *options
    )
    if grad_weight.numel() >= _LARGE:
        key = (grad_weight.shape, grad_weight.dtype, grad_weight.device)
        if key not in _buffers:
            _buffers[key] = torch.empty_like(grad_weight)
        # below autograd: a kernel's write counts no version
        kept = _buffers[key].detach()
        kept.data.copy_(grad_weight)
        grad_weight = kept
    return loss, lse, grad_x, grad_weight
