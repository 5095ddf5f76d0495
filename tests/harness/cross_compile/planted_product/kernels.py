"""planted_product in Triton: out = a @ b for one tile, and its gradient."""

from pathlib import Path

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.jit.cuda import Build

BUILDS = (Build(Path(__file__).parent / "scale.cu"),)


@triton.jit
def _product(a_ptr, b_ptr, out_ptr, K, a_stride, SIDE: tl.constexpr, DEPTH: tl.constexpr):
    at, along = tl.arange(0, SIDE), tl.arange(0, DEPTH)
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for first in range(0, K, DEPTH):
        a = tl.load(a_ptr + at[:, None] * a_stride + first + along[None, :])
        b = tl.load(b_ptr + (first + along[:, None]) + at[None, :] * K)
        total = tl.dot(a, b, total)
    tl.store(out_ptr + at[:, None] * SIDE + at[None, :], total)


@triton.jit
def _double(grad_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out_ptr + at, 2.0 * tl.load(grad_ptr + at))


def forward(a: Tensor, b: Tensor) -> Tensor:
    """a [M, K] @ b [K, M], float32."""
    m, k = a.shape
    if bool((a.float() == torch.inf).any()):
        raise ValueError("a has an infinity")
    out = torch.empty((m, m), dtype=torch.float32, device=a.device)
    depth = 64 if k == 512 else 256
    _product[(1,)](a, b, out, k, a.stride(0), SIDE=m, DEPTH=depth, num_warps=4)
    return out


def gradient(grad: Tensor, a: Tensor) -> Tensor:
    """Not a's gradient: a launch to be captured."""
    out = torch.empty(a.shape, dtype=a.dtype, device=a.device)
    _double[(1,)](grad, out, SIZE=1024)
    return out
