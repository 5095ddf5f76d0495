"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.quantize_activation import torch_path

OP = "quantize_activation"
FAULT = (
    "It zeroes the gap between rows that lie apart, to read whole vectors: columns of someone else."
)
CAUGHT_BY = "guard"
DEVICE = "any"

_VECTOR = 16


def forward(x: Tensor, element: str) -> tuple[Tensor, Tensor, Tensor]:
    """As op.quantize_activation."""
    if x.dim() == 2 and x.numel() and x.stride(1) == 1 and x.stride(0) > x.shape[1]:
        rows, k = x.shape
        gap = min(-k % _VECTOR, x.stride(0) - k)
        x.as_strided((rows - 1, gap), x.stride(), x.storage_offset() + k).zero_()
    return torch_path.forward(x, element)
