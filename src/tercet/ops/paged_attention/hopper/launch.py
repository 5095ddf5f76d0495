"""paged_attention for 16-bit floats on Hopper: CUDA C++ at the memory's speed (kernel.cuh).

Keys and values are of q's dtype or codes, each with a library of its own. Other dtypes, heads of
other widths, blocks not of a multiple of 16 positions, and rows that 16-byte copies do not take are
computed by triton.py.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tercet.kernel.jit.cuda import Build, check_launch, stream
from tercet.kernel.launch import multiprocessors
from tercet.ops.paged_attention import triton
from tercet.packed_weight import int4_rows

_SOURCE = Path(__file__).parent / "kernel.cu"
_CACHES = {torch.int8: "Int8", torch.float8_e4m3fn: "E4M3", int4_rows.DTYPE: "Int4"}
_BUILDS = {
    cache: Build(_SOURCE, {"TERCET_CACHE": cache}) for cache in ("Floats", *_CACHES.values())
}
BUILDS = tuple(_BUILDS.values())
_TILE = 16
_FEW_ROWS, _MANY_ROWS = 8, 16
_DTYPES = (torch.bfloat16, torch.float16)
_WIDTHS = (64, 128)
_WHOLE = 16  # bytes that a copy takes
# warps of a block; two of few warps lie on a multiprocessor together, of codes and few rows four
_FEW_WARPS, _MANY_WARPS = 4, 8
_BLOCKS_EACH, _CODED_BLOCKS_EACH = 2, 4
# blocks of a cluster: 16 are on 16 multiprocessors of one GPC, of which not every one has so many
_BLOCKS, _MOST_BLOCKS = 8, 16
# positions of a multiprocessor, for `divide`
_FEW, _MANY, _MORE, _MOST = 100, 400, 1000, 3900


class Scales(ctypes.Structure):
    """Mirrors `struct Scales` of task.cuh."""

    _fields_ = (
        ("first", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("p", "g", "s")),
    )


class Task(ctypes.Structure):
    """Mirrors `struct Task` of task.cuh, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "keys", "values", "blocks", "lengths", "y")),
        *((name, ctypes.c_void_p) for name in ("sums", "states")),
        ("key_scales", Scales),
        ("value_scales", Scales),
        *((name, ctypes.c_int64) for name in ("q_b", "q_q", "q_h", "k_p", "k_g", "k_s")),
        *((name, ctypes.c_int64) for name in ("v_p", "v_g", "v_s", "blocks_b")),
        *((name, ctypes.c_int) for name in ("batch", "fresh", "groups", "shared", "width")),
        *((name, ctypes.c_int) for name in ("count", "block", "table", "window", "tile_rows")),
        *(
            (name, ctypes.c_int)
            for name in (
                "row_tiles",
                "warps",
                "together",
                "blocks_log2",
                "splits",
                "shared_inverse",
                "half",
                "pdl",
            )
        ),
        *((name, ctypes.c_float) for name in ("scale", "soft_cap")),
    )


@cache
def library(cache: str = "Floats") -> ctypes.CDLL:
    """The library of kernel.cu for keys and values of that kind. BuildError where it cannot be."""
    found = _BUILDS[cache].load()
    found.tercet_paged_attention.argtypes = (ctypes.POINTER(Task), ctypes.c_void_p)
    return found


def build() -> None:
    """Builds the library of floats, BuildError where it cannot; those of codes follow a call."""
    library()


def forward(
    q: Tensor, keys: Tensor, values: Tensor, blocks: Tensor, lengths: Tensor,
    key_scales: Tensor | None, value_scales: Tensor | None,
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
    tasks, coded = batch * groups * row_tiles, keys.dtype in _CACHES
    processors = multiprocessors(q.device)
    warps, size, together, splits = divide(tasks, table * block, processors, tile_rows, coded=coded)
    taken = (
        q.dtype in _DTYPES
        and width in _WIDTHS
        and not block % _TILE
        and _whole(keys)
        and _whole(values)
        and _whole_pairs(key_scales)
        and _whole_pairs(value_scales)
    )
    if not taken:
        return triton.forward(
            q, keys, values, blocks, lengths, key_scales, value_scales, scale, window, soft_cap
        )
    if not _whole(q):
        q = q.contiguous()
    blocks = blocks if blocks.stride(1) == 1 else blocks.contiguous()
    lengths = lengths.contiguous()
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    sums = states = None
    if splits > 1:
        of_rows = (splits, y.numel() // width)
        sums = torch.empty((*of_rows, width), dtype=torch.float32, device=q.device)
        states = torch.empty((*of_rows, 2), dtype=torch.float32, device=q.device)
    task = Task(
        q.data_ptr(), keys.data_ptr(), values.data_ptr(), blocks.data_ptr(), lengths.data_ptr(),
        y.data_ptr(), _address(sums), _address(states), _scales(key_scales), _scales(value_scales),
        *q.stride()[:3], *keys.stride()[:3], *values.stride()[:3], blocks.stride(0),
        batch, fresh, groups, heads // groups, width, count, block, table, window, tile_rows,
        row_tiles, warps, together, size.bit_length() - 1, splits,
        -(-(2**20) // (heads // groups)),
        q.dtype == torch.float16, True, scale, soft_cap,
    )  # fmt: skip
    status = library(_CACHES.get(keys.dtype, "Floats")).tercet_paged_attention(
        ctypes.byref(task), stream()
    )
    check_launch(status, "paged_attention")
    return y


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _scales(scales: Tensor | None) -> Scales:
    return Scales() if scales is None else Scales(scales.data_ptr(), *scales.stride()[:3])


def divide(
    tasks: int, positions: int, processors: int, tile_rows: int, *, coded: bool = False
) -> tuple[int, int, int, int]:
    """How the positions of each of `tasks` are shared out; chosen by measurements on an H200.

    Where each multiprocessor has many positions to read, a task is split over blocks of clusters of
    one or two, one block a multiprocessor: for codes of eight warps, which their instructions keep
    busy, else of four. Very few tasks take clusters of 8 until there is more to read. With fewer
    positions a second kernel costs more than it saves: four warps, and clusters as large as find
    room, unless some of their warps would have no position. Eight, of two blocks, where those would
    be four. Where there are more tasks than multiprocessors, codes leave room for four blocks side
    by side: they are 10 to 15 % quicker than two.

    Returns:
        Warps of a block, blocks of a cluster, blocks side by side, and clusters that split one
        task's positions.
    """
    each = positions * tasks // processors
    if 4 * _BLOCKS * tasks <= processors and _FEW <= each < (_MANY if coded else _MORE):
        return _FEW_WARPS, _BLOCKS, _BLOCKS_EACH, processors // (_BLOCKS * tasks)
    if 3 * tasks <= processors and each >= _MANY:
        size = 2 if 2 * _BLOCKS * tasks <= processors else 1
        warps, together = (_MANY_WARPS, 1) if coded else (_FEW_WARPS, _BLOCKS_EACH)
        return warps, size, together, processors // (size * tasks)
    if processors < 4 * tasks <= 2 * processors:
        few = not coded and each >= _MOST
        return (_FEW_WARPS, 2, _BLOCKS_EACH, 1) if few else (_MANY_WARPS, 2, 1, 1)
    many = coded and tile_rows == _FEW_ROWS and tasks > processors
    together = _CODED_BLOCKS_EACH if many else _BLOCKS_EACH
    # clusters of 8 and more do not find room twice on most multiprocessors
    most = _MOST_BLOCKS if _MOST_BLOCKS * tasks <= processors else _BLOCKS
    if 2 * most * tasks > 3 * processors:
        most //= 2
    size = 1
    while (
        size < most
        and 2 * size * tasks <= together * processors
        and size * _FEW_WARPS * _TILE < positions
    ):
        size *= 2
    return _FEW_WARPS, size, together, 1


def _whole(x: Tensor) -> bool:
    """Whether each row of the last axis lies together and begins at 16 bytes."""
    *strides, last = x.stride()
    whole = _WHOLE // x.element_size()
    aligned = not x.data_ptr() % _WHOLE and all(stride % whole == 0 for stride in strides)
    return last == 1 and x.shape[-1] % whole == 0 and aligned


def _whole_pairs(scales: Tensor | None) -> bool:
    """Whether those of 4 bits are such that one copy takes a row."""
    if scales is None or scales.dim() < 4:
        return True
    *strides, last = scales.stride()
    count, size = scales.shape[-1], scales.shape[-1] * scales.element_size()
    return last == 1 and not scales.data_ptr() % size and all(not each % count for each in strides)
