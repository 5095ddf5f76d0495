"""linear_qat in Triton: one product of codes, tiled for the tensor cores, and what feeds it.

Forward: x is quantized per token (read once, one byte an element written), then the product with
the codes of W; the sums never leave registers as integers. Backward: grad * scale is quantized per
token and multiplied with the transposed codes; the gradient of W is a float product by cuBLAS with
x^, or a product of codes, of grad * x_scale quantized per column and x's codes, both transposed:
8-bit tensor cores want both operands contiguous along the sum.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.device.quantize_rows import quantize_rows
from tercet.kernel.device.random_uniform import uniform
from tercet.kernel.device.row_quantizer import absolute_bits, encode, ratio_to, scale_of
from tercet.kernel.interpreter import interpreting
from tercet.kernel.launch import as_rows, multiprocessors
from tercet.kernel.tuned import configuration
from tercet.ops.linear_qat.torch_path import float_product

_HELD = 16384
_TILES_ABOVE = 8
_SIDE = 64
_BLOCK = 4096


@triton.jit
def _tile(M, N, BM: tl.constexpr, BN: tl.constexpr, ABOVE: tl.constexpr):
    """This program's tile: columns of ABOVE tiles, so that neighbours share what they read."""
    above, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    column = tl.program_id(0) // (ABOVE * across)
    height = tl.minimum(above - column * ABOVE, ABOVE)
    within = tl.program_id(0) % (ABOVE * across)
    return column * ABOVE + within % height, within // height


@triton.jit
def _product(
    a_ptr, b_ptr, row_ptr, column_ptr, bias_ptr, out_ptr,
    M, N, K, a_stride, b_stride,
    HAS_COLUMN: tl.constexpr, ONE_COLUMN: tl.constexpr, HAS_BIAS: tl.constexpr,
    WHOLE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    ABOVE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """out [M, N] = (a [M, K] b^T [K, N]) * column [N] * row [M] + bias [N]; a and b int8.

    Rows beyond the last read the last: no mask in the loop where K is WHOLE steps.
    """
    m, n = _tile(M, N, BM, BN, ABOVE)
    m = m * BM + tl.arange(0, BM)
    n = n * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a_at = a_ptr + tl.minimum(m, M - 1).to(tl.int64)[:, None] * a_stride + k[None, :]
    b_at = b_ptr + tl.minimum(n, N - 1).to(tl.int64)[:, None] * b_stride + k[None, :]
    total = tl.zeros((BM, BN), tl.int32)
    for first in tl.range(0, K, BK, num_stages=STAGES):
        if WHOLE:
            a, b = tl.load(a_at), tl.load(b_at)
        else:
            inside = (first + k < K)[None, :]
            a, b = tl.load(a_at, inside, 0), tl.load(b_at, inside, 0)
        total = tl.dot(a, tl.trans(b), total, out_dtype=tl.int32)
        a_at += BK
        b_at += BK
    y = total.to(tl.float32)
    if HAS_COLUMN:
        column_at = column_ptr + (tl.minimum(n, 0) if ONE_COLUMN else n)
        y *= tl.load(column_at, n < N, 0.0)[None, :]
    y *= tl.load(row_ptr + m, m < M, 0.0)[:, None]
    if HAS_BIAS:
        y += tl.load(bias_ptr + n, n < N, 0.0).to(tl.float32)[None, :]
    at = m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(out_ptr + at, y, (m < M)[:, None] & (n < N)[None, :])


@triton.jit
def _scaled(grad_ptr, column_ptr, rows, columns, M, N, stride, ONE_COLUMN: tl.constexpr):
    """grad * column [ROWS, BLOCK], float32; whether each element exists."""
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    at = rows.to(tl.int64)[:, None] * stride + columns[None, :]
    column = tl.load(column_ptr + (columns * 0 if ONE_COLUMN else columns), columns < N, 0.0)
    return tl.load(grad_ptr + at, inside, 0.0).to(tl.float32) * column[None, :], inside


@triton.jit
def _scaled_rows(
    grad_ptr, column_ptr, codes_ptr, scale_ptr, M, N, stride,
    ONE_COLUMN: tl.constexpr, HELD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """int8 codes and scale of each row of grad [M, N] * column [N], held or read twice."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    out = codes_ptr + rows.to(tl.int64)[:, None] * N
    within = tl.arange(0, BLOCK)
    if HELD:
        h, inside = _scaled(grad_ptr, column_ptr, rows, within, M, N, stride, ONE_COLUMN)
        scale = scale_of(tl.max(absolute_bits(h), 1), False)
        codes, _ = encode(h, scale, False)
        tl.store(out + within[None, :], codes, inside)
    else:
        bits = tl.zeros((ROWS, BLOCK), tl.int32)
        for first in range(0, N, BLOCK):
            h, _ = _scaled(grad_ptr, column_ptr, rows, first + within, M, N, stride, ONE_COLUMN)
            bits = tl.maximum(bits, absolute_bits(h))
        scale = scale_of(tl.max(bits, 1), False)
        for first in range(0, N, BLOCK):
            columns = first + within
            h, inside = _scaled(grad_ptr, column_ptr, rows, columns, M, N, stride, ONE_COLUMN)
            codes, _ = encode(h, scale, False)
            tl.store(out + columns[None, :], codes, inside)
    tl.store(scale_ptr + rows, scale, rows < M)


@triton.jit
def _token_tile(grad_ptr, x_scale_ptr, m, n, M, N, stride):
    """(grad * x_scale)^T [n, m], float32."""
    inside = (m < M)[:, None] & (n < N)[None, :]
    grad = tl.load(grad_ptr + m.to(tl.int64)[:, None] * stride + n[None, :], inside, 0.0)
    scaled = grad.to(tl.float32) * tl.load(x_scale_ptr + m, m < M, 0.0)[:, None]
    return tl.trans(tl.where(inside, scaled, 0.0))


@triton.jit
def _column_parts(
    grad_ptr, x_scale_ptr, part_ptr, M, N, stride, rows,
    SIDE: tl.constexpr,
):  # fmt: skip
    """part [P, N]: the largest bit pattern of grad * x_scale in `rows` rows of each column."""
    n = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    start = tl.program_id(1) * rows
    bits = tl.zeros((SIDE, SIDE), tl.int32)
    for first in range(start, tl.minimum(start + rows, M), SIDE):
        m = first + tl.arange(0, SIDE)
        bits = tl.maximum(
            bits, absolute_bits(_token_tile(grad_ptr, x_scale_ptr, m, n, M, N, stride))
        )
    at = tl.program_id(1).to(tl.int64) * N + n
    tl.store(part_ptr + at, tl.max(bits, 1), n < N)


@triton.jit
def _column_codes(
    grad_ptr, x_scale_ptr, part_ptr, seed_ptr, codes_ptr, scale_ptr, M, N, stride, parts,
    RANDOM: tl.constexpr, PARTS: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """codes [N, M] of the columns of grad * x_scale, and their scales [N]."""
    n = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    m = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    part = tl.arange(0, PARTS)
    known = (n < N)[:, None] & (part < parts)[None, :]
    bits = tl.load(part_ptr + part.to(tl.int64)[None, :] * N + n[:, None], known, 0)
    scale = scale_of(tl.max(bits, 1), False)
    tl.store(scale_ptr + n, scale, (n < N) & (tl.program_id(1) == 0))
    h = _token_tile(grad_ptr, x_scale_ptr, m, n, M, N, stride)
    if RANDOM:
        ratio = tl.clamp(ratio_to(h, scale), -127.0, 127.0)
        number = uniform(tl.load(seed_ptr), n, n * 0 + tl.program_id(1) * SIDE, tl.cdiv(M, 4), SIDE)
        low = tl.floor(ratio)
        codes = (low + tl.where(number < ratio - low, 1.0, 0.0)).to(tl.int32).to(tl.int8)
    else:
        codes, _ = encode(h, scale, False)
    at = n.to(tl.int64)[:, None] * M + m[None, :]
    tl.store(codes_ptr + at, codes, (n < N)[:, None] & (m < M)[None, :])


@triton.jit
def _dequantized(codes_ptr, scale_ptr, out_ptr, COUNT, K, BLOCK: tl.constexpr):
    """out = codes [M, K] * scale [M], of COUNT elements."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < COUNT
    scale = tl.load(scale_ptr + at // K, inside, 0.0)
    tl.store(out_ptr + at, tl.load(codes_ptr + at, inside, 0).to(tl.float32) * scale, inside)


@triton.jit
def _transpose(in_ptr, out_ptr, ROWS, COLUMNS, stride, SIDE: tl.constexpr):
    """out [COLUMNS, ROWS] of int8 in [ROWS, COLUMNS]."""
    r = tl.program_id(0).to(tl.int64) * SIDE + tl.arange(0, SIDE)
    c = tl.program_id(1).to(tl.int64) * SIDE + tl.arange(0, SIDE)
    tile = tl.load(
        in_ptr + r[:, None] * stride + c[None, :], (r < ROWS)[:, None] & (c < COLUMNS)[None, :], 0
    )
    inside = (c < COLUMNS)[:, None] & (r < ROWS)[None, :]
    tl.store(out_ptr + c[:, None] * ROWS + r[None, :], tl.trans(tile), inside)


def forward(
    x: Tensor,
    weight: Tensor | None,
    codes: Tensor,
    scale: Tensor,
    codes_t: Tensor | None,
    bias: Tensor | None,
    x_codes: Tensor | None,
    x_scale: Tensor | None,
    seed: Tensor | None,
    weight_gradient: str,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.linear_qat."""
    del weight, codes_t, seed, weight_gradient
    kept = torch.empty(0, dtype=torch.int8, device=x.device)
    kept_scale = torch.empty(0, dtype=torch.float32, device=x.device)
    if x_codes is None or x_scale is None:
        kept, kept_scale, _ = quantize_rows(as_rows(x), "int8")
        x_codes, x_scale = kept, kept_scale
    shape = (*x.shape[:-1], codes.shape[0])
    y = product(as_rows(x_codes), codes, x_scale, scale, bias, out_dtype, "forward")
    return y.reshape(shape), kept, kept_scale


def gradient(
    grad: Tensor,
    codes: Tensor,
    scale: Tensor,
    codes_t: Tensor | None,
    x_codes: Tensor,
    x_scale: Tensor,
    seed: Tensor | None,
    weight_gradient: str,
    x_dtype: torch.dtype | None,
    weight_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor]:
    """As op's linear_qat_gradient."""
    grad_x = torch.empty(0, dtype=x_dtype or grad.dtype, device=grad.device)
    grad_weight = torch.empty(0, dtype=weight_dtype or grad.dtype, device=grad.device)
    grads, x_scale = as_rows(grad), x_scale.contiguous()
    if x_dtype is not None:
        back, size = _coded_rows(grads, scale)
        if codes_t is None:
            codes_t = transpose(codes)
        grad_x = product(back, codes_t, size, None, None, x_dtype, "backward")
    if weight_dtype is not None and weight_gradient == "int8":
        rounded, size = _coded_columns(grads, x_scale, seed)
        seen = transpose(x_codes)
        grad_weight = product(rounded, seen, size, None, None, weight_dtype, "backward")
    elif weight_dtype is not None:
        grad_weight = float_product(grads, _decoded(x_codes, x_scale, grad.dtype), weight_dtype)
    return grad_x, grad_weight


def product(
    a: Tensor,
    b: Tensor,
    row: Tensor,
    column: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
    direction: str,
) -> Tensor:
    """(a [M, K] b^T [K, N]) * column [N] * row [M] + bias [N] in dtype; a and b int8."""
    (m, k), n = a.shape, b.shape[0]
    out = torch.empty((m, n), dtype=dtype, device=a.device)
    if not out.numel():
        return out
    a, b = as_rows(a), as_rows(b)
    options = dict(
        configuration("linear_qat", "triton", {"M": m, "N": n, "K": k}, _default(), direction)
    )
    bm, bn, bk = (options.pop(name) for name in ("BM", "BN", "BK"))
    _product[(triton.cdiv(m, bm) * triton.cdiv(n, bn),)](
        a, b, row.reshape(-1).contiguous(), column.contiguous() if column is not None else None,
        bias.contiguous() if bias is not None else None, out,
        m, n, k, a.stride(0), b.stride(0),
        HAS_COLUMN=column is not None, ONE_COLUMN=column is not None and column.numel() == 1,
        HAS_BIAS=bias is not None, WHOLE=k % bk == 0, BM=bm, BN=bn, BK=bk, ABOVE=_TILES_ABOVE,
        **options,
    )  # fmt: skip
    return out


def transpose(codes: Tensor) -> Tensor:
    """codes [R, C] int8 as [C, R], contiguous."""
    rows, (r, c) = as_rows(codes), codes.shape
    out = torch.empty((c, r), dtype=codes.dtype, device=codes.device)
    side = _side()
    if out.numel():
        _transpose[(triton.cdiv(r, side), triton.cdiv(c, side))](
            rows, out, r, c, rows.stride(0), SIDE=side, num_warps=4
        )
    return out


def _coded_rows(grads: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [M, N] and scales [M] of grad * scale, per token."""
    m, n = grads.shape
    codes = torch.empty((m, n), dtype=torch.int8, device=grads.device)
    size = torch.empty(m, dtype=torch.float32, device=grads.device)
    if not codes.numel():
        return codes, size.zero_()
    wanted = triton.next_power_of_2(n)
    held = wanted <= (128 if interpreting() else _HELD)
    block = wanted if held else min(wanted, _BLOCK)
    rows = max(1, min((1 << 14 if interpreting() else 1024) // block, triton.next_power_of_2(m)))
    _scaled_rows[(triton.cdiv(m, rows),)](
        grads, scale.contiguous(), codes, size, m, n, grads.stride(0),
        ONE_COLUMN=scale.numel() == 1, HELD=held, ROWS=rows, BLOCK=block,
        num_warps=min(max(block // 512, 4), 32),
    )  # fmt: skip
    return codes, size


def _coded_columns(grads: Tensor, x_scale: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Codes [N, M] and scales [N] of the columns of grad * x_scale."""
    m, n = grads.shape
    codes = torch.empty((n, m), dtype=torch.int8, device=grads.device)
    size = torch.empty(n, dtype=torch.float32, device=grads.device)
    if not codes.numel():
        return codes, size.zero_()
    side = _side()
    across = triton.cdiv(n, side)
    # enough programs for two on each multiprocessor, none of less than one tile
    parts = max(
        1, min(triton.cdiv(2 * multiprocessors(grads.device), across), triton.cdiv(m, side))
    )
    rows = triton.cdiv(triton.cdiv(m, parts), side) * side
    parts = triton.cdiv(m, rows)
    part = torch.empty((parts, n), dtype=torch.int32, device=grads.device)
    _column_parts[(across, parts)](
        grads, x_scale, part, m, n, grads.stride(0), rows, SIDE=side, num_warps=4
    )
    _column_codes[(across, triton.cdiv(m, side))](
        grads, x_scale, part, seed, codes, size, m, n, grads.stride(0), parts,
        RANDOM=seed is not None, PARTS=triton.next_power_of_2(parts), SIDE=side, num_warps=4,
    )  # fmt: skip
    return codes, size


def _decoded(x_codes: Tensor, x_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """x^ [M, K]: codes * scale in dtype."""
    rows = x_codes.contiguous()
    out = torch.empty(rows.shape, dtype=dtype, device=rows.device)
    if out.numel():
        count = out.numel()
        _dequantized[(triton.cdiv(count, _BLOCK),)](
            rows, x_scale, out, count, rows.shape[1], BLOCK=_BLOCK, num_warps=8
        )
    return out


def _default() -> dict[str, int]:
    """Interpreted, an operation costs the same for a tile of any size."""
    if interpreting():
        return {"BM": 64, "BN": 128, "BK": 128, "STAGES": 2, "num_warps": 4}
    if torch.version.hip is not None:  # 64 KiB of shared memory
        return {"BM": 128, "BN": 128, "BK": 64, "STAGES": 2, "num_warps": 8}
    return {"BM": 128, "BN": 256, "BK": 128, "STAGES": 3, "num_warps": 8}


def _side() -> int:
    return 128 if interpreting() else _SIDE
