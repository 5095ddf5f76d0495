"""What a user would call instead of linear_cross_entropy, and the floor: its products alone."""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_Options = Any


def eager(
    x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str, **_: _Options
) -> Tensor:
    """torch's own, with whole logits, in float32 from them on."""
    logits = functional.linear(x, weight).float()
    return functional.cross_entropy(logits, target, ignore_index=ignore_index, reduction=reduction)


def liger(
    x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str, **_: _Options
) -> Tensor:
    """Liger-Kernel's fused linear cross entropy: chunks of tokens."""
    module = import_module("liger_kernel.ops.fused_linear_cross_entropy")
    run = module.LigerFusedLinearCrossEntropyFunction.apply
    loss = run(x, weight, target, None, None, ignore_index, 0.0, 0.0, reduction)
    return loss[0]


class _Products(torch.autograd.Function):
    """logits = x weight^T forward; both gradients of a product backward; no softmax."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        logits = x @ weight.T
        ctx.save_for_backward(x, weight, logits)
        return logits[:1, :1].float().sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        del grads
        x, weight, logits = ctx.saved_tensors
        return logits @ weight, logits.T @ x


def three_products(x: Tensor, weight: Tensor, **_: _Options) -> Tensor:
    """Not the loss: only the three matrix products that it cannot do without, each whole."""
    products: Any = _Products
    return products.apply(x, weight)
