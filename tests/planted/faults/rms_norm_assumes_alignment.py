"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = (
    "x's address is rounded down to 16 bytes, as for vector loads: wrong where it is not "
    "a multiple."
)
CAUGHT_BY = "misaligned"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    excess = x.data_ptr() % 16 // x.element_size()
    if excess:
        x = x.as_strided(x.shape, x.stride(), x.storage_offset() - excess)
    total = x.float() if residual is None else x.float() + residual.float()
    rstd = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    y = (total * rstd * weight.float()).to(x.dtype)
    kept = x.new_empty(0) if residual is None else total.to(x.dtype)
    return y, kept, rstd.reshape(-1)
