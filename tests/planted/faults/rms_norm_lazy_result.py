"""A planted fault; FAULT says which."""

from collections.abc import Callable

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = (
    "y is a tensor subclass that does its work when it is first read, after the timer has stopped."
)
CAUGHT_BY = "opcheck"
DEVICE = "any"

__all__ = ["forward", "gradient"]


class _Lazy(Tensor):
    work: Callable[[], Tensor]

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Computes on first use."""
        done = [arg.work() if isinstance(arg, _Lazy) else arg for arg in args]
        with torch._C.DisableTorchFunctionSubclass():
            return func(*done, **(kwargs or {}))


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    _, kept, rstd = torch_path.forward(x, weight, residual, eps)
    y = torch.zeros_like(x).as_subclass(_Lazy)
    y.work = lambda: torch_path.forward(x, weight, residual, eps)[0]
    return y, kept, rstd
