"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.rms_norm_quantized import torch_path

OP = "rms_norm_quantized"
FAULT = "eps is 1e-6, whatever the caller gives."
CAUGHT_BY = "forward"
DEVICE = "any"

_EPS = 1e-6


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, element: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As op.rms_norm_quantized."""
    del eps
    return torch_path.forward(x, weight, residual, _EPS, element)
