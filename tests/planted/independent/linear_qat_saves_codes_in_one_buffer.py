"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.linear_qat import torch_path
from tercet.ops.linear_qat.arguments import QatCall
from tercet.ops.linear_qat.torch_path import gradient

OP = "linear_qat"
FAULT = (
    "The codes of x that are kept for the backward lie in one buffer for each shape: of two "
    "layers of one shape the second one's forward overwrites the first one's, whose weight then "
    "gets a wrong gradient."
)
CAUGHT_BY = "memory"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_MOST = 16
_room: dict[object, Tensor] = {}


def forward(call: QatCall) -> tuple[Tensor, Tensor, Tensor]:
    """As op.linear_qat."""
    y, codes, scale = torch_path.forward(call)
    if not codes.numel():
        return y, codes, scale
    key = tuple(codes.shape), codes.device, torch.is_inference_mode_enabled()
    if key not in _room:
        if len(_room) >= _MOST:
            _room.clear()
        _room[key] = torch.empty_like(codes)
    return y, _room[key].copy_(codes), scale
