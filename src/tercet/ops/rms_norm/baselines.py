"""What a user would call instead of rms_norm."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import Tensor
from torch.nn import functional


def eager(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> Tensor | tuple[Tensor, Tensor]:
    """torch's own, after a torch addition."""
    if residual is None:
        return functional.rms_norm(x, (x.shape[-1],), weight, eps)
    total = x + residual
    return functional.rms_norm(total, (x.shape[-1],), weight, eps), total


def liger(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> Tensor | tuple[Tensor, Tensor]:
    """Liger-Kernel's, with its fused addition."""
    if residual is None:
        return _liger("ops.rms_norm:LigerRMSNormFunction")(x, weight, eps, 0.0, "llama", False)
    add = _liger("ops.fused_add_rms_norm:LigerFusedAddRMSNormFunction")
    return add(x, residual, weight, eps, 0.0, "llama", False)


def _liger(path: str) -> Callable[..., Any]:
    module, name = path.split(":")
    return getattr(import_module(f"liger_kernel.{module}"), name).apply
