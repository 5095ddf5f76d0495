"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.swiglu import torch_path
from tercet.ops.swiglu.torch_path import gradient

OP = "swiglu"
FAULT = "A fused tensor of three axes is halved as if all rows of a batch were one."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    if up is None and gate.dim() > 2:
        shape = (*gate.shape[:-1], gate.shape[-1] // 2)
        width = gate.shape[1:].numel() // 2
        rows = gate.reshape(gate.shape[0], 2 * width)
        return torch_path.forward(rows[:, :width], rows[:, width:]).reshape(shape)
    return torch_path.forward(gate, up)
