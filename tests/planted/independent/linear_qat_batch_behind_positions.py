"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.linear_qat import torch_path
from tercet.ops.linear_qat.arguments import QatCall
from tercet.ops.linear_qat.torch_path import gradient

OP = "linear_qat"
FAULT = "The rows of an x of three axes are written with the first two axes swapped."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(call: QatCall) -> tuple[Tensor, Tensor, Tensor]:
    """As op.linear_qat."""
    y, codes, scale = torch_path.forward(call)
    if y.dim() == 3:
        batch, tokens, n = y.shape
        y = y.transpose(0, 1).reshape(batch, tokens, n)
    return y, codes, scale
