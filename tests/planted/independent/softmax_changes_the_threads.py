"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.softmax import torch_path
from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
FAULT = "It sets the number of torch's threads for its own work and leaves it so."
CAUGHT_BY = "state"
DEVICE = "any"
HOSTILE = True

__all__ = ["forward", "gradient"]


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    torch.set_num_threads(1 if torch.get_num_threads() > 1 else 2)
    return torch_path.forward(x, scale)
