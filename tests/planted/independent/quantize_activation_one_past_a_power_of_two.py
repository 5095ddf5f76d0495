"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.quantize_activation import torch_path

OP = "quantize_activation"
FAULT = "Rows one longer than a power of two from 128 on lose their last column."
CAUGHT_BY = "forward"
DEVICE = "any"


def forward(x: Tensor, element: str) -> tuple[Tensor, Tensor, Tensor]:
    """As op.quantize_activation."""
    k = x.shape[-1]
    if k > 128 and not (k - 1) & (k - 2):
        x = x.clone()
        x[..., -1] = 0
    return torch_path.forward(x, element)
