"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.swiglu import torch_path
from tercet.ops.swiglu.torch_path import gradient

OP = "swiglu"
FAULT = (
    "In inference mode a contiguous gate that was itself made in inference mode is taken for a "
    "temporary: y is written over it and returned as the same tensor, so the caller's gate is lost."
)
CAUGHT_BY = "inputs"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu; nobody differentiates in inference mode, so no gate has to be kept."""
    y = torch_path.forward(gate, up)
    reusable = torch.is_inference_mode_enabled() and gate.is_inference() and gate.is_contiguous()
    if up is not None and reusable:
        return gate.copy_(y)
    return y
