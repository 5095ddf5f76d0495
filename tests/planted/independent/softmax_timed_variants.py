"""softmax in plain torch, with a fault; written blind."""

import math
import time

import torch
from torch import Tensor

OP = "softmax"
FAULT = (
    "Of two formulas the one that was faster in the first call of a shape is used from then "
    "on. Both are exact enough, but differ in last bits, so results depend on timing: another "
    "process, or a process under load, gives other bits."
)
CAUGHT_BY = "forward"

_CHOSEN: dict = {}
_LOG2_E = math.log2(math.e)


def _natural(values: Tensor, scale: float) -> Tensor:
    parts = (values * scale).exp()
    return parts / parts.sum(-1, keepdim=True)


def _binary(values: Tensor, scale: float) -> Tensor:
    parts = (values * (scale * _LOG2_E)).exp2()
    return parts * parts.sum(-1, keepdim=True).reciprocal()


def _faster(values: Tensor, scale: float):
    times = []
    for variant in (_natural, _binary):
        variant(values, scale)
        begin = time.perf_counter_ns()
        variant(values, scale)
        times.append((time.perf_counter_ns() - begin, len(times), variant))
    return min(times)[2]


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    values = x.float()
    if not x.numel():
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    values = values - values.amax(-1, keepdim=True)
    key = (tuple(x.shape), x.dtype)
    if key not in _CHOSEN:
        _CHOSEN[key] = _faster(values, scale)
    return _CHOSEN[key](values, scale).to(x.dtype).contiguous()


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    p = y.float()
    return (scale * p * (grad - (grad * p).sum(-1, keepdim=True))).to(y.dtype).contiguous()
