"""quantize_activation in Triton: `packed_weight/triton/quantize_rows.py`, as tuned for this op."""

from torch import Tensor

from tercet.kernel.tuned import configuration
from tercet.packed_weight.row_codes import Quantized
from tercet.packed_weight.triton.quantize_rows import default_configuration, quantize_rows


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation."""
    k = x.shape[-1]
    sizes = {"M": x.shape[:-1].numel(), "K": k}
    default = default_configuration(k)
    chosen = configuration("quantize_activation", "triton", sizes, default)
    return quantize_rows(x, element, chosen)
