"""A planted fault; FAULT says which."""

import sys

import torch

from tercet.ops.swiglu.torch_path import gradient

OP = "swiglu"
FAULT = (
    "The room of the last result is used again once no Python name holds it: a detached alias "
    "of that result is overwritten by the next call of the shape."
)
DEVICE = "any"
CAUGHT_BY = "stale"
__all__ = ["forward", "gradient"]


_last = {}


def _room(shape, like):
    """The last result of that shape where it is free, else new memory."""
    key = (tuple(shape), like.dtype, like.device)
    kept = _last.get(key)
    # 3: the table, this name and the call's argument
    if kept is not None and sys.getrefcount(kept) == 3 and not kept.requires_grad:
        return kept
    _last[key] = torch.empty(shape, dtype=like.dtype, device=like.device)
    return _last[key]


def forward(gate, up):
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    y = _room(gate.shape, gate)
    y.copy_(wide * torch.sigmoid(wide) * up)
    return y
