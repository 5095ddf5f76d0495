"""What a user would call instead of gelu_gate."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import Tensor
from torch.nn import functional


def eager(gate: Tensor, up: Tensor) -> Tensor:
    """torch's own GELU, then a product."""
    return functional.gelu(gate, approximate="tanh") * up


def liger(gate: Tensor, up: Tensor) -> Tensor:
    """Liger-Kernel's."""
    module = import_module("liger_kernel.ops.geglu")
    run: Callable[..., Any] = module.LigerGELUMulFunction.apply
    return run(gate, up)
