"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.rope import torch_path
from tercet.ops.rope.torch_path import gradient

OP = "rope"
FAULT = "Angles without a batch are kept by width: another base or first position is not seen."
CAUGHT_BY = "stale"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_angles: dict[object, tuple[Tensor, Tensor]] = {}


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    if cos.dim() == 2:
        tokens, key = len(cos), (cos.shape[1], cos.dtype, cos.device)
        if key not in _angles or len(_angles[key][0]) < tokens:
            _angles[key] = (cos.clone(), sin.clone())
        cos, sin = (angle[:tokens] for angle in _angles[key])
    return torch_path.forward(q, k, cos, sin, interleaved)
