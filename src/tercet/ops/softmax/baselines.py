"""What a user would call instead of softmax."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor


def eager(x: Tensor, scale: float) -> Tensor:
    """torch's own, after a torch product where there is a scale."""
    return torch.softmax(x if scale == 1 else x * scale, -1)


def liger(x: Tensor, scale: float) -> Tensor:
    """Liger-Kernel's, after a torch product where there is a scale; rows of at most 65536."""
    module = import_module("liger_kernel.ops.softmax")
    apply: Callable[..., Any] = module.LigerSoftmaxFunction.apply
    return apply(x if scale == 1 else x * scale)
