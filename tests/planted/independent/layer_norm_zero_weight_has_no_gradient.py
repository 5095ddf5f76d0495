"""layer_norm in plain torch, with a fault; written blind.

A weight of zeros lets no gradient through to x, so the pass is skipped, and the weight's own
gradient, which does not depend on the weight, is left at 0, too. A user hits it with weights that
begin at 0 (adaLN-zero, zero-initialised residual branches): they never learn.
"""

import torch
from torch import Tensor

from tercet.ops.layer_norm import torch_path
from tercet.ops.layer_norm.torch_path import forward

OP = "layer_norm"
FAULT = "Where weight is all zeros its own gradient is 0 as well."
CAUGHT_BY = "backward"
DEVICE = "any"
__all__ = ["forward", "gradient"]


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's layer_norm_gradient."""
    if not weight.any():
        grad_bias = weight.new_empty(0)
        if has_bias:
            rows = grad.reshape(x.shape[:-1].numel(), weight.numel())
            grad_bias = rows.sum(0, dtype=torch.float32).to(weight.dtype)
        grad_x = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        return grad_x, torch.zeros_like(weight, memory_format=torch.contiguous_format), grad_bias
    return torch_path.gradient(grad, x, weight, mean, rstd, has_bias)
