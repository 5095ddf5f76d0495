"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.layer_norm import torch_path

OP = "layer_norm"
FAULT = "The gradient takes mean and rstd of the last forward pass of that many rows, not its own."
CAUGHT_BY = "context"
DEVICE = "any"

_last: dict[object, tuple[Tensor, Tensor]] = {}


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    y, mean, rstd = torch_path.forward(x, weight, bias, eps)
    _last["statistics"] = (mean.clone(), rstd.clone())
    return y, mean, rstd


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's layer_norm_gradient."""
    kept = _last.get("statistics", (mean, rstd))
    if kept[0].shape == mean.shape:
        mean, rstd = kept
    return torch_path.gradient(grad, x, weight, mean, rstd, has_bias)
