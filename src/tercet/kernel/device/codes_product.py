"""Codes product: an int8 matrix product with scales at its end, in Gluon, for Hopper (sm_90a).

Triton 3.6 waits for each step's int8 `wgmma` before it issues the next (with 8-bit floats it does
not), so the tensor cores idle between steps. Here one step is always in flight: step k is issued,
step k - 1 awaited, and its buffer handed to TMA, which is STAGES - 1 steps ahead, also over the end
of an output tile: TMA loads the next tile's first steps while this tile is written.
"""

import triton
from torch import Tensor
from torch._subclasses import FakeTensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tercet.kernel.launch import multiprocessors

# tiles that lie above each other are computed at about the same time, and share what they read
_ABOVE = gl.constexpr(8)


@gluon.jit
def _corner(tile, M, N, BM: gl.constexpr, BN: gl.constexpr):
    """First row and column of a tile, in columns of _ABOVE tiles."""
    above, across = gl.cdiv(M, BM), gl.cdiv(N, BN)
    column = tile // (_ABOVE * across)
    height = gl.minimum(above - column * _ABOVE, _ABOVE)
    within = tile % (_ABOVE * across)
    return (column * _ABOVE + within % height) * BM, within // height * BN


@gluon.jit
def _fetch(
    a_tiles, b_tiles, a_held, b_held, full, number, count, steps, M, N,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Starts the copy of this program's step `number`, where there is one."""
    tile = gl.program_id(0) + number // steps * gl.num_programs(0)
    there = tile < count
    top, left = _corner(gl.minimum(tile, count - 1), M, N, BM, BN)
    first, stage = number % steps * BK, number % STAGES
    come = full.index(stage)
    mbarrier.expect(come, a_tiles.block_type.nbytes + b_tiles.block_type.nbytes, pred=there)
    tma.async_copy_global_to_shared(a_tiles, [top, first], come, a_held.index(stage), pred=there)
    tma.async_copy_global_to_shared(b_tiles, [left, first], come, b_held.index(stage), pred=there)


@gluon.jit
def _codes_product(
    a_tiles, b_tiles, row_ptr, column_ptr, bias_ptr, out_ptr, M, N, K,
    HAS_COLUMN: gl.constexpr, ONE_COLUMN: gl.constexpr, HAS_BIAS: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """out [M, N] = (a [M, K] b^T [K, N]) * column [N] * row [M] + bias [N]."""
    # the widest int8 instruction that Triton 3.6 can write has 128 columns
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, 128, 32]
    )
    a_held = gl.allocate_shared_memory(gl.int8, [STAGES, BM, BK], a_tiles.layout)
    b_held = gl.allocate_shared_memory(gl.int8, [STAGES, BN, BK], b_tiles.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(STAGES):
        mbarrier.init(full.index(each), count=1)
    count, steps = gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.cdiv(K, BK)
    for ahead in gl.static_range(STAGES - 1):
        _fetch(
            a_tiles, b_tiles, a_held, b_held, full, ahead, count, steps, M, N, BM, BN, BK, STAGES
        )
    number = gl.program_id(0) * 0
    for tile in range(gl.program_id(0), count, gl.num_programs(0)):
        total = warpgroup_mma_init(gl.zeros((BM, BN), gl.int32, layout))
        for _ in range(steps):
            now = number % STAGES
            mbarrier.wait(full.index(now), (number // STAGES) & 1)
            total = warpgroup_mma(
                a_held.index(now), b_held.index(now).permute((1, 0)), total, is_async=True
            )
            total = warpgroup_mma_init(warpgroup_mma_wait(num_outstanding=1, deps=[total]))
            _fetch(
                a_tiles, b_tiles, a_held, b_held, full, number + STAGES - 1, count, steps, M, N,
                BM, BN, BK, STAGES,
            )  # fmt: skip
            number += 1
        y = warpgroup_mma_wait(num_outstanding=0, deps=[total]).to(gl.float32)
        top, left = _corner(tile, M, N, BM, BN)
        m = top + gl.arange(0, BM, gl.SliceLayout(1, layout))
        n = left + gl.arange(0, BN, gl.SliceLayout(0, layout))
        if HAS_COLUMN:
            column = gl.load(column_ptr + (n * 0 if ONE_COLUMN else n), n < N, 0.0)
            y = y * gl.expand_dims(column, 0)
        y = y * gl.expand_dims(gl.load(row_ptr + m, m < M, 0.0), 1)
        if HAS_BIAS:
            y = y + gl.expand_dims(gl.load(bias_ptr + n, n < N, 0.0).to(gl.float32), 0)
        m, n = gl.expand_dims(m, 1), gl.expand_dims(n, 0)
        at = out_ptr + m.to(gl.int64) * N + n
        gl.store(at, y.to(out_ptr.dtype.element_ty), (m < M) & (n < N))
    for each in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(each))


def codes_product(
    a: Tensor,
    b: Tensor,
    row: Tensor,
    column: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    configuration: dict[str, int],
) -> None:
    """Writes out [M, N] = (a [M, K] b^T [K, N]) * column [N] * row [M] + bias [N].

    Args:
        a, b: int8, `supports_tma`, with at least one column.
        row: [M] float32. column: [N], or one for all, float32, or None. bias: [N] or None.
        out: contiguous, float32, float16 or bfloat16; not empty.
        configuration: BM, BN (multiples of 64 and 128), BK, STAGES, num_warps (4 for each 64 rows).
    """
    (m, k), n = a.shape, b.shape[0]
    bm, bn, bk = (configuration[name] for name in ("BM", "BN", "BK"))
    programs = min(triton.cdiv(m, bm) * triton.cdiv(n, bn), multiprocessors(out.device))
    _codes_product[(programs,)](
        _tiles(a, [bm, bk]), _tiles(b, [bn, bk]), row, column, bias, out, m, n, k,
        HAS_COLUMN=column is not None, ONE_COLUMN=column is not None and column.numel() == 1,
        HAS_BIAS=bias is not None, **configuration,
    )  # fmt: skip


def supports_tma(codes: Tensor) -> bool:
    """Whether TMA can load the matrix: its start and its rows lie at multiples of 16 bytes."""
    start = codes.storage_offset() if isinstance(codes, FakeTensor) else codes.data_ptr()
    aligned = start % 16 == 0 and codes.stride(0) % 16 == 0
    return aligned and codes.stride(1) == 1 and bool(codes.numel())


def _tiles(codes: Tensor, block: list[int]) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.int8)
    if not isinstance(codes, FakeTensor):
        return TensorDescriptor.from_tensor(codes, block, layout)
    # a capture without memory: the constructor would ask for an address
    tiles = TensorDescriptor.__new__(TensorDescriptor)
    tiles.base, tiles.shape, tiles.strides = codes, codes.shape, codes.stride()
    tiles.block_shape, tiles.layout, tiles.padding = block, layout, "zero"
    return tiles


CONFIGURATION = {"BM": 128, "BN": 256, "BK": 128, "STAGES": 4, "num_warps": 8}
