"""rms_norm_quantized in plain torch, with a fault; written blind.

rstd and weight are multiplied first, as one factor. Where rows are large and weights small (1e5 and
1e-36, say) their product is subnormal and has few bits, or 0, though total * rstd * weight has all
of them; where rows are small and weights large it is inf. Codes are off by many, or 0. A user hits
it with weights that were scaled down, or that took a scale of what follows into them.
"""

from torch import Tensor

from tercet.packed_weight.row_codes import quantize

OP = "rms_norm_quantized"
FAULT = (
    "rstd * weight is computed first: with large rows and tiny weights it is subnormal or 0, with "
    "small rows and huge weights inf, where the result is neither."
)
CAUGHT_BY = "forward"
DEVICE = "any"


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, element: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As op.rms_norm_quantized."""
    total = x.float() if residual is None else x.float() + residual
    rstd = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    codes, scale, row_sum = quantize(total * (rstd * weight), element)
    kept = x.new_empty(0) if residual is None else total.to(x.dtype).contiguous()
    return codes, scale, row_sum, kept
