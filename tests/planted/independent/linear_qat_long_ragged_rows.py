"""A planted fault; FAULT says which."""

from dataclasses import replace

from torch import Tensor

from tercet.ops.linear_qat import torch_path
from tercet.ops.linear_qat.arguments import QatCall
from tercet.ops.linear_qat.torch_path import gradient

OP = "linear_qat"
FAULT = (
    "Of rows longer than 1024 the columns behind the last whole 128 are left out of the product."
)
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(call: QatCall) -> tuple[Tensor, Tensor, Tensor]:
    """As op.linear_qat."""
    k = call.codes.shape[1]
    codes = call.codes
    if k > 1024 and k % 128:
        codes = codes.clone()
        codes[:, k // 128 * 128 :] = 0
    return torch_path.forward(replace(call, codes=codes))
