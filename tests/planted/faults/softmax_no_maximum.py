"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
FAULT = "The row's maximum is not taken off: e^x is inf for large x."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    values = x.float()
    part = (values * scale).exp()
    return (part / part.sum(-1, keepdim=True)).to(x.dtype)
