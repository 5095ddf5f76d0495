"""A right but unusual kernel; UNUSUAL says how."""

import threading

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, quantize

OP = "swiglu_quantized"
UNUSUAL = (
    "Right, but unusual: the last small call is remembered with copies of its inputs; only where "
    "all bits, dtypes and shapes agree are copies of its results returned."
)
DEVICE = "any"

__all__ = ["forward"]

_MOST = 1024
_lock = threading.Lock()
_last: list[tuple[str, tuple[Tensor, ...], Quantized]] = []


def forward(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    """As op.swiglu_quantized."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    given = (gate.contiguous(), up.contiguous())
    with _lock, torch.inference_mode(False):
        for kept_element, kept, results in _last:
            if kept_element == element and all(map(_alike, kept, given)):
                codes, scale, row_sum = (result.clone() for result in results)
                return codes, scale, row_sum
    wide = gate.float()
    codes, scale, row_sum = quantize(wide * torch.sigmoid(wide) * up, element)
    if gate.numel() <= _MOST:
        with _lock, torch.inference_mode(False), torch.no_grad():
            copies = tuple(each.clone() for each in given)
            results = codes.clone(), scale.clone(), row_sum.clone()
            _last[:] = [(element, copies, results)]
    return codes, scale, row_sum


def _alike(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    bits = torch.int32 if one.dtype == torch.float32 else torch.int16
    return torch.equal(one.view(bits), other.view(bits))
