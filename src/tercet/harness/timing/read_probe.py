"""Read probe: Triton kernels that only read, or do nothing: the ceilings that torch cannot show."""

# Triton types its language for its compiler, not for a type checker.
# pyright: basic, reportCallIssue=false
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192


@triton.jit
def _read(x_ptr, out_ptr, blocks, total, BLOCK: tl.constexpr):
    seen = tl.zeros((BLOCK,), tl.int32)
    for at in tl.range(tl.program_id(0), total, tl.num_programs(0), num_stages=2):
        first = (at % blocks).to(tl.int64) * BLOCK
        # .cg: past the first-level cache, so that a buffer that fits it measures the second
        seen ^= tl.load(x_ptr + first + tl.arange(0, BLOCK), cache_modifier=".cg")
    # never true for the probe's data: without a use the loads would be dropped
    found = tl.max(seen, 0)
    tl.store(out_ptr, found, found == 0x7FFFFFFF)


@triton.jit
def _nothing(x_ptr):
    pass


def read(x: Tensor, out: Tensor, passes: int, programs: int) -> None:
    """Reads x [blocks * BLOCK], int32, `passes` times; writes out [1], int32, never in practice."""
    blocks = x.numel() // BLOCK
    _read[(programs,)](x, out, blocks, blocks * passes, BLOCK=BLOCK, num_warps=16)


def nothing(x: Tensor) -> None:
    """Launches one program that does nothing."""
    _nothing[(1,)](x)
