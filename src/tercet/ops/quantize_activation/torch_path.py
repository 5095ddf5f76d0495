"""quantize_activation in plain torch, on any device."""

from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, quantize


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation."""
    return quantize(x, element)
