"""A planted fault; FAULT says which."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.interpreter.corrections import interpreting
from tercet.kernel.launch import as_rows
from tercet.kernel.tuned import configuration
from tercet.packed_weight.call import PackedCall, apply_epilogue
from tercet.packed_weight.triton.packed_tile import operand_type, packed_tile, tile_numbers
from tercet.packed_weight.triton.quantize_rows import quantize_rows

OP = "linear_packed"
FAULT = (
    "The residual's rows are taken to lie stride(-2) apart, so a residual [B, T, N] that is a "
    "slice along T of a longer one (h[:, 1:]) is read from wrong rows from the second "
    "sequence on."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward"]

_WIDEST = 128


@triton.jit
def _linear_packed(
    x_ptr, codes_ptr, scale_ptr, zero_ptr, bias_ptr, residual_ptr, x_scale_ptr, y_ptr,
    M, N, K, x_stride, residual_stride, units, groups, group,
    STEPS: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr, X_FP8: tl.constexpr,
    DOT: tl.constexpr, WHOLE_STEPS: tl.constexpr, ONE_GROUP: tl.constexpr,
    HAS_ZERO: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    HAS_X_SCALE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y [M, N]; STEPS of BK columns make a group of `group`. DOT is the type of the operands."""
    tiles = tl.cdiv(M, BM)
    m = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    first = tl.program_id(0) // tiles * BN
    n = first + tl.arange(0, BN)
    wide_m = m.to(tl.int64)[:, None]
    y = packed_tile(
        x_ptr + wide_m * x_stride, m < M, codes_ptr, scale_ptr, zero_ptr, 0,
        first, N, K, units, groups, group, STEPS,
        BITS, KIND, X_FP8, DOT, WHOLE_STEPS, ONE_GROUP, HAS_ZERO, BM, BN, BK,
    )  # fmt: skip
    if HAS_X_SCALE:
        y *= tl.load(x_scale_ptr + m, m < M, 0.0)[:, None]
    if HAS_BIAS:
        y += tl.load(bias_ptr + n, n < N, 0.0).to(tl.float32)[None, :]
    written = (m < M)[:, None] & (n < N)[None, :]
    if HAS_RESIDUAL:
        at = wide_m * residual_stride + n[None, :]
        y += tl.load(residual_ptr + at, written, 0.0).to(tl.float32)
    tl.store(y_ptr + wide_m * N + n[None, :], y, written)


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed, on a weight in fragments."""
    x, weight, bias, x_scale = call.x, call.weight, call.bias, call.x_scale
    rows, columns = weight.shape
    y = torch.empty((*x.shape[:-1], rows), dtype=call.out_dtype, device=x.device)
    if not y.numel() or not columns:
        return apply_epilogue(y.float().zero_(), None, bias, call.residual, call.out_dtype)
    if call.activation != "none" and x_scale is None:
        x, x_scale, _ = quantize_rows(x, call.activation)
    layout, flat = weight.sizes, as_rows(x)
    m, fp8 = len(flat), flat.dtype == torch.float8_e4m3fn
    sizes = {"M": m, "N": rows, "K": columns}
    options = dict(configuration("linear_packed", "triton", sizes, _default(m)))
    numbers = tile_numbers(layout, weight.codes.shape[1], columns, options.pop("BK"))
    held = call.residual
    if held is not None and held.stride(-1) != 1:
        held = held.contiguous()
    programs = triton.cdiv(m, options["BM"]) * triton.cdiv(rows, options["BN"])
    _linear_packed[(programs,)](
        flat.view(torch.uint8) if fp8 else flat, weight.codes, weight.scale, weight.zero,
        bias.contiguous() if bias is not None else None, held,
        x_scale.reshape(-1).contiguous() if x_scale is not None else None, y,
        m, rows, columns, flat.stride(0),
        held.stride(-2) if held is not None and held.dim() > 1 else 0,
        X_FP8=fp8, DOT=operand_type(flat.dtype, layout),
        HAS_ZERO=weight.zero is not None, HAS_BIAS=bias is not None, HAS_RESIDUAL=held is not None,
        HAS_X_SCALE=x_scale is not None, **numbers, **options,
    )  # fmt: skip
    return y


def _default(m: int) -> dict[str, int]:
    """Narrow tiles for few tokens, so that every multiprocessor has some rows of W.

    Interpreted, an operation costs the same for a tile of any size.
    """
    if interpreting():
        return {"BM": 256 if m > 16 else 16, "BN": 128, "BK": _WIDEST, "num_warps": 4}
    if m <= 16:
        return {"BM": 16, "BN": 32, "BK": _WIDEST, "num_warps": 4}
    return {"BM": 32 if m <= 32 else 64, "BN": 64, "BK": 64, "num_warps": 4}
