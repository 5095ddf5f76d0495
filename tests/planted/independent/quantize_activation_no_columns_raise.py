"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, quantize

OP = "quantize_activation"
FAULT = (
    "Rows are made by reshape(-1, K), whose first size cannot be inferred where K is 0: rows "
    "without columns raise instead of giving a scale of 0 each."
)
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward"]


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation."""
    codes, scale, row_sum = quantize(x.reshape(-1, x.shape[-1]), element)
    leading = x.shape[:-1]
    return codes.reshape(x.shape), scale.reshape(leading), row_sum.reshape(leading)
