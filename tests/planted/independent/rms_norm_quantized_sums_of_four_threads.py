"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import quantize

OP = "rms_norm_quantized"
FAULT = "There is room for four threads' partial sums: with more threads the others' are lost."
CAUGHT_BY = "context"
DEVICE = "any"

_ROOM = 4


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, element: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As op.rms_norm_quantized."""
    total = x.float() if residual is None else x.float() + residual.float()
    # columns are dealt to threads
    parts = total.square().tensor_split(torch.get_num_threads(), -1)[:_ROOM]
    squares = torch.stack([part.sum(-1, keepdim=True) for part in parts]).sum(0)
    rstd = (squares / max(1, x.shape[-1]) + eps).rsqrt()
    codes, scale, row_sum = quantize(total * rstd * weight.float(), element)
    kept = x.new_empty(0) if residual is None else total.to(x.dtype).contiguous()
    return codes, scale, row_sum, kept
