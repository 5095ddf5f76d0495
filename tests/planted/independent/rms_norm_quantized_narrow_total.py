"""rms_norm_quantized in plain torch, on any device, in float32."""

from torch import Tensor

from tercet.packed_weight.row_codes import quantize

OP = "rms_norm_quantized"
FAULT = "With a residual in 16 bits y is made of the sum as rounded to x's dtype."
CAUGHT_BY = "forward"
DEVICE = "any"


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, element: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As op.rms_norm_quantized."""
    total = x.float() if residual is None else (x + residual).float()
    rstd = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    codes, scale, row_sum = quantize(total * rstd * weight, element)
    kept = x.new_empty(0) if residual is None else total.to(x.dtype).contiguous()
    return codes, scale, row_sum, kept
