"""attention for 16-bit floats on Hopper: CUDA C++, warpgroups that take turns (kernel.cuh).

Rows that TMA does not take, and scales of 0 or less, are computed by sdpa.py and triton.py.
"""

import ctypes
from functools import cache
from math import e, log2
from pathlib import Path

import torch
from torch import Tensor

from tercet.kernel.jit.cuda import Build, check_launch, stream
from tercet.kernel.launch import multiprocessors
from tercet.ops.attention import sdpa

_SOURCE = Path(__file__).parent / "kernel.cu"
_BUILDS = {width: Build(_SOURCE, {"TERCET_WIDTH": width}) for width in (64, 128, 256)}
BUILDS = tuple(_BUILDS.values())
_BITS = log2(e)  # exponentials are of 2
_DTYPES = (torch.bfloat16, torch.float16)
# queries of a sequence from which on three warpgroups share tiles of positions, if they can
_MANY = 2048
_WHOLE = 8  # elements that a row's stride is a multiple of, for TMA


class Strides(ctypes.Structure):
    """Mirrors `struct Strides` of task.cuh."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("first", "second", "third"))


class Task(ctypes.Structure):
    """Mirrors `struct Task` of task.cuh, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "keys", "values", "y")),
        *((name, Strides) for name in ("q_strides", "keys_strides", "values_strides")),
        *((name, ctypes.c_int) for name in ("batch", "fresh", "heads")),
        *((name, ctypes.c_int) for name in ("groups", "length", "width")),
        *((name, ctypes.c_int) for name in ("causal", "window", "half", "many", "processors")),
        *((name, ctypes.c_float) for name in ("scale", "steep", "most")),
    )


@cache
def library(width: int) -> ctypes.CDLL:
    """The library of kernel.cu for heads up to that width. BuildError where it cannot be built."""
    found = _BUILDS[width].load()
    found.tercet_attention.argtypes = (ctypes.POINTER(Task), ctypes.c_void_p)
    return found


def build() -> None:
    """Builds the library of heads of 128, BuildError where it cannot; the others follow a call."""
    library(128)


def forward(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    causal: bool,
    window: int,
    soft_cap: float,
) -> Tensor:
    """As op.attention."""
    batch, new, heads, width = q.shape
    groups, length = keys.shape[1], keys.shape[2]
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not q.numel() or not length:
        return y.zero_()
    taken = q.dtype in _DTYPES and scale > 0
    if not taken or not (_whole(q) and _whole(keys) and _whole(values)):
        return sdpa.forward(q, keys, values, scale, causal, window, soft_cap)
    steep = -2 * _BITS * scale / soft_cap if soft_cap else 0.0
    task = Task(
        *(x.data_ptr() for x in (q, keys, values, y)),
        *(Strides(*x.stride()[:3]) for x in (q, keys, values)),
        batch, new, heads, groups, length, width,
        causal, min(window, length) or length, q.dtype == torch.float16, new > _MANY,
        multiprocessors(q.device), scale * _BITS, steep, soft_cap * _BITS,
    )  # fmt: skip
    built = next(each for each in _BUILDS if each >= width)
    check_launch(library(built).tercet_attention(ctypes.byref(task), stream()), "attention")
    return y


def _whole(x: Tensor) -> bool:
    """Whether each row of the last axis lies together, and rows begin at 16 bytes."""
    *strides, last = x.stride()
    whole = all(stride > 0 and stride % _WHOLE == 0 for stride in strides)
    return last == 1 and whole and x.data_ptr() % (_WHOLE * x.element_size()) == 0
