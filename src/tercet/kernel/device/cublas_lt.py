"""cuBLASLt: a matrix product by the kernel of a chosen tile, where cuBLAS picks a slower one.

torch gives no choice among cuBLAS's kernels. Its library offers about eight for a product; on an
H200 the one that cuBLAS takes for a sum over 768 tokens into [131072, 4096] bfloat16 lasts 1.52 ms,
that of tile 128 x 160, which stores one tile while it computes the next, 1.17 ms. Called through
ctypes, by the enumerations of cublasLt.h, in the library that torch has loaded.
"""

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tercet.kernel.jit.cuda import stream

__all__ = ["tiled_product"]

_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}  # cudaDataType_t
_COMPUTE_FLOAT32 = 68  # cublasComputeType_t
_TRANSPOSE_A, _TRANSPOSE_B = 3, 4  # cublasLtMatmulDescAttributes_t
_TILE = 1  # cublasLtMatmulAlgoConfigAttributes_t
_CANDIDATES = 16
_ALIGNMENT = 256  # that the library takes for granted, in bytes


class _Candidate(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True, kw_only=True)
class Operand:
    """A row-major matrix [rows, columns] as the library, which goes by columns, has to read it.

    Attributes:
        rows, columns: of what lies in memory, by columns.
        step: elements from a column to the next.
        transposed: whether what lies there is the matrix itself; else it is its transpose.
    """

    rows: int
    columns: int
    step: int
    transposed: bool


def operand(matrix: Tensor) -> Operand | None:
    """None where neither rows nor columns of the matrix [R, C] are contiguous."""
    (rows, columns), (down, right) = matrix.shape, matrix.stride()
    if right == 1 and down >= columns:
        return Operand(rows=columns, columns=rows, step=down, transposed=False)
    if down == 1 and right >= rows:
        return Operand(rows=rows, columns=columns, step=right, transposed=True)
    return None


def tiled_product(total: Tensor, left: Tensor, right: Tensor, *, tile: int, fresh: bool) -> bool:
    """total (+)= left @ right, summed in float32 and rounded once, by a kernel with that tile.

    Args:
        total: [M, N], rows contiguous, of left's dtype or float32, on a GPU.
        left, right: [M, K] and [K, N], both float16 or both bfloat16.
        tile: a cublasLtMatmulTile_t, of the transposed product.
        fresh: whether total's content, which may be anything, is replaced.

    Returns:
        Whether it was done: not for other tensors, nor where the library offers no such kernel
        that needs no workspace.
    """
    first, second, out = operand(right), operand(left), operand(total)
    aligned = not any(each.data_ptr() % _ALIGNMENT for each in (total, left, right))
    if first is None or second is None or out is None or out.transposed or not aligned:
        return False
    if left.dtype not in (torch.float16, torch.bfloat16):
        return False
    plan = _plan(total.device.index, left.dtype, total.dtype, first, second, out, tile)
    if plan is None:
        return False
    product, layouts, algorithm = plan
    one, beta = ctypes.c_float(1.0), ctypes.c_float(0.0 if fresh else 1.0)
    a, b, d = (ctypes.c_void_p(each.data_ptr()) for each in (right, left, total))
    _check_status(
        _library().cublasLtMatmul(
            _handle(total.device.index), product, ctypes.byref(one), a, layouts[0], b, layouts[1],
            ctypes.byref(beta), d, layouts[2], d, layouts[2], algorithm, None, ctypes.c_size_t(0),
            ctypes.c_void_p(stream()),
        )
    )  # fmt: skip
    return True


@lru_cache(maxsize=1)
def _library() -> Any:
    """The library that torch uses; None where there is none."""
    version = torch.version.cuda
    try:
        return ctypes.CDLL(f"libcublasLt.so.{version.partition('.')[0]}") if version else None
    except OSError:
        return None


@lru_cache(maxsize=8)
def _handle(device: int) -> ctypes.c_void_p:
    """Of the device, which is the current one."""
    del device
    return _create(_library().cublasLtCreate)


@lru_cache(maxsize=256)
def _plan(
    device: int, dtype: torch.dtype, out_dtype: torch.dtype,
    first: Operand, second: Operand, out: Operand, tile: int,
) -> tuple[ctypes.c_void_p, list[ctypes.c_void_p], Any] | None:  # fmt: skip
    """The product's description, its layouts and an algorithm with that tile, for good."""
    library = _library()
    if library is None:
        return None
    product = _create(library.cublasLtMatmulDescCreate, _COMPUTE_FLOAT32, _TYPES[torch.float32])
    for attribute, each in ((_TRANSPOSE_A, first), (_TRANSPOSE_B, second)):
        value = ctypes.c_int32(each.transposed)
        size = ctypes.c_size_t(ctypes.sizeof(value))
        _check_status(
            library.cublasLtMatmulDescSetAttribute(product, attribute, ctypes.byref(value), size)
        )
    layouts = [
        _create(
            library.cublasLtMatrixLayoutCreate, _TYPES[kind], ctypes.c_uint64(each.rows),
            ctypes.c_uint64(each.columns), ctypes.c_int64(each.step),
        )
        for each, kind in ((first, dtype), (second, dtype), (out, out_dtype))
    ]  # fmt: skip
    # as it is made it allows no workspace
    preference = _create(library.cublasLtMatmulPreferenceCreate)
    found, count = (_Candidate * _CANDIDATES)(), ctypes.c_int()
    status = library.cublasLtMatmulAlgoGetHeuristic(
        _handle(device), product, *layouts, layouts[2], preference, _CANDIDATES, found,
        ctypes.byref(count),
    )  # fmt: skip
    _check_status(library.cublasLtMatmulPreferenceDestroy(preference))
    for candidate in found[: 0 if status else count.value]:
        if candidate.state == 0 and _tile_of(candidate) == tile:
            return product, layouts, ctypes.byref(candidate.algorithm)
    return None


def _tile_of(candidate: _Candidate) -> int:
    value, written = ctypes.c_uint32(), ctypes.c_size_t()
    _check_status(
        _library().cublasLtMatmulAlgoConfigGetAttribute(
            ctypes.byref(candidate.algorithm), _TILE, ctypes.byref(value),
            ctypes.c_size_t(ctypes.sizeof(value)), ctypes.byref(written),
        )
    )  # fmt: skip
    return value.value


def _create(create: Any, *arguments: Any) -> ctypes.c_void_p:
    """What the library's `create` makes."""
    made = ctypes.c_void_p()
    _check_status(create(ctypes.byref(made), *arguments))
    return made


def _check_status(status: int) -> None:
    if status:
        raise RuntimeError(f"cuBLASLt: status {status} (cublasStatus_t)")
