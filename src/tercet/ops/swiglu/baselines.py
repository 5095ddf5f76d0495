"""What a user would call instead of swiglu."""

from importlib import import_module

from torch import Tensor
from torch.nn import functional


def eager(gate: Tensor, up: Tensor | None) -> Tensor:
    """torch's own silu, then a product."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    return functional.silu(gate) * up


def liger(gate: Tensor, up: Tensor | None) -> Tensor:
    """Liger-Kernel's, with its own function for the fused tensor."""
    module = import_module("liger_kernel.ops.swiglu")
    if up is None:
        return module.LigerFusedGateUpSiLUMulFunction.apply(gate)
    return module.LigerSiLUMulFunction.apply(gate, up)
