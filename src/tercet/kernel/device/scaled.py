"""Scaled: a kept gradient times the incoming scalar, which stays on the GPU."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import multiprocessors
from tercet.kernel.tuned import configuration

_DEFAULT = {"BLOCK": 8192, "num_warps": 8}


@triton.jit
def _scale(factor_ptr, from_ptr, to_ptr, N, IN_PLACE: tl.constexpr, BLOCK: tl.constexpr):
    factor = tl.load(factor_ptr).to(tl.float32)
    # the usual loss.backward() comes with 1: nothing is read or written, and no host waits
    count = tl.where(factor == 1.0, 0, N) if IN_PLACE else N
    start = tl.program_id(0).to(tl.int64) * BLOCK
    for first in tl.range(start, count, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(from_ptr + at, at < N, 0.0).to(tl.float32)
        tl.store(to_ptr + at, value * factor, at < N)


def scaled(op: str, grad: Tensor, kept: Tensor, in_place: bool) -> Tensor:
    """kept * grad, in kept's memory or beside it.

    Args:
        op: whose tuned configuration of a backward pass.
        grad: the incoming gradient, a scalar tensor.
        kept: contiguous, of any dtype; multiplied in float32.
        in_place: whether kept is overwritten; then a factor of 1 reads and writes nothing.
    """
    out = kept if in_place else torch.empty_like(kept)
    if kept.numel():
        options = dict(configuration(op, "triton", {"N": kept.numel()}, _DEFAULT, "backward"))
        programs = triton.cdiv(kept.numel(), options["BLOCK"])
        _scale[(min(programs, 8 * multiprocessors(kept.device)),)](
            grad, kept, out, kept.numel(), IN_PLACE=in_place, **options
        )
    return out
