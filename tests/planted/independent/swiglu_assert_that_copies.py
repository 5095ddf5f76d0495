"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.swiglu import torch_path
from tercet.ops.swiglu.torch_path import gradient

OP = "swiglu"
FAULT = (
    "The fused halves are written to the result inside an assert statement: under `python -O` "
    "(PYTHONOPTIMIZE) asserts are left out, and what is returned is uninitialised memory."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    if up is not None:
        return torch_path.forward(gate, up)
    y = gate.new_empty((*gate.shape[:-1], gate.shape[-1] // 2))
    assert y.copy_(torch_path.forward(gate, None)).is_contiguous(), "y must be contiguous"
    return y
