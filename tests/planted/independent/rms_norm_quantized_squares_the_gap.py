"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.packed_weight.row_codes import quantize

OP = "rms_norm_quantized"
FAULT = "The mean of squares counts what lies in the gap behind a row, up to a whole vector."
CAUGHT_BY = "poison"
DEVICE = "any"

_VECTOR = 8


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, element: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As op.rms_norm_quantized."""
    total = x.float() if residual is None else x.float() + residual.float()
    squares = total.square().sum(-1, keepdim=True)
    rows, n = x.shape[:-1].numel(), x.shape[-1]
    if x.dim() == 2 and x.numel() and x.stride(1) == 1 and x.stride(0) > n:
        gap = min(-n % _VECTOR, x.stride(0) - n)
        behind = x.as_strided((rows - 1, gap), x.stride(), x.storage_offset() + n)
        squares[:-1] += behind.float().square().sum(-1, keepdim=True)
    rstd = (squares / n + eps).rsqrt() if n else squares
    codes, scale, row_sum = quantize(total * rstd * weight.float(), element)
    kept = x.new_empty(0) if residual is None else total.to(x.dtype).contiguous()
    return codes, scale, row_sum, kept
