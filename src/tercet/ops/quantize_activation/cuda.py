"""quantize_activation in CUDA C++: a block holds a row of 16-bit numbers; long ones stream."""

import ctypes
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from tercet.kernel.jit.cuda import Build, check_launch, stream
from tercet.kernel.launch import as_rows
from tercet.kernel.tuned import configuration
from tercet.ops.quantize_activation import triton as plain
from tercet.packed_weight.row_codes import Quantized, empty

BUILDS = (Build(Path(__file__).parent / "quantize_activation.cu"),)
_UNIT = 8  # elements that are read at once: 16 bytes
_SHARED_BYTES = 220 * 1024
_MOST_VECTORS = 8
_MAX_WARPS, _HELD_WARPS = 32, 16
_SHORT = 4096
_PAIRS = (torch.float16, torch.bfloat16)
_P, _I32, _I64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


@lru_cache(maxsize=1)
def build() -> ctypes.CDLL:
    """The compiled library. BuildError where it cannot be built."""
    library = BUILDS[0].load()
    library.tercet_quantize.argtypes = (
        *(_I32, _I32, _P, _P, _P, _P),
        *(_I32, _I32, _I64, _I32, _I32, _I32, _P),
    )
    return library


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation."""
    rows = as_rows(x)
    m, k = rows.shape
    if not _fits(rows):
        return plain.forward(x, element)
    codes, scale, row_sum = empty(x.shape, element, x.device)
    chosen = configuration("quantize_activation", "cuda", {"M": m, "K": k}, _default(k))
    # a configuration of shorter rows may not hold this one
    vectors = chosen["VECTORS"] if k <= _longest(chosen["VECTORS"], _HELD_WARPS) else _MOST_VECTORS
    warps = -(-k // (32 * _UNIT * vectors))
    under_way = min(chosen["STAGES"], _SHARED_BYTES // (512 * vectors * warps))
    stages = 0 if warps <= _HELD_WARPS else max(1, under_way)
    status = build().tercet_quantize(
        x.dtype == torch.bfloat16, element != "int8",
        rows.data_ptr(), codes.data_ptr(), scale.data_ptr(), row_sum.data_ptr(),
        m, k, rows.stride(0) * rows.element_size(), vectors, warps, stages, stream(),
    )  # fmt: skip
    check_launch(status, "quantize_activation")
    return codes, scale, row_sum


def _fits(rows: Tensor) -> bool:
    """Whether rows can be read 16 bytes at a time, and one fits the registers of a block."""
    k, step = rows.shape[1], rows.stride(0) * rows.element_size()
    aligned = not (k % _UNIT or rows.data_ptr() % 16 or step % 16)
    held = rows.dtype in _PAIRS and 0 < k <= _longest(_MOST_VECTORS, _MAX_WARPS)
    return aligned and held and 0 < rows.shape[0] < 2**31


def _longest(vectors: int, warps: int) -> int:
    """Elements that the lanes of so many warps hold, with so many units each."""
    return 32 * _UNIT * vectors * warps


def _default(k: int) -> dict[str, int]:
    """Few units a lane for short rows, so that blocks have warps; one streamed row under way."""
    return {"VECTORS": 4 if k <= _SHORT else _MOST_VECTORS, "STAGES": 1}
