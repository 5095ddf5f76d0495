"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.embedding_packed import torch_path
from tercet.packed_weight.weight import PreparedWeight

OP = "embedding_packed"
FAULT = (
    "Gradients are switched off for the call and on again at its end, but not where it raises: "
    "after an id out of range was refused (and caught), the thread's grad mode stays off."
)
CAUGHT_BY = "state"
DEVICE = "cpu"

__all__ = ["forward"]


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed; it is not differentiable."""
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    y = torch_path.forward(ids, weight, dtype)
    torch.set_grad_enabled(before)
    return y
