"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.packed_weight.row_codes import quantize

OP = "rms_norm_quantized"
FAULT = (
    "Without a residual it is torch's rms_norm and then a quantization: y is rounded to x's 16 "
    "bits between the two, and codes and scales are those of the rounded y; float32, or a "
    "residual, is right."
)
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, element: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As op.rms_norm_quantized."""
    total = x.float() if residual is None else x.float() + residual
    rstd = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    y = total * rstd * weight
    if residual is None:
        return *quantize(y.to(x.dtype), element), x.new_empty(0)
    return *quantize(y, element), total.to(x.dtype).contiguous()
