"""A planted fault; FAULT says which."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.interpreter.corrections import interpreting
from tercet.kernel.tuned import configuration
from tercet.packed_weight.triton.fragment_levels import KINDS, any_columns
from tercet.packed_weight.weight import PreparedWeight

OP = "embedding_packed"
FAULT = (
    "Ids are read as if they were contiguous: a view such as input_ids[:, :-1] or a "
    "transposed batch gives other tokens' rows."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward"]


@triton.jit
def _decode_rows(
    ids_ptr, codes_ptr, scale_ptr, zero_ptr, y_ptr, first, T, N, K, units, groups, group,
    BITS: tl.constexpr, KIND: tl.constexpr, HAS_IDS: tl.constexpr, HAS_ZERO: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    columns = tl.program_id(1) * BK + tl.arange(0, BK)
    n = tl.load(ids_ptr + t, t < T, 0).to(tl.int64) if HAS_IDS else first + t.to(tl.int64)
    known = (n >= 0) & (n < N)
    some = known[:, None] & (columns < K)[None, :]
    block = n // 16
    row_ptr = codes_ptr + (block * units * 128 + n % 8 * 16 + n % 16 // 8)
    y = any_columns(row_ptr[:, None], columns, some, BITS, KIND).to(tl.float32)
    at = (block * groups * 16 + n % 16)[:, None] + columns[None, :] // group * 16
    if HAS_ZERO:
        y -= tl.load(zero_ptr + at, some, 0.0).to(tl.float32)
    y *= tl.load(scale_ptr + at, some, 0.0).to(tl.float32)
    y = tl.where(known[:, None], y, float("nan"))
    place = t.to(tl.int64)[:, None] * K + columns[None, :]
    tl.store(y_ptr + place, y, (t < T)[:, None] & (columns < K)[None, :])


def decode_rows(
    weight: PreparedWeight,
    which: Tensor | range,
    dtype: torch.dtype,
    *,
    BT: int,
    BK: int,
    num_warps: int,
) -> Tensor:
    """Rows [*ids.shape, K] of W, or rows of a range of step 1, in that dtype.

    Args:
        weight: in fragments.
        which: int32 or int64 ids on the weight's device, or a range.
        dtype: of the result.
        BT, BK: rows and columns of a program.
        num_warps: of a program.
    """
    rows, columns = weight.shape
    ids = which if isinstance(which, Tensor) else None
    shape = (len(which),) if ids is None else ids.shape
    y = torch.empty((*shape, columns), dtype=dtype, device=weight.codes.device)
    if not y.numel():
        return y
    layout, count = weight.sizes, y.numel() // columns
    grid = (triton.cdiv(count, BT), triton.cdiv(columns, BK))
    _decode_rows[grid](
        ids, weight.codes, weight.scale, weight.zero, y,
        0 if isinstance(which, Tensor) else which.start,
        count, rows, columns, weight.codes.shape[1], layout.groups, layout.group,
        BITS=layout.bits, KIND=KINDS.get(layout.element.name, 0), HAS_IDS=ids is not None,
        HAS_ZERO=weight.zero is not None, BT=BT, BK=BK, num_warps=num_warps,
    )  # fmt: skip
    return y


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed, on a weight in fragments; an id that is no row gives NaN."""
    sizes = {"T": ids.numel(), "N": weight.shape[0], "K": weight.shape[1]}
    options = configuration("embedding_packed", "triton", sizes, _default(ids.numel()))
    return decode_rows(weight, ids, dtype, **options)


def _default(count: int) -> dict[str, int]:
    """Many programs for few tokens, long ones for many.

    Interpreted, an operation costs the same for a tile of any size.
    """
    if interpreting():
        return {"BT": 64, "BK": 256, "num_warps": 4}
    return {"BT": 1 if count <= 64 else 4, "BK": 512, "num_warps": 4}
