"""A right kernel; UNUSUAL says how it is unusual."""

from tercet.packed_weight.row_codes import quantize

OP = "rms_norm_quantized"
UNUSUAL = (
    "The row is summed in float64 from its end in two strides; y is float64 until it is quantized."
)
DEVICE = "any"
__all__ = ["forward"]


def forward(x, weight, residual, eps, element):
    total = x.double() if residual is None else x.double().add_(residual)
    squares = total.square().flip(-1)
    n = total.shape[-1]
    mean = (squares[..., 0::2].sum(-1) + squares[..., 1::2].sum(-1)) / n if n else squares.sum(-1)
    y = total / (mean[..., None] + eps).sqrt() * weight.double()
    kept = x.new_empty(0) if residual is None else total.to(x.dtype).contiguous()
    return *quantize(y.float(), element), kept
