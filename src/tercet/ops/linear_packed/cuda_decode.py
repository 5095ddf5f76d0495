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

MOST_TOKENS = 16
_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int8: 3}
_SHARED_BYTES = 227 * 1024
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
        *((name, ctypes.c_int64) for name in ("x_pitch", "residual_pitch")),
        *((name, ctypes.c_int) for name in ("m", "n", "k", "units", "groups")),
        *((name, ctypes.c_int) for name in ("group_steps_log2", "scale_type", "x_type")),
        *((name, ctypes.c_int) for name in ("bias_type", "residual_type", "y_type")),
        *((name, ctypes.c_int) for name in ("rows_each", "rows_more", "warp_units")),
        *((name, ctypes.c_int) for name in ("stages", "stage_bytes")),
        ("factor", ctypes.c_float),
    )


class _Launch(ctypes.Structure):
    """Mirrors `struct Launch` of decode_launch.cuh."""

    _fields_ = tuple(
        (name, ctypes.c_int) for name in ("bits", "pieces", "warps", "blocks", "dependent")
    )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a product is cut up.

    Attributes:
        blocks: in the grid; each takes a run of row-blocks.
        warps: a block; they split K.
        stages: pieces of a row-block that a warp has under way.
        pieces: units a piece; 0 is the usual.
        dependent: whether the kernel may start before the one ahead of it ends.
    """

    blocks: int
    warps: int = 8
    stages: int = 4
    pieces: int = 0
    dependent: bool = False


@cache
def build(x_dtype: torch.dtype) -> ctypes.CDLL:
    """The library for products in int8, bfloat16 or float16; BuildError where there is none."""
    library = build_cuda(Path(__file__).parent / _LIBRARIES[x_dtype])
    library.tercet_decode.argtypes = (
        ctypes.POINTER(_Task), ctypes.POINTER(_Launch), ctypes.c_void_p,
    )  # fmt: skip
    return library


def plan_for(row_blocks: int, units: int, processors: int) -> Plan:
    """Two blocks a multiprocessor.

    Args:
        row_blocks, units: of W.
        processors: multiprocessors of the GPU.
    """
    rows = -(-row_blocks // (2 * processors))
    return Plan(blocks=-(-row_blocks // rows))


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
    """y = x W^T * scales + bias + residual, sixteen rows of x at a time.

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
        residual: [M, N] with unit stride along N, any float.
        quantize: turn float x into int8 codes, row by row, as kernel/device/row_codes.py.
        plan: how to cut it up; None chooses.

    Raises:
        UnsupportedError: for a group that is not 32, 64, 128, ...
    """
    m, n = y.shape
    if not m or not n:
        return
    groups = scale.shape[1]
    steps = (group or columns) // 32
    if groups > 1 and (steps * 32 != group or steps & (steps - 1)):
        raise UnsupportedError(f"decode: groups of {group}: allowed are 32 times a power of two")
    kind = torch.int8 if quantize else x.dtype
    row_blocks, units = codes.shape[:2]
    if m > MOST_TOKENS:
        for at in range(0, m, MOST_TOKENS):
            part = slice(at, at + MOST_TOKENS)
            product(
                x[part], x_scale[part] if x_scale is not None else None, codes, scale, y[part],
                bits=bits, columns=columns, group=group, bias=bias,
                residual=residual[part] if residual is not None else None, quantize=quantize,
                plan=plan,
            )  # fmt: skip
        return
    chosen = plan or plan_for(row_blocks, units, multiprocessors(x.device))
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
        residual_pitch=residual.stride(0) if residual is not None else 0,
        m=m,
        n=n,
        k=columns,
        units=units,
        groups=groups,
        group_steps_log2=(steps.bit_length() - 1) if groups > 1 else 0,
        scale_type=_TYPES[scale.dtype],
        x_type=_TYPES[x.dtype],
        bias_type=_TYPES[bias.dtype] if bias is not None else 0,
        residual_type=_TYPES[residual.dtype] if residual is not None else 0,
        y_type=_TYPES[y.dtype],
        rows_each=row_blocks // chosen.blocks,
        rows_more=row_blocks % chosen.blocks,
        warp_units=-(-units // chosen.warps),
        stages=chosen.stages,
        factor=2.0 ** -(8 - bits) if kind == torch.int8 else 1.0 / doubled,
    )
    launch = _Launch(
        bits=bits,
        pieces=chosen.pieces,
        warps=chosen.warps,
        blocks=chosen.blocks,
        dependent=chosen.dependent,
    )
    status = build(kind).tercet_decode(ctypes.byref(task), ctypes.byref(launch), stream())
    if status:
        raise RuntimeError(f"decode: CUDA error {status} at launch")
