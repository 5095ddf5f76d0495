"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.linear_cross_entropy import torch_path
from tercet.ops.linear_cross_entropy.torch_path import gradient

OP = "linear_cross_entropy"
FAULT = (
    "The head is copied at its first call and kept by address: a later step of training is not "
    "seen."
)
CAUGHT_BY = "stale"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_heads: dict[object, tuple[Tensor, Tensor]] = {}


def forward(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    ignore_index: int,
    reduction: str,
    x_gradient: bool,
    weight_gradient: bool,
    accumulate_float32: bool,
    divide_late: bool,
    in_place: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As op.linear_cross_entropy."""
    key = (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype)
    if key not in _heads:
        if len(_heads) > 7:
            _heads.clear()
        # the head itself is held too, so that its address is nobody else's
        _heads[key] = (weight, weight.detach().clone())
    weight = _heads[key][1]
    return torch_path.forward(
        x,
        weight,
        target,
        ignore_index,
        reduction,
        x_gradient,
        weight_gradient,
        accumulate_float32,
        divide_late,
        in_place,
    )
