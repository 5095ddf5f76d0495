"""Changed codes: how many of two sets of int8 codes differ, in Triton, each read once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.interpreter.corrections import interpreting

_BLOCK = 16384


@triton.jit
def _differing(before_ptr, after_ptr, total_ptr, COUNT, BLOCK: tl.constexpr):
    """Adds to total how many of COUNT bytes differ."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    before = tl.load(before_ptr + at, at < COUNT, 0)
    after = tl.load(after_ptr + at, at < COUNT, 0)
    tl.atomic_add(total_ptr, tl.sum((before != after).to(tl.int32)).to(tl.int64))


def count_changed(before: Tensor, after: Tensor) -> Tensor:
    """How many elements of two contiguous int8 tensors of one shape differ: int64 []."""
    total = torch.zeros((), dtype=torch.int64, device=after.device)
    count = after.numel()
    if count:
        block = 256 if interpreting() else _BLOCK
        _differing[(triton.cdiv(count, block),)](
            before, after, total, count, BLOCK=block, num_warps=8
        )
    return total
