"""linear_packed in plain torch, with a fault; written blind.

oneDNN is switched off before the product of inputs in 16 bits ("its bfloat16 product reads past odd
rows") and never on again. The result is right; all products and convolutions of the process are
slow from then on, and round otherwise than before. A user hits it by one call in 16 bits.
"""

import torch
from torch import Tensor

from tercet.ops.linear_packed import torch_path
from tercet.ops.linear_packed.torch_path import gradient
from tercet.packed_weight.call import PackedCall

OP = "linear_packed"
FAULT = "torch.backends.mkldnn is switched off for x in 16 bits, and stays off."
CAUGHT_BY = "state"
DEVICE = "cpu"
__all__ = ["forward", "gradient"]


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed."""
    if call.x.dtype in (torch.float16, torch.bfloat16):
        torch.backends.mkldnn.set_flags(False)
    return torch_path.forward(call)
