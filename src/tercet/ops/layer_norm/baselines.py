"""What a user would call instead of layer_norm."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def eager(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """torch's own."""
    return functional.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def liger(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Liger-Kernel's; it always adds a bias, so without one it adds zeros."""
    module = import_module("liger_kernel.ops.layer_norm")
    apply: Callable[..., Any] = module.LigerLayerNormFunction.apply
    return apply(x, weight, torch.zeros_like(weight) if bias is None else bias, eps)
