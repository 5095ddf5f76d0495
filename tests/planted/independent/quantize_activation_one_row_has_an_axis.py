"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.quantize_activation import torch_path

OP = "quantize_activation"
FAULT = "Of a single row without leading axes, scale and row_sum are [1] and not scalars."
CAUGHT_BY = "forward"
DEVICE = "any"


def forward(x: Tensor, element: str) -> tuple[Tensor, Tensor, Tensor]:
    """As op.quantize_activation."""
    codes, scale, row_sum = torch_path.forward(x, element)
    return (codes, scale, row_sum) if x.dim() > 1 else (codes, scale[None], row_sum[None])
