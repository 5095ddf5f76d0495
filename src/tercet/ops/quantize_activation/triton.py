"""quantize_activation in Triton: `kernel/device/quantize_rows.py`, as tuned for this op."""

from torch import Tensor

from tercet.kernel.device.quantize_rows import default_configuration, quantize_rows
from tercet.kernel.device.row_codes import Quantized
from tercet.kernel.tuned import configuration


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation."""
    k = x.shape[-1]
    sizes = {"M": x.shape[:-1].numel(), "K": k}
    default = default_configuration(k)
    chosen = configuration("quantize_activation", "triton", sizes, default)
    return quantize_rows(x, element, chosen)
