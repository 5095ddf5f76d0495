"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.swiglu import torch_path
from tercet.ops.swiglu.torch_path import gradient

OP = "swiglu"
FAULT = "Where 64 divides the number of rows, the last row stays zero."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    y = torch_path.forward(gate, up)
    rows = y.shape[:-1].numel()
    if rows and rows % 64 == 0:
        y.view(rows, y.shape[-1])[-1] = 0
    return y
