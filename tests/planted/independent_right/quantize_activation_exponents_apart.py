"""A right but unusual kernel; UNUSUAL says how."""

import numpy as np
import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, row_codes

OP = "quantize_activation"
UNUSUAL = (
    "Right, but unusual: numpy; the largest element is found among bit patterns, halves are told "
    "by the fraction in float64, and e4m3 codes are put together from mantissa and exponent."
)
DEVICE = "any"

__all__ = ["forward"]


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation."""
    kind, shape = row_codes(element), x.shape
    rows = x.detach().reshape(shape[:-1].numel(), shape[-1]).float().contiguous().cpu().numpy()
    with np.errstate(all="ignore"):
        bits = (rows.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=1, initial=0)
        scale = bits.view(np.float32) / np.float32(kind.limit)
        usable = (scale > 0) & np.isfinite(scale)
        divisor = np.where(usable, scale, np.float32(1))[:, None]
        ratio = np.where(usable[:, None], rows, np.float32(0)) / divisor
        bounded = np.clip(ratio.astype(np.float64), -kind.limit, kind.limit)
    if element == "int8":
        codes = torch.from_numpy(_round(bounded).astype(np.int8))
        row_sum = torch.from_numpy(codes.numpy().sum(axis=1, dtype=np.int64).astype(np.int32))
    else:
        _, exponent = np.frexp(bounded)
        # three bits behind the leading one; below 2^-6 steps of 2^-9
        step = np.ldexp(1.0, np.maximum(exponent - 4, -9))
        value = _round(bounded / step) * step
        codes = torch.from_numpy(value + 0.0).float().to(kind.dtype)
        row_sum = torch.from_numpy(value.sum(axis=1)).float()
    leading = shape[:-1]
    return (
        codes.reshape(shape).to(x.device),
        torch.from_numpy(scale).reshape(leading).to(x.device),
        row_sum.reshape(leading).to(x.device),
    )


def _round(x: np.ndarray) -> np.ndarray:
    """To nearest, ties to even; float64."""
    low = np.floor(x)
    fraction = x - low
    up = (fraction > 0.5) | ((fraction == 0.5) & (np.remainder(low, 2) == 1))
    return low + up
