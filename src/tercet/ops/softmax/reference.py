"""The meaning of softmax, in float64."""

import torch
from torch import Tensor


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

    y as `magnitude` has it.
    """
    y, g = magnitude(x, scale), directions[0].double().abs()
    return {"x": abs(scale) * y * (g + (g * y).sum(-1, keepdim=True))}
