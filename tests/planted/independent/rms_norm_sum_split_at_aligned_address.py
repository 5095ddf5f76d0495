"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = (
    "The sum of squares is peeled up to the first 64-byte boundary of the memory, so its order, "
    "and the last bits of the result, depend on the address that x happens to lie at."
)
CAUGHT_BY = "determinism"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_LINE = 64


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm, in aligned pieces."""
    total = x.float() if residual is None else x.float() + residual
    width, squares = total.shape[-1], total.square()
    peel = min(-x.data_ptr() % _LINE // x.element_size(), width)
    head = torch.zeros(squares.shape[:-1], dtype=torch.float32, device=x.device)
    for column in range(peel):
        head = head + squares[..., column]
    summed = head + squares[..., peel:].sum(-1)
    rstd = (summed[..., None] / torch.full_like(summed[..., None], width) + eps).rsqrt()
    y = (total * rstd * weight).to(x.dtype).contiguous()
    kept = x.new_empty(0) if residual is None else total.to(x.dtype).contiguous()
    return y, kept, rstd.reshape(-1)
