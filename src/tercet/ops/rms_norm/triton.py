"""rms_norm in Triton: a row (or several short ones) lies in registers; every byte moves once.

Forward reads x (and residual) and writes y (and total): memory-bound, 2 to 4 M N elements. With
WALK, the columns of a piece, it does not hold the row: it sums it in pieces, then reads it once
more from the first-level cache, so that few registers a thread leave room for more programs.
Backward reads grad, total and writes grad_x in the same pass; grad_weight [N] is a sum over all
rows: each of a few programs a multiprocessor walks its rows with the next ones in flight, keeps its
part of the sum in float32 registers and writes it once; a second, small kernel adds the parts. Of a
row that is too wide for that it holds the part alone (WALK again): grad and total are read twice,
the second time from the first-level cache.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.device.dependent_launch import begin, dependent_launch
from tercet.kernel.launch import as_rows, fitting_stages, multiprocessors
from tercet.kernel.tuned import configuration

_DEFAULT = {"ROWS": 1, "WALK": 0, "num_warps": 4}
_DEFAULT_GRADIENT = {"ROWS": 1, "WAVES": 1, "STAGES": 3, "WALK": 0, "num_warps": 8}
_HELD = 64  # numbers a thread of a row that the forward holds: more of them spill
_COLUMNS = 16384  # of grad_weight, that a program sums of rows that it does not hold


@triton.jit
def _forward(
    x_ptr, residual_ptr, weight_ptr, y_ptr, total_ptr, rstd_ptr,
    M, N, x_stride, residual_stride, eps,
    HAS_RESIDUAL: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
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
def _chunked(
    x_ptr, residual_ptr, weight_ptr, y_ptr, total_ptr, rstd_ptr,
    M, N: tl.constexpr, x_stride, residual_stride, eps,
    HAS_RESIDUAL: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """As _forward, in pieces of BLOCK columns: a walk to sum, then one to write.

    N is a constant: then masks of whole pieces vanish, and the walks are unrolled.
    """
    begin(PDL)
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
def _gradient_chunked(
    grad_ptr, grad_total_ptr, total_ptr, weight_ptr, rstd_ptr, grad_x_ptr, part_ptr,
    M, N: tl.constexpr, grad_stride, grad_total_stride, total_stride,
    HAS_GRAD_TOTAL: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """As _gradient, a row at a time, in pieces of BLOCK columns.

    Each program walks over its rows whole to sum, and writes CHUNKS of them: rows that are wider
    have several programs.
    """
    lanes, own = tl.arange(0, BLOCK), tl.program_id(1) * CHUNKS * BLOCK
    parts = ()
    for _ in tl.static_range(CHUNKS):
        parts += (tl.zeros((BLOCK,), tl.float32),)
    for row in tl.range(tl.program_id(0), M, tl.num_programs(0)):
        at = tl.full((), row, tl.int64)
        rstd = tl.load(rstd_ptr + row)
        products = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, N, BLOCK):
            columns = first + lanes
            inside = columns < N
            total = tl.load(
                total_ptr + at * total_stride + columns, inside, 0.0, eviction_policy="evict_last"
            )
            grad = tl.load(
                grad_ptr + at * grad_stride + columns, inside, 0.0, eviction_policy="evict_last"
            )
            weight = tl.load(weight_ptr + columns, inside, 0.0, eviction_policy="evict_last")
            products += grad.to(tl.float32) * weight.to(tl.float32) * (total.to(tl.float32) * rstd)
        along = tl.sum(products, 0) / N
        added = ()
        for piece in tl.static_range(CHUNKS):
            columns = own + piece * BLOCK + lanes
            inside = columns < N
            total = tl.load(
                total_ptr + at * total_stride + columns, inside, 0.0, eviction_policy="evict_first"
            )
            grad = tl.load(
                grad_ptr + at * grad_stride + columns, inside, 0.0, eviction_policy="evict_first"
            )
            weight = tl.load(weight_ptr + columns, inside, 0.0, eviction_policy="evict_last")
            normal, grad = total.to(tl.float32) * rstd, grad.to(tl.float32)
            grad_x = rstd * (grad * weight.to(tl.float32) - normal * along)
            if HAS_GRAD_TOTAL:
                through = grad_total_ptr + at * grad_total_stride + columns
                grad_x += tl.load(through, inside, 0.0).to(tl.float32)
            tl.store(grad_x_ptr + at * N + columns, grad_x, inside)
            added += (parts[piece] + grad * normal,)
        parts = added
    for piece in tl.static_range(CHUNKS):
        columns = own + piece * BLOCK + lanes
        at = tl.program_id(0).to(tl.int64) * N
        tl.store(part_ptr + at + columns, parts[piece], columns < N)


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
    height, piece, block = options.pop("ROWS"), options.pop("WALK"), triton.next_power_of_2(n)
    if not piece and height * block > 32 * options["num_warps"] * _HELD:
        height, piece, options = 1, 4096, {"num_warps": 8}
    run = _chunked if piece else _forward
    run[(triton.cdiv(m, height),)](
        rows, added, weight.contiguous(), y, total, rstd,
        m, n, rows.stride(0), added.stride(0), eps,
        HAS_RESIDUAL=residual is not None, ROWS=height, BLOCK=min(piece or block, block),
        **dependent_launch(x.device), **options,
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
    stages, piece = options.pop("STAGES"), options.pop("WALK")
    if not piece and not _held(height * block, options["num_warps"]):
        # as was measured on an H200: many threads where there is little to load, else more in each
        few_bytes = grad_total is None and total.element_size() == 2
        piece, warps = (2048, 16) if few_bytes else (4096, 8)
        options = {"num_warps": warps}
    height = 1 if piece else height
    programs = min(triton.cdiv(m, height), waves * multiprocessors(total.device))
    part = torch.empty((programs, n), dtype=torch.float32, device=total.device)
    tensors = grads, through, rows, weight.contiguous(), rstd, grad_x, part
    strides = grads.stride(0), through.stride(0), rows.stride(0)
    options["HAS_GRAD_TOTAL"] = grad_total is not None
    if piece:
        chunks = triton.cdiv(min(n, _COLUMNS), piece)
        _gradient_chunked[(programs, triton.cdiv(n, chunks * piece))](
            *tensors, m, n, *strides, BLOCK=piece, CHUNKS=chunks, **options
        )
    else:
        tiles = 2 if grad_total is None else 3
        stages = fitting_stages(stages, tiles * height * block * total.element_size())
        _gradient[(programs,)](
            *tensors, m, n, *strides, ROWS=height, BLOCK=block, STAGES=stages, **options
        )
    grad_weight = torch.empty(n, dtype=weight.dtype, device=weight.device)
    _add_parts[(triton.cdiv(n, 32),)](
        part, grad_weight, programs, n, ROWS=128, COLUMNS=32, num_warps=4
    )
    return grad_x, grad_weight


def _held(numbers: int, warps: int) -> bool:
    """Whether the backward's four vectors of so many numbers lie in registers: 65536 in all."""
    return numbers <= min(8192, 32 * warps * 32)
