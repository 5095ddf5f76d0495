"""linear_qat in plain torch, with a fault; written blind.

Products of up to 4096 columns are one float32 product, for "sums of codes are small integers". They
are where signs are mixed. Where codes of a row agree in sign with those of the weight over the
first thousands of columns, and disagree over the rest, partial sums pass 2^24 and odd numbers are
rounded, and what is left of the difference is those roundings. A user hits it with activations that
have one sign (behind a ReLU) and int8 weights with large halves of opposite sign.
"""

import torch
from torch import Tensor

from tercet.ops.linear_qat import torch_path
from tercet.ops.linear_qat.arguments import QatCall
from tercet.ops.linear_qat.torch_path import gradient
from tercet.packed_weight.row_codes import quantize

OP = "linear_qat"
FAULT = (
    "Rows of up to 4096 columns are multiplied in one float32 product, whose partial sums may "
    "exceed 2^24: where they cancel, what is left is wrong."
)
CAUGHT_BY = "forward"
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(call: QatCall) -> tuple[Tensor, Tensor, Tensor]:
    """As op.linear_qat."""
    x, scale, bias, x_codes, x_scale = call.x, call.scale, call.bias, call.x_codes, call.x_scale
    m, k = x.shape[:-1].numel(), x.shape[-1]
    if k > 4096:
        return torch_path.forward(call)
    kept = (x.new_empty(0, dtype=torch.int8), x.new_empty(0, dtype=torch.float32))
    if x_codes is None or x_scale is None:
        kept = quantize(x.reshape(m, k), "int8")[:2]
        x_codes, x_scale = kept
    y = x_codes.reshape(m, k).float() @ call.codes.float().T
    y, rows = y * scale.reshape(-1), x_scale.reshape(m, 1)
    y = y * rows if bias is None else (y.double() * rows + bias).float()
    return y.to(call.out_dtype).reshape(*x.shape[:-1], len(call.codes)), *kept
