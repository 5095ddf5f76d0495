"""The meaning of softmax, in float64."""

import torch
from torch import Tensor

# of which 2e-6, the tolerance of float32, is the smallest normal number
_LEAST = torch.finfo(torch.float32).smallest_normal / 2e-6


def reference(x: Tensor, scale: float = 1.0) -> Tensor:
    """exp(scale x) over its sum along the last axis [.., N]; NaN where a row is all -inf."""
    return torch.softmax(x.double() * scale, -1)


def magnitude(x: Tensor, scale: float = 1.0) -> Tensor:
    """y (1 + |scale (x - max)|): what exp makes of a relative error of its argument."""
    y = reference(x, scale)
    if not x.numel():
        return y
    scaled = scale * x.double()
    below = scaled.amax(-1, keepdim=True) - scaled
    return torch.where(y > 0, y * (1 + below), y)


def gradient_magnitude(
    directions: list[Tensor], x: Tensor, scale: float = 1.0
) -> dict[str, Tensor]:
    """|scale| y (|g| + sum(|g| y)): where one element is nearly all of the sum they cancel.

    y as `magnitude` has it, but never less than what a relative error stands for that is as large
    as the numbers below float32's normal ones, which may have become 0.
    """
    y, g = magnitude(x, scale), directions[0].double().abs()
    y = torch.where(y > 0, y.clamp_min(_LEAST), y)
    return {"x": abs(scale) * y * (g + (g * y).sum(-1, keepdim=True))}
