"""grouped_linear_packed in Triton: one launch over (tokens of one expert) x (rows of its W).

A program finds its tile itself, from the offsets on the device: token tiles are numbered expert by
expert, empty experts have none, and a scan over the experts' tile counts says whose tile `at` is.
So the host only bounds the grid: R rows in E experts have at most (R + min(E, R) (BM - 1)) / BM
tiles, and programs beyond the last tile stop. A tile's product is
packed_weight/triton/packed_tile.py.
"""

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.interpreter.corrections import interpreting
from tercet.kernel.launch import as_rows
from tercet.kernel.tuned import configuration
from tercet.ops.grouped_linear_packed.arguments import GroupedCall, name_axes
from tercet.packed_weight.expert_weights import ExpertWeights, expert_blocks
from tercet.packed_weight.triton.fragment_levels import KINDS, PLAIN, whole_steps
from tercet.packed_weight.triton.packed_tile import TYPES, operand_type, packed_tile, tile_numbers
from tercet.packed_weight.triton.quantize_rows import quantize_rows

_WIDEST = 128


@triton.jit
def _find(offsets_ptr, at, T, E, EXPERTS: tl.constexpr, BM: tl.constexpr):
    """(expert, its first row in token tile `at`, the end of its rows); expert E: no such tile.

    Whatever the offsets hold, the rows are within 0 .. T - 1.
    """
    expert = tl.arange(0, EXPERTS)
    some = expert < E
    first = tl.load(offsets_ptr + expert, some, 0)
    last = tl.load(offsets_ptr + expert + 1, some, 0)
    through = tl.cumsum((last - first + BM - 1) // BM, 0)
    done = some & (through <= at)
    found = tl.sum(done.to(tl.int32), 0)
    before = tl.max(tl.where(done, through, 0), 0)
    inside = found < E
    row = tl.load(offsets_ptr + found, inside, 0) + (at - before) * BM
    end = tl.load(offsets_ptr + found + 1, inside, 0)
    return found, tl.maximum(row, 0), tl.minimum(end, T)


# T changes from call to call: a kernel of its own for multiples of 16 would be compiled in service
@triton.jit(do_not_specialize=["T"])
def _grouped(
    x_ptr, offsets_ptr, codes_ptr, scale_ptr, zero_ptr, bias_ptr, row_weight_ptr, x_scale_ptr,
    y_ptr, T, E, N, K, x_stride, blocks, units, groups, group,
    STEPS: tl.constexpr, EXPERTS: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr,
    X_FP8: tl.constexpr, DOT: tl.constexpr, WHOLE_STEPS: tl.constexpr, ONE_GROUP: tl.constexpr,
    HAS_ZERO: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_ROW_WEIGHT: tl.constexpr,
    HAS_X_SCALE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y [T, N]. Tiles of one expert's W follow one another, so that it is read as it lies."""
    tiles = tl.cdiv(N, BN)
    at = tl.program_id(0) // tiles
    first = tl.program_id(0) % tiles * BN
    expert, row, end = _find(offsets_ptr, at, T, E, EXPERTS, BM)
    if expert < E:
        m = row + tl.arange(0, BM)
        n = first + tl.arange(0, BN)
        there = m < end
        wide_m = m.to(tl.int64)[:, None]
        y = packed_tile(
            x_ptr + wide_m * x_stride, there, codes_ptr, scale_ptr, zero_ptr, expert * blocks,
            first, N, K, units, groups, group, STEPS,
            BITS, KIND, X_FP8, DOT, WHOLE_STEPS, ONE_GROUP, HAS_ZERO, BM, BN, BK,
        )  # fmt: skip
        if HAS_X_SCALE:
            y *= tl.load(x_scale_ptr + m, there, 0.0)[:, None]
        if HAS_BIAS:
            y += tl.load(bias_ptr + expert * N + n, n < N, 0.0).to(tl.float32)[None, :]
        if HAS_ROW_WEIGHT:
            y *= tl.load(row_weight_ptr + m, there, 0.0)[:, None]
        tl.store(y_ptr + wide_m * N + n[None, :], y, there[:, None] & (n < N)[None, :])


@triton.jit(do_not_specialize=["T"])
def _grouped_gradient(
    grad_ptr, offsets_ptr, codes_ptr, scale_ptr, zero_ptr, row_weight_ptr, out_ptr,
    T, E, N, K, grad_stride, blocks, units, groups, group,
    EXPERTS: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr, DOT: tl.constexpr,
    HAS_ZERO: tl.constexpr, HAS_ROW_WEIGHT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out [T, K]: row_weight * grad [T, N] W; W is rounded to DOT, the operands' type."""
    tiles = tl.cdiv(K, BK)
    at = tl.program_id(0) // tiles
    k = tl.program_id(0) % tiles * BK
    expert, row, end = _find(offsets_ptr, at, T, E, EXPERTS, BM)
    if expert < E:
        m = row + tl.arange(0, BM)
        there = m < end
        wide_m = m.to(tl.int64)[:, None]
        columns = k + tl.arange(0, BK)
        total = tl.zeros((BM, BK), tl.float32)
        for first in range(0, N, BN):
            n = first + tl.arange(0, BN)
            known = n < N
            block = (expert * blocks + first // 16 + tl.arange(0, BN // 16)).to(tl.int64)
            some = first + tl.arange(0, BN // 16) * 16 < N
            w = whole_steps(
                codes_ptr + block * units * 128, k, some, units, BITS, KIND, PLAIN, DOT, BN, BK
            )
            w = w.to(tl.float32)
            scale_at = (expert * blocks + n // 16).to(tl.int64) * groups * 16 + n % 16
            spread = scale_at[:, None] + (columns // group * 16)[None, :]
            inside = known[:, None] & (columns < K)[None, :]
            if HAS_ZERO:
                w -= tl.load(zero_ptr + spread, inside, 0.0).to(tl.float32)
            w *= tl.load(scale_ptr + spread, inside, 0.0).to(tl.float32)
            grad_at = grad_ptr + wide_m * grad_stride + n[None, :]
            grad = tl.load(grad_at, there[:, None] & known[None, :], 0.0)
            total = tl.dot(grad.to(DOT), w.to(DOT), total, input_precision="ieee")
        if HAS_ROW_WEIGHT:
            total *= tl.load(row_weight_ptr + m, there, 0.0)[:, None]
        written = there[:, None] & (columns < K)[None, :]
        tl.store(out_ptr + wide_m * K + columns[None, :], total, written)


def forward(call: GroupedCall) -> Tensor:
    """As op.grouped_linear_packed, on weights in fragments."""
    x, weight, bias, x_scale = call.x, call.weight, call.bias, call.x_scale
    _, rows, columns = weight.shape
    y = torch.empty((len(x), rows), dtype=call.out_dtype, device=x.device)
    if not y.numel():
        return y
    if call.activation != "none" and x_scale is None:
        x, x_scale, _ = quantize_rows(x, call.activation)
    layout, flat, sizes = weight.sizes, as_rows(x), call.sizes
    options = dict(configuration("grouped_linear_packed", "triton", sizes, _default(sizes)))
    fp8 = flat.dtype == torch.float8_e4m3fn
    numbers = tile_numbers(layout, weight.codes.shape[1], columns, options.pop("BK"))
    programs = token_tiles(sizes, options["BM"]) * triton.cdiv(rows, options["BN"])
    _grouped[(programs,)](
        flat.view(torch.uint8) if fp8 else flat, call.offsets.contiguous(), weight.codes,
        weight.scale, weight.zero, bias.contiguous() if bias is not None else None,
        call.row_weight.contiguous() if call.row_weight is not None else None,
        x_scale.contiguous() if x_scale is not None else None, y,
        sizes["T"], sizes["E"], rows, columns, flat.stride(0), expert_blocks(rows),
        EXPERTS=triton.next_power_of_2(sizes["E"]), X_FP8=fp8,
        DOT=operand_type(flat.dtype, layout), HAS_ZERO=weight.zero is not None,
        HAS_BIAS=bias is not None, HAS_ROW_WEIGHT=call.row_weight is not None,
        HAS_X_SCALE=x_scale is not None, **numbers, **options,
    )  # fmt: skip
    return y


def gradient(
    grad: Tensor,
    offsets: Tensor,
    weight: ExpertWeights,
    row_weight: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """row_weight * grad [T, N] W_e in dtype, on weights in fragments.

    W is rounded to 16 bits where grad and result are of one 16-bit type, and is not otherwise.
    """
    _, rows, columns = weight.shape
    out = torch.empty((len(grad), columns), dtype=dtype, device=grad.device)
    if not out.numel():
        return out
    layout, flat, sizes = weight.sizes, as_rows(grad), name_axes(grad, weight)
    default = _default(sizes) | {"BN": 128 if interpreting() else 32, "BK": _WIDEST}
    options = dict(
        configuration("grouped_linear_packed", "triton", sizes, default, direction="backward")
    )
    programs = token_tiles(sizes, options["BM"]) * triton.cdiv(columns, options["BK"])
    _grouped_gradient[(programs,)](
        flat, offsets.contiguous(), weight.codes, weight.scale, weight.zero,
        row_weight.contiguous() if row_weight is not None else None, out,
        sizes["T"], sizes["E"], rows, columns, flat.stride(0), expert_blocks(rows),
        weight.codes.shape[1], layout.groups, layout.group,
        EXPERTS=triton.next_power_of_2(sizes["E"]), BITS=layout.bits,
        KIND=KINDS.get(layout.element.name, 0), DOT=TYPES[torch.promote_types(flat.dtype, dtype)],
        HAS_ZERO=weight.zero is not None, HAS_ROW_WEIGHT=row_weight is not None, **options,
    )  # fmt: skip
    return out


def token_tiles(sizes: Mapping[str, int], most: int) -> int:
    """The most tiles of `most` rows that T rows in E experts can make."""
    rows = sizes["T"]
    return (rows + min(sizes["E"], rows) * (most - 1)) // most


def _default(sizes: dict[str, int]) -> dict[str, int]:
    """By how many rows an expert has, the fastest of the tiles that were tried on an H200.

    Interpreted, an operation costs the same for a tile of any size.
    """
    if interpreting():
        return {"BM": 32, "BN": 128, "BK": _WIDEST, "num_warps": 4}
    each = sizes["T"] / sizes["E"]
    rows = 16 if each <= 8 else 32 if each <= 16 else 64
    # where few experts have rows at all, narrow tiles give every multiprocessor one
    columns = 128 if 0.5 < each <= 8 else 64
    return {"BM": rows, "BN": columns, "BK": _WIDEST, "num_warps": 4}
