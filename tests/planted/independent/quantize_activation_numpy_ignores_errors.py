"""A planted fault; FAULT says which."""

import numpy as np
from torch import Tensor

from tercet.ops.quantize_activation import torch_path

OP = "quantize_activation"
FAULT = "It has numpy ignore divisions by zero and invalid numbers, and leaves it so."
CAUGHT_BY = "state"
DEVICE = "any"
HOSTILE = True


def forward(x: Tensor, element: str) -> tuple[Tensor, Tensor, Tensor]:
    """As op.quantize_activation."""
    np.seterr(divide="ignore", invalid="ignore")
    return torch_path.forward(x, element)
