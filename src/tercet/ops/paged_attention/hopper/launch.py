"""paged_attention for 16-bit floats on Hopper: CUDA C++ at the memory's speed (kernel.cuh).

Other dtypes, heads of other widths, blocks not of a multiple of 16 positions, and rows that 16-byte
copies do not take are computed by triton.py; so are long caches of too few heads to fill the GPU
with clusters.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tercet.kernel.jit.cuda import Build, check_launch, stream
from tercet.kernel.launch import multiprocessors
from tercet.ops.paged_attention import triton

_BUILD = Build(Path(__file__).parent / "kernel.cu")
BUILDS = (_BUILD,)
_TILE = 16
_FEW_ROWS, _MANY_ROWS = 8, 16
_DTYPES = (torch.bfloat16, torch.float16)
_WIDTHS = (64, 128)
_WHOLE = 8  # elements of 16 bytes
# warps of a block; two of few warps lie on a multiprocessor together
_FEW_WARPS, _MANY_WARPS, _BLOCKS_EACH = 4, 8, 2
# blocks of a cluster: 16 are on 16 multiprocessors of one GPC, of which not every one has so many
_BLOCKS, _MOST_BLOCKS = 8, 16
# positions that so few blocks read slower than triton.py's two kernels
_LONG = 8192


class Task(ctypes.Structure):
    """Mirrors `struct Task` of task.cuh, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "keys", "values", "blocks", "lengths", "y")),
        *((name, ctypes.c_int64) for name in ("q_b", "q_q", "q_h", "k_p", "k_g", "k_s")),
        *((name, ctypes.c_int64) for name in ("v_p", "v_g", "v_s", "blocks_b")),
        *((name, ctypes.c_int) for name in ("batch", "fresh", "groups", "shared", "width")),
        *((name, ctypes.c_int) for name in ("count", "block", "table", "window", "tile_rows")),
        *(
            (name, ctypes.c_int)
            for name in ("row_tiles", "warps", "blocks_log2", "shared_inverse", "half", "pdl")
        ),
        *((name, ctypes.c_float) for name in ("scale", "soft_cap")),
    )


@cache
def library() -> ctypes.CDLL:
    """The library of kernel.cu. BuildError where it cannot be built."""
    found = _BUILD.load()
    found.tercet_paged_attention.argtypes = (ctypes.POINTER(Task), ctypes.c_void_p)
    return found


def build() -> None:
    """Builds the library. BuildError where it cannot."""
    library()


def forward(
    q: Tensor, keys: Tensor, values: Tensor, blocks: Tensor, lengths: Tensor,
    scale: float, window: int, soft_cap: float,
) -> Tensor:  # fmt: skip
    """As op.paged_attention."""
    batch, fresh, heads, width = q.shape
    count, groups, block, _ = keys.shape
    table = blocks.shape[1]
    if not q.numel() or not table * block or not count:
        return torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    rows = fresh * heads // groups
    tile_rows = _FEW_ROWS if rows <= _FEW_ROWS else _MANY_ROWS
    row_tiles = -(-rows // tile_rows)
    division = divide(batch * groups * row_tiles, table * block, multiprocessors(q.device))
    taken = (
        q.dtype in _DTYPES
        and width in _WIDTHS
        and not block % _TILE
        and _whole(keys)
        and _whole(values)
    )
    if division is None or not taken:
        return triton.forward(q, keys, values, blocks, lengths, scale, window, soft_cap)
    if not _whole(q):
        q = q.contiguous()
    blocks = blocks if blocks.stride(1) == 1 else blocks.contiguous()
    lengths = lengths.contiguous()
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    warps, size = division
    task = Task(
        q.data_ptr(), keys.data_ptr(), values.data_ptr(), blocks.data_ptr(), lengths.data_ptr(),
        y.data_ptr(), *q.stride()[:3], *keys.stride()[:3], *values.stride()[:3], blocks.stride(0),
        batch, fresh, groups, heads // groups, width, count, block, table, window, tile_rows,
        row_tiles, warps, size.bit_length() - 1, -(-(2**20) // (heads // groups)),
        q.dtype == torch.float16, True, scale, soft_cap,
    )  # fmt: skip
    status = library().tercet_paged_attention(ctypes.byref(task), stream())
    check_launch(status, "paged_attention")
    return y


def divide(tasks: int, positions: int, processors: int) -> tuple[int, int] | None:
    """Warps of a block, and blocks that share the positions of one of `tasks`; None for triton.py.

    Four warps, and as many blocks as find room at once, unless some of their warps would have no
    position. Eight, of two blocks, where those would be four: on an H200 they are 30 % quicker, and
    slower than four wherever clusters are larger.
    """
    if processors < 4 * tasks <= 2 * processors:
        return _MANY_WARPS, 2
    most = _MOST_BLOCKS if _MOST_BLOCKS * tasks <= processors else _BLOCKS
    if most == _MOST_BLOCKS and positions > _LONG:
        return None
    size = 1
    while (
        size < most
        and 2 * size * tasks <= _BLOCKS_EACH * processors
        and size * _FEW_WARPS * _TILE < positions
    ):
        size *= 2
    return _FEW_WARPS, size


def _whole(x: Tensor) -> bool:
    """Whether each row of the last axis lies together and begins at 16 bytes."""
    *strides, last = x.stride()
    aligned = not x.data_ptr() % 16 and all(stride % _WHOLE == 0 for stride in strides)
    return last == 1 and x.shape[-1] % _WHOLE == 0 and aligned
