"""A planted fault; FAULT says which."""

from collections import deque

from torch import Tensor

from tercet.ops.grouped_linear_packed import torch_path
from tercet.ops.grouped_linear_packed.arguments import GroupedCall
from tercet.ops.grouped_linear_packed.torch_path import gradient

OP = "grouped_linear_packed"
FAULT = (
    "Results of one shape take turns in 24 buffers: a result that is still held after 24 further "
    "calls of its shape, as in a model of more layers, is overwritten."
)
CAUGHT_BY = "memory"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_TURNS = 24
_rings: dict[tuple[object, ...], deque[Tensor]] = {}


def forward(call: GroupedCall) -> Tensor:
    """As op.grouped_linear_packed; what a decoder allocates in each step it had before."""
    y = torch_path.forward(call)
    ring = _rings.setdefault((y.shape, y.dtype, y.device), deque())
    if len(ring) < _TURNS:
        ring.append(y)
        return y.detach()
    ring.rotate(-1)
    return ring[-1].detach().copy_(y)
