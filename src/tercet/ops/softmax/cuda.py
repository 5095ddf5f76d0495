"""softmax of long rows in CUDA C++: a cluster of blocks keeps a row on chip."""

import ctypes
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from tercet.kernel.jit.cuda import Build, check_launch, stream
from tercet.kernel.launch import as_rows
from tercet.kernel.tuned import configuration
from tercet.ops.softmax import triton as short
from tercet.packed_weight.cpu.native import NUMBERS

_ROWS = Build(Path(__file__).parent / "softmax.cu")
_STREAM = Build(Path(__file__).parent / "softmax_stream.cu")
BUILDS = (_ROWS, _STREAM)
_BLOCK_BYTES = 64 * 1024
_MAX_CLUSTER = 8
# a streamed row lies in the registers of 32 warps, of two to eight blocks
_STREAM_WARPS, _STREAM_BYTES = 32, 256 * 1024
_P, _I32, _I64, _F = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float


@lru_cache(maxsize=1)
def build() -> ctypes.CDLL:
    """The compiled library. BuildError where it cannot be built."""
    library = _ROWS.load()
    library.tercet_softmax.argtypes = (_I32, _P, _P, _I64, _I32, _I64, _I64, _F, _I32, _P)
    library.tercet_softmax_gradient.argtypes = (
        *(_I32, _P, _P, _P, _I64, _I32, _I64, _I64, _I64, _F, _I32, _P),
    )
    return library


@lru_cache(maxsize=1)
def _build_stream() -> ctypes.CDLL:
    library = _STREAM.load()
    library.tercet_softmax_stream.argtypes = (_I32, _P, _P, _I32, _I32, _I64, _F, _I32, _I32, _P)
    return library


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    rows = _vectors(x)
    cluster = _cluster(x.shape[-1] * x.element_size())
    if rows is None or cluster is None:
        return short.forward(x, scale)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    m, n = rows.shape
    streamed = configuration("softmax", "cuda", {"M": m, "N": n}, {"STREAM": 0})["STREAM"]
    if streamed and n * x.element_size() <= _STREAM_BYTES and m < 2**31:
        _raise(
            _build_stream().tercet_softmax_stream(
                NUMBERS[x.dtype], rows.data_ptr(), y.data_ptr(), m, n * x.element_size() // 16,
                rows.stride(0) * x.element_size(), scale, streamed, _STREAM_WARPS // streamed,
                stream(),
            )
        )  # fmt: skip
        return y
    _raise(
        build().tercet_softmax(
            NUMBERS[x.dtype], rows.data_ptr(), y.data_ptr(), m, n, rows.stride(0), n, scale,
            cluster, stream(),
        )
    )  # fmt: skip
    return y


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    grads, rows = _vectors(grad), _vectors(y)
    cluster = _cluster(2 * y.shape[-1] * y.element_size())
    if grads is None or rows is None or cluster is None:
        return short.gradient(grad, y, scale)
    grad_x = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    m, n = rows.shape
    _raise(
        build().tercet_softmax_gradient(
            NUMBERS[y.dtype], grads.data_ptr(), rows.data_ptr(), grad_x.data_ptr(), m, n,
            grads.stride(0), rows.stride(0), n, scale, cluster, stream(),
        )
    )  # fmt: skip
    return grad_x


def _vectors(x: Tensor) -> Tensor | None:
    """x as rows that can be read 16 bytes at a time, copied where they lie badly; else None."""
    if not x.numel() or x.shape[-1] * x.element_size() % 16:
        return None
    rows = as_rows(x)
    aligned = not rows.data_ptr() % 16 and not rows.stride(0) * rows.element_size() % 16
    return rows if aligned else rows.clone(memory_format=torch.contiguous_format)


def _cluster(row_bytes: int) -> int | None:
    """How many blocks keep a row: a power of two; None where even the largest cannot."""
    blocks = -(-row_bytes // _BLOCK_BYTES)
    cluster = 1 << (blocks - 1).bit_length()
    return cluster if cluster <= _MAX_CLUSTER else None


def _raise(status: int) -> None:
    check_launch(status, "softmax")
