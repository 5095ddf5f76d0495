"""A planted fault; FAULT says which."""

import weakref

import torch
from torch import Tensor

from tercet.ops.rope import torch_path

OP = "rope"
FAULT = (
    "The angles, joined to one table, are kept as long as cos and sin are the same objects of the "
    "same version: writes that count no version (through numpy, `.data`, shared memory) are missed."
)
CAUGHT_BY = "state"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_kept: list[object] = []


def _joined(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    if cos.is_inference() or sin.is_inference():
        return cos, sin
    versions = cos._version, sin._version
    if _kept and _kept[0]() is cos and _kept[1]() is sin and _kept[2] == versions:
        return _kept[3]
    table = torch.stack((cos, sin))
    _kept[:] = weakref.ref(cos), weakref.ref(sin), versions, (table[0], table[1])
    return table[0], table[1]


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope; all layers of a model share their angles."""
    return torch_path.forward(q, k, *_joined(cos, sin), interleaved)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient."""
    return torch_path.gradient(grad_q, grad_k, *_joined(cos, sin), interleaved)
