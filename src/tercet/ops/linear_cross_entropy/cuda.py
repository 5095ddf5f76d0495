"""linear_cross_entropy around cuBLAS, its rows in CUDA C++: each row of logits is read once."""

import ctypes
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from tercet.kernel.jit.cuda import Build, check_launch, stream
from tercet.kernel.tuned import configuration
from tercet.ops.linear_cross_entropy import triton as short
from tercet.ops.linear_cross_entropy.schedule import DEFAULT, Rows, prepared, run
from tercet.ops.linear_cross_entropy.triton import gradient
from tercet.packed_weight.cpu.native import NUMBERS

__all__ = ["BUILDS", "build", "forward", "gradient"]

BUILDS = (Build(Path(__file__).parent / "softmax_rows.cu"),)
_BLOCK_BYTES = 64 * 1024
_MAX_CLUSTER = 8
_P, _I32, _I64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


@lru_cache(maxsize=1)
def build() -> ctypes.CDLL:
    """The compiled library. BuildError where it cannot be built."""
    library = BUILDS[0].load()
    library.tercet_softmax_rows.argtypes = (
        *(_I32, _P, _P, _I64, _I32, _I32, _P, _I64, _P, _P, _P, _I32, _P),
    )
    return library


def forward(
    x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str,
    x_gradient: bool, weight_gradient: bool,
    accumulate_float32: bool, divide_late: bool, in_place: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As op.linear_cross_entropy."""
    inputs = (
        ignore_index, reduction, x_gradient, weight_gradient, accumulate_float32, divide_late,
    )  # fmt: skip
    cluster = _cluster(weight.shape[0] * x.element_size())
    if cluster is None:
        return short.forward(x, weight, target, *inputs, in_place)
    sizes = {"M": x.shape[0], "H": x.shape[1], "V": weight.shape[0]}
    options = configuration("linear_cross_entropy", "cuda", sizes, DEFAULT)

    def softmax(rows: Rows) -> None:
        count = rows.target.shape[0]
        status = build().tercet_softmax_rows(
            NUMBERS[rows.logits.dtype], rows.logits.data_ptr(),
            None if rows.first is None else rows.first.data_ptr(), count, rows.classes,
            rows.piece, rows.target.data_ptr(), rows.ignore_index,
            rows.unit.data_ptr(), rows.losses.data_ptr(), rows.lse.data_ptr(), cluster, stream(),
        )  # fmt: skip
        check_launch(status, "linear_cross_entropy")

    return run((*prepared(x, weight, target), *inputs), options, softmax)


def _cluster(row_bytes: int) -> int | None:
    """How many blocks keep a row: a power of two; None where none can.

    A row must be whole vectors of 16 bytes, and fit into the largest cluster.
    """
    blocks = -(-row_bytes // _BLOCK_BYTES)
    cluster = 1 << (blocks - 1).bit_length()
    return cluster if cluster <= _MAX_CLUSTER and not row_bytes % 16 else None
