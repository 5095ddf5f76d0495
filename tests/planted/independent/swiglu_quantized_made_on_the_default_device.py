"""swiglu_quantized in plain torch, with a fault; written blind.

The float32 product is written into memory that is made without saying on which device. A user hits
it under torch.device("meta"), in which models are built without memory, or after
torch.set_default_device("cuda") with tensors on the CPU: an error of devices.
"""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, quantize

OP = "swiglu_quantized"
FAULT = (
    "The product is written to a tensor on the caller's default device: under another default than "
    "gate's device the call fails."
)
CAUGHT_BY = "context"
DEVICE = "cpu"


def forward(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    """As op.swiglu_quantized."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    y = torch.empty(gate.shape, dtype=torch.float32)
    torch.mul(wide * torch.sigmoid(wide), up.float(), out=y)
    return quantize(y, element)
