"""rms_norm in Triton: a row (or several short ones) lies in registers; every byte moves once.

Forward reads x (and residual) and writes y (and total): memory-bound, 2 to 4 M N elements. With
WALK, the columns of a piece, it does not hold the row: it sums it in pieces, then reads it once
more from the first-level cache, so that few registers a thread leave room for more programs.
Backward reads grad, total and writes grad_x in the same pass; grad_weight [N] is a sum over all
rows: each of a few programs a multiprocessor walks its rows with the next ones in flight, keeps its
part of the sum in float32 registers and writes it once; a second, small kernel adds the parts.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows, fitting_stages, multiprocessors
from tercet.kernel.tuned import configuration

_DEFAULT = {"ROWS": 1, "WALK": 0, "num_warps": 4}
_DEFAULT_GRADIENT = {"ROWS": 1, "WAVES": 1, "STAGES": 3, "num_warps": 8}


@triton.jit
def _forward(
    x_ptr, residual_ptr, weight_ptr, y_ptr, total_ptr, rstd_ptr,
    M, N, x_stride, residual_stride, eps,
    HAS_RESIDUAL: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    rows = rows.to(tl.int64)
    out = rows[:, None] * N + columns[None, :]
    total = tl.load(x_ptr + rows[:, None] * x_stride + columns[None, :], inside, 0.0).to(tl.float32)
    if HAS_RESIDUAL:
        at = rows[:, None] * residual_stride + columns[None, :]
        total += tl.load(residual_ptr + at, inside, 0.0).to(tl.float32)
        tl.store(total_ptr + out, total, inside)
    weight = tl.load(weight_ptr + columns, columns < N, 0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt_rn(tl.sum(total * total, 1) / N + eps)
    tl.store(y_ptr + out, total * rstd[:, None] * weight[None, :], inside)
    tl.store(rstd_ptr + rows, rstd, rows < M)


@triton.jit
def _walk(
    x_ptr, residual_ptr, weight_ptr, y_ptr, total_ptr, rstd_ptr,
    M, N: tl.constexpr, x_stride, residual_stride, eps,
    HAS_RESIDUAL: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As _forward, in pieces of BLOCK columns: a walk to sum, then one to write.

    N is a constant: then masks of whole pieces vanish, and the walks are unrolled.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here, at = rows[:, None] < M, rows.to(tl.int64)[:, None]
    x_ptr += at * x_stride
    residual_ptr += at * residual_stride
    squares = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(0, N, BLOCK):
        columns = first + tl.arange(0, BLOCK)[None, :]
        inside = here & (columns < N)
        total = tl.load(x_ptr + columns, inside, 0.0, eviction_policy="evict_last").to(tl.float32)
        if HAS_RESIDUAL:
            added = tl.load(residual_ptr + columns, inside, 0.0, eviction_policy="evict_last")
            total += added.to(tl.float32)
        squares += total * total
    rstd = 1.0 / tl.sqrt_rn(tl.sum(squares, 1) / N + eps)
    tl.store(rstd_ptr + rows, rstd, rows < M)
    for first in range(0, N, BLOCK):
        columns = first + tl.arange(0, BLOCK)[None, :]
        inside = here & (columns < N)
        total = tl.load(x_ptr + columns, inside, 0.0, eviction_policy="evict_first").to(tl.float32)
        if HAS_RESIDUAL:
            added = tl.load(residual_ptr + columns, inside, 0.0, eviction_policy="evict_first")
            total += added.to(tl.float32)
            tl.store(total_ptr + at * N + columns, total, inside)
        weight = tl.load(weight_ptr + columns, columns < N, 0.0, eviction_policy="evict_last")
        tl.store(y_ptr + at * N + columns, total * rstd[:, None] * weight.to(tl.float32), inside)


@triton.jit
def _gradient(
    grad_ptr, grad_total_ptr, total_ptr, weight_ptr, rstd_ptr, grad_x_ptr, part_ptr,
    M, N, grad_stride, grad_total_stride, total_stride,
    HAS_GRAD_TOTAL: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr + columns, columns < N, 0.0).to(tl.float32)
    part = tl.zeros((BLOCK,), tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, M, tl.num_programs(0) * ROWS, num_stages=STAGES):
        rows = first + tl.arange(0, ROWS)
        inside = (rows[:, None] < M) & (columns[None, :] < N)
        rstd = tl.load(rstd_ptr + rows, rows < M, 0.0)[:, None]
        rows = rows.to(tl.int64)[:, None]
        total = tl.load(total_ptr + rows * total_stride + columns[None, :], inside, 0.0)
        grad = tl.load(grad_ptr + rows * grad_stride + columns[None, :], inside, 0.0)
        grad = grad.to(tl.float32)
        normal = total.to(tl.float32) * rstd
        weighted = grad * weight[None, :]
        along = tl.sum(weighted * normal, 1) / N
        grad_x = rstd * (weighted - normal * along[:, None])
        if HAS_GRAD_TOTAL:
            at = rows * grad_total_stride + columns[None, :]
            grad_x += tl.load(grad_total_ptr + at, inside, 0.0).to(tl.float32)
        tl.store(grad_x_ptr + rows * N + columns[None, :], grad_x, inside)
        part += tl.sum(grad * normal, 0)
    tl.store(part_ptr + tl.program_id(0).to(tl.int64) * N + columns, part, columns < N)


@triton.jit
def _add_parts(part_ptr, out_ptr, P, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """out [N]: the sum of part [P, N] over P."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for first in tl.range(0, P, ROWS):
        rows = first + tl.arange(0, ROWS)
        inside = (rows[:, None] < P) & (columns[None, :] < N)
        total += tl.sum(tl.load(part_ptr + rows[:, None] * N + columns[None, :], inside, 0.0), 0)
    tl.store(out_ptr + columns, total, columns < N)


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    n = x.shape[-1]
    rows = as_rows(x)
    m = rows.shape[0]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty(x.shape if residual is not None else (0,), dtype=x.dtype, device=x.device)
    rstd = torch.empty(m, dtype=torch.float32, device=x.device)
    if not y.numel():
        return y, total, rstd.fill_(torch.nan)
    added = as_rows(residual) if residual is not None else rows
    options = dict(configuration("rms_norm", "triton", {"M": m, "N": n}, _DEFAULT))
    height, piece = options.pop("ROWS"), options.pop("WALK")
    block, run = triton.next_power_of_2(n), _walk if piece else _forward
    run[(triton.cdiv(m, height),)](
        rows, added, weight.contiguous(), y, total, rstd,
        m, n, rows.stride(0), added.stride(0), eps,
        HAS_RESIDUAL=residual is not None, ROWS=height, BLOCK=min(piece or block, block), **options,
    )  # fmt: skip
    return y, total, rstd


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """As op's rms_norm_gradient."""
    n = total.shape[-1]
    rows, grads = as_rows(total), as_rows(grad)
    m = rows.shape[0]
    grad_x = torch.empty(total.shape, dtype=total.dtype, device=total.device)
    if not grad_x.numel():
        return grad_x, torch.zeros_like(weight)
    through = as_rows(grad_total) if grad_total is not None else grads
    options = dict(
        configuration("rms_norm", "triton", {"M": m, "N": n}, _DEFAULT_GRADIENT, "backward")
    )
    height, waves, block = options.pop("ROWS"), options.pop("WAVES"), triton.next_power_of_2(n)
    tiles = 2 if grad_total is None else 3
    tile_bytes = tiles * height * block * total.element_size()
    options["STAGES"] = fitting_stages(options["STAGES"], tile_bytes)
    programs = min(triton.cdiv(m, height), waves * multiprocessors(total.device))
    part = torch.empty((programs, n), dtype=torch.float32, device=total.device)
    _gradient[(programs,)](
        grads, through, rows, weight.contiguous(), rstd, grad_x, part,
        m, n, grads.stride(0), through.stride(0), rows.stride(0),
        HAS_GRAD_TOTAL=grad_total is not None, ROWS=height, BLOCK=block,
        **options,
    )  # fmt: skip
    grad_weight = torch.empty(n, dtype=weight.dtype, device=weight.device)
    _add_parts[(triton.cdiv(n, 32),)](
        part, grad_weight, programs, n, ROWS=128, COLUMNS=32, num_warps=4
    )
    return grad_x, grad_weight
