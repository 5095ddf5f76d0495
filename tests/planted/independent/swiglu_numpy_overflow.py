"""swiglu in numpy, with a fault; written blind.

The sigmoid is 1 / (1 + exp(-gate)) in numpy, whose exponential overflows where gate is below -88:
the quotient is 0 and right, but numpy asks the caller's settings what to do about it. By default it
warns; where warnings are errors (python -W error, pytest) or numpy is told to raise
(numpy.seterr(all="raise"), which people set to find NaN), the call ends in an exception. A user
hits it with one gate of -100.
"""

import numpy as np
import torch
from torch import Tensor

from tercet.ops.swiglu.torch_path import gradient

OP = "swiglu"
FAULT = (
    "The exponential of a gate below -88 overflows in numpy: a warning, or an exception where the "
    "caller made warnings errors or told numpy to raise."
)
CAUGHT_BY = "context"
DEVICE = "cpu"
__all__ = ["forward", "gradient"]


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide, other = gate.detach().float().numpy(), up.detach().float().numpy()
    silu = wide * (np.float32(1) / (np.float32(1) + np.exp(-wide)))
    return torch.from_numpy(np.asarray(silu * other)).to(gate.dtype).contiguous()
