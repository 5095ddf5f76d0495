"""linear_packed for few tokens on Hopper: CUDA C++ that keeps up with reading W (decode.cuh)."""

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.kernel.cuda import build_cuda, stream
from tercet.kernel.launch import multiprocessors

MOST_TOKENS = 64
_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int8: 3}
_SHARED_BYTES = 227 * 1024
_WARPS = 16
_TILE = 8
_LIBRARIES = {
    torch.int8: "decode_int8.cu",
    torch.bfloat16: "decode_bfloat16.cu",
    torch.float16: "decode_float16.cu",
}


class _Task(ctypes.Structure):
    """Mirrors `struct Task` of decode.cuh, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("codes", "scale", "x", "x_scale", "bias")),
        *((name, ctypes.c_void_p) for name in ("residual", "y")),
        ("x_pitch", ctypes.c_int64),
        *((name, ctypes.c_int) for name in ("m", "n", "k", "row_blocks", "units", "groups")),
        *((name, ctypes.c_int) for name in ("group_steps_log2", "scale_type", "x_type")),
        *((name, ctypes.c_int) for name in ("bias_type", "residual_type", "y_type")),
        *((name, ctypes.c_int) for name in ("team", "ranks")),
        ("factor", ctypes.c_float),
    )


class _Launch(ctypes.Structure):
    """Mirrors `struct Launch` of decode_launch.cuh."""

    _fields_ = tuple(
        (name, ctypes.c_int) for name in ("bits", "depth", "warps", "blocks", "dependent")
    )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a product is cut up.

    Attributes:
        blocks: clusters in the grid; each takes a run of row-blocks.
        warps: a block.
        team: warps that read one contiguous range together; divides `warps`.
        ranks: blocks a cluster; they split K.
        depth: 16-byte loads in flight a lane; 0 is the usual.
        dependent: whether the kernel may start before the one ahead of it ends.
    """

    blocks: int
    warps: int = _WARPS
    team: int = 1
    ranks: int = 1
    depth: int = 0
    dependent: bool = False


@cache
def build(x_dtype: torch.dtype) -> ctypes.CDLL:
    """The library for products in int8, bfloat16 or float16; BuildError where there is none."""
    library = build_cuda(Path(__file__).parent / _LIBRARIES[x_dtype])
    library.tercet_decode.argtypes = (
        ctypes.POINTER(_Task), ctypes.POINTER(_Launch), ctypes.c_void_p,
    )  # fmt: skip
    return library


def shared_bytes(m: int, row_blocks: int, row_bytes: int, scales: int, plan: Plan) -> int:
    """Shared memory of a block with so many row-blocks, as `Places` of decode.cuh has it.

    Args:
        m: rows of x.
        row_blocks: of one block.
        row_bytes: of one staged row of x.
        scales: bytes of scales a row-block.
        plan: for its warps and team.
    """
    tiles = _tiles(m)
    held = m * (row_bytes + 16)
    slots = (row_blocks + plan.warps // plan.team) * plan.team * tiles * 512
    end = 256 + max(held, m * row_blocks * 64) + slots + row_blocks * scales
    return max(end, 256 + tiles * 8 * (row_bytes + 16)) if tiles > 1 else end


def _tiles(m: int) -> int:
    return 1 << (-(-m // 8) - 1).bit_length()


def plan_for(m: int, row_blocks: int, units: int, unit_bytes: int, groups: int, scale: int,
             processors: int) -> Plan:  # fmt: skip
    """One block a multiprocessor; K is split over a cluster where x is too large for one block.

    Args:
        m: rows of x.
        row_blocks, units: of W.
        unit_bytes: of one row of x against one unit.
        groups: of scales along K.
        scale: bytes of a scale.
        processors: multiprocessors of the GPU.
    """
    for ranks in (1, 2, 4, 8):
        if ranks > units:
            break
        row_bytes = -(-units // ranks) * unit_bytes
        scales = min(groups, -(-groups // ranks) + 1) * 16 * scale
        most = processors // ranks
        for waves in (1, 2, 4, 8, 16, 32, 64):
            rows = -(-row_blocks // min(row_blocks, most * waves))
            blocks = -(-row_blocks // rows)
            # a second member doubles the slots, which are large for many rows of x
            team = 1 if units // ranks < 4 or m > 16 else 2
            plan = Plan(blocks=blocks, ranks=ranks, team=team)
            # a lone large x would be read from the L2 by every multiprocessor
            crowded = m * row_bytes > 112 * 1024 and ranks < 8 and units // ranks >= 2
            if not crowded and shared_bytes(m, rows, row_bytes, scales, plan) <= _SHARED_BYTES:
                return plan
    raise UnsupportedError(
        f"decode: {m} rows of x with {units} units of {unit_bytes} bytes do not fit in the shared "
        "memory of 8 blocks: split M"
    )


def product(
    x: Tensor,
    x_scale: Tensor | None,
    codes: Tensor,
    scale: Tensor,
    y: Tensor,
    *,
    bits: int,
    columns: int,
    group: int | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    quantize: bool = False,
    plan: Plan | None = None,
) -> None:
    """y = x W^T * scales + bias + residual, for up to 64 rows of x.

    Args:
        x: [M, K] with unit stride along K: int8; or bfloat16 or float16; or any float with
            `quantize`.
        x_scale: float32 [M] of int8 x; else None.
        codes: int32 [ceil(N / 16), units, 32, 4], the layout "fragments".
        scale: [ceil(N / 16), G, 16], float32, float16 or bfloat16.
        y: [M, N], contiguous; written.
        bits: of a code, 2, 4 or 8. 2-bit codes against float x must be ternary.
        columns: K.
        group: columns a scale; None is one scale a row.
        bias: [N], any float.
        residual: [M, N], contiguous, any float.
        quantize: turn float x into int8 codes, row by row, as kernel/device/row_codes.py.
        plan: how to cut it up; None chooses.

    Raises:
        UnsupportedError: for more than 64 rows, or a group that is not 32, 64, 128, ...
    """
    m, n = y.shape
    if m > MOST_TOKENS:
        raise UnsupportedError(f"decode: x has {m} rows: at most {MOST_TOKENS} at a time")
    if not m or not n:
        return
    groups = scale.shape[1]
    steps = (group or columns) // 32
    if groups > 1 and (steps * 32 != group or steps & (steps - 1)):
        raise UnsupportedError(f"decode: groups of {group}: allowed are 32 times a power of two")
    kind = torch.int8 if quantize else x.dtype
    row_blocks, units = codes.shape[:2]
    unit_bytes = 256 // bits * kind.itemsize
    try:
        chosen = plan or plan_for(
            m, row_blocks, units, unit_bytes, groups, scale.itemsize, multiprocessors(x.device)
        )
    except UnsupportedError:
        if m <= _TILE:
            raise
        half = -(-m // (2 * _TILE)) * _TILE
        for part in (slice(0, half), slice(half, m)):
            product(
                x[part], x_scale[part] if x_scale is not None else None, codes, scale, y[part],
                bits=bits, columns=columns, group=group, bias=bias,
                residual=residual[part] if residual is not None else None, quantize=quantize,
            )  # fmt: skip
        return
    doubled = 2 if bits == 2 else 1
    task = _Task(
        codes=codes.data_ptr(),
        scale=scale.data_ptr(),
        x=x.data_ptr(),
        x_scale=x_scale.data_ptr() if x_scale is not None else None,
        bias=bias.data_ptr() if bias is not None else None,
        residual=residual.data_ptr() if residual is not None else None,
        y=y.data_ptr(),
        x_pitch=x.stride(0),
        m=m,
        n=n,
        k=columns,
        row_blocks=row_blocks,
        units=units,
        groups=groups,
        group_steps_log2=(steps.bit_length() - 1) if groups > 1 else 0,
        scale_type=_TYPES[scale.dtype],
        x_type=_TYPES[x.dtype],
        bias_type=_TYPES[bias.dtype] if bias is not None else 0,
        residual_type=_TYPES[residual.dtype] if residual is not None else 0,
        y_type=_TYPES[y.dtype],
        team=chosen.team,
        ranks=chosen.ranks,
        factor=2.0 ** -(8 - bits) if kind == torch.int8 else 1.0 / doubled,
    )
    launch = _Launch(
        bits=bits,
        depth=chosen.depth,
        warps=chosen.warps,
        blocks=chosen.blocks,
        dependent=chosen.dependent,
    )
    status = build(kind).tercet_decode(ctypes.byref(task), ctypes.byref(launch), stream())
    if status:
        raise RuntimeError(f"decode: CUDA error {status} at launch")
