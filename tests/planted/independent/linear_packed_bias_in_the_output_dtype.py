"""linear_packed in plain torch, with a fault; written blind.

The bias is converted to the output's dtype when it is loaded. A float32 bias may be larger than
float16's largest number while the sum is not: it becomes inf, and so does the result. Even where it
fits it is rounded once more than the one rounding that is promised. A user hits it with float16
outputs and a float32 bias that cancels a large product.
"""

from dataclasses import replace

from torch import Tensor

from tercet.ops.linear_packed import torch_path
from tercet.ops.linear_packed.torch_path import gradient
from tercet.packed_weight.call import PackedCall

OP = "linear_packed"
FAULT = (
    "A float32 bias is rounded to the output's dtype before it is added: in float16 one beyond "
    "65504 makes inf of a sum that is in range."
)
CAUGHT_BY = "values"
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed."""
    if call.bias is not None:
        call = replace(call, bias=call.bias.to(call.out_dtype))
    return torch_path.forward(call)
