"""embedding_packed in Triton: each code of the chosen rows gathered by itself; reads fragments.

    y[t, k] = (level(code[ids[t], k]) - zero[ids[t], g]) * scale[ids[t], g]

A row of W has 64 bytes together of every unit of 512, and of these every second word: twice the
bytes of a row are read. The ids are looked at on the device alone, so that a CUDA graph can hold
the call and nothing waits for it; an id that is no row gives a row of NaN.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.interpreter.corrections import interpreting
from tercet.kernel.tuned import configuration
from tercet.packed_weight.triton.fragment_levels import KINDS, any_columns
from tercet.packed_weight.weight import PreparedWeight


@triton.jit
def _embedding_packed(
    ids_ptr, codes_ptr, scale_ptr, zero_ptr, y_ptr, T, N, K, units, groups, group,
    BITS: tl.constexpr, KIND: tl.constexpr, HAS_ZERO: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    columns = tl.program_id(1) * BK + tl.arange(0, BK)
    n = tl.load(ids_ptr + t, t < T, 0).to(tl.int64)
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


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed, on a weight in fragments; an id that is no row gives NaN."""
    rows, columns = weight.shape
    y = torch.empty((*ids.shape, columns), dtype=dtype, device=ids.device)
    if not y.numel():
        return y
    layout, count = weight.sizes, ids.numel()
    sizes = {"T": count, "N": rows, "K": columns}
    options = configuration("embedding_packed", "triton", sizes, _default(count))
    grid = (triton.cdiv(count, options["BT"]), triton.cdiv(columns, options["BK"]))
    _embedding_packed[grid](
        ids.contiguous(), weight.codes, weight.scale, weight.zero, y,
        count, rows, columns, weight.codes.shape[1], layout.groups, layout.group,
        BITS=layout.bits, KIND=KINDS.get(layout.element.name, 0), HAS_ZERO=weight.zero is not None,
        **options,
    )  # fmt: skip
    return y


def _default(count: int) -> dict[str, int]:
    """Many programs for few tokens, long ones for many.

    Interpreted, an operation costs the same for a tile of any size.
    """
    if interpreting():
        return {"BT": 64, "BK": 256, "num_warps": 4}
    return {"BT": 1 if count <= 64 else 4, "BK": 512, "num_warps": 4}
