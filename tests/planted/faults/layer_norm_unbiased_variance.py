"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.layer_norm.torch_path import gradient

OP = "layer_norm"
FAULT = "The variance divides by N - 1, as a sample's does."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    mean = x.float().mean(-1, keepdim=True)
    # again, for what the first sum rounded off: a constant row has to become zeros
    mean = mean + (x.float() - mean).mean(-1, keepdim=True)
    centered = x.float() - mean
    rstd = (centered.square().sum(-1, keepdim=True) / (x.shape[-1] - 1) + eps).rsqrt()
    y = centered * rstd * weight.float()
    if bias is not None:
        y = y + bias.float()
    return y.to(x.dtype), mean.reshape(-1), rstd.reshape(-1)
