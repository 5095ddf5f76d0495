"""layer_norm in Triton: a row (or several short ones) lies in registers; every byte moves once.

Forward: every row has a program of its own (WAVES = 0), or a few programs a multiprocessor walk
over the rows with weight and bias in registers and the next row in flight. The variance is summed
from x - mean in a second pass over the registers: E[x^2] - mean^2 cancels where the mean is far
from zero. That pass also sums x - mean itself, which corrects the mean: without it a constant row
of 0.7 had a gradient of weight of 2e-5 in place of 0. With WALK, the columns of a piece, the row is
not held: it is read in pieces, each lane with a mean and a variance of its own (Welford 1962), then
once more from the first-level cache, so that few registers a thread leave room for more programs.
Backward: grad_weight [N] and grad_bias [N] are sums over all rows: each program keeps its part in
float32 registers and writes it once; a second, small kernel adds the parts, always in one order. Of
a row that is too wide for that it holds the parts alone (WALK again): grad and x are read twice,
the second time from the first-level cache.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows, fitting_stages, multiprocessors
from tercet.kernel.tuned import configuration

_COLUMNS = 16384  # of grad_weight and grad_bias, that a program sums of rows that it does not hold


@triton.jit
def _forward(
    x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr, M, N, x_stride, eps,
    HAS_BIAS: tl.constexpr, KEPT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK)
    if KEPT:
        weight = tl.load(weight_ptr + columns, columns < N, 0.0)
        if HAS_BIAS:
            bias = tl.load(bias_ptr + columns, columns < N, 0.0)
    for first in tl.range(tl.program_id(0) * ROWS, M, tl.num_programs(0) * ROWS, num_stages=STAGES):
        rows = first + tl.arange(0, ROWS)
        inside = (rows[:, None] < M) & (columns[None, :] < N)
        at = rows.to(tl.int64)[:, None]
        x = tl.load(x_ptr + at * x_stride + columns[None, :], inside, 0.0).to(tl.float32)
        mean = tl.sum(x, 1) / N
        centered = tl.where(inside, x - mean[:, None], 0.0)
        # what the mean is off by comes with the variance, in one exchange between warps
        off, variance = tl.split(tl.sum(tl.join(centered, centered * centered), 1) / N)
        mean += off
        variance = tl.maximum(variance - off * off, 0.0, tl.PropagateNan.ALL)
        rstd = 1.0 / tl.sqrt_rn(variance + eps)
        if not KEPT:
            weight = tl.load(weight_ptr + columns, columns < N, 0.0)
            if HAS_BIAS:
                bias = tl.load(bias_ptr + columns, columns < N, 0.0)
        y = (centered - off[:, None]) * rstd[:, None] * weight.to(tl.float32)[None, :]
        if HAS_BIAS:
            y += bias.to(tl.float32)[None, :]
        tl.store(y_ptr + at * N + columns[None, :], y, inside)
        tl.store(mean_ptr + rows, mean, rows < M)
        tl.store(rstd_ptr + rows, rstd, rows < M)


@triton.jit
def _chunked(
    x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr, N: tl.constexpr, x_stride, eps,
    HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As _forward, a row a program, in pieces of BLOCK columns.

    N is a constant: then masks of whole pieces vanish, and the walks are unrolled.
    """
    row, lanes = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x_ptr += row * x_stride
    means = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    seen = 0.0
    for first in range(0, N, BLOCK):
        inside = first + lanes < N
        x = tl.load(x_ptr + first + lanes, inside, 0.0, eviction_policy="evict_last")
        x = tl.where(inside, x.to(tl.float32), means)
        seen += 1.0
        apart = x - means
        means += apart * (1.0 / seen)
        squares += apart * (x - means)
    count = tl.maximum((N - lanes + BLOCK - 1) // BLOCK, 0).to(tl.float32)
    mean = tl.sum(count * means, 0) / N
    apart = means - mean
    # what the mean is off by comes with the variance, in one exchange between warps
    both = tl.sum(tl.join(count * apart, squares + count * apart * apart), 0) / N
    off, variance = tl.split(both)
    mean += off
    variance = tl.maximum(variance - off * off, 0.0, tl.PropagateNan.ALL)
    rstd = 1.0 / tl.sqrt_rn(variance + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for first in range(0, N, BLOCK):
        columns = first + lanes
        inside = columns < N
        x = tl.load(x_ptr + columns, inside, 0.0, eviction_policy="evict_first").to(tl.float32)
        weight = tl.load(weight_ptr + columns, inside, 0.0, eviction_policy="evict_last")
        y = (x - mean) * rstd * weight.to(tl.float32)
        if HAS_BIAS:
            bias = tl.load(bias_ptr + columns, inside, 0.0, eviction_policy="evict_last")
            y += bias.to(tl.float32)
        tl.store(y_ptr + row * N + columns, y, inside)


@triton.jit
def _gradient(
    grad_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, grad_x_ptr, part_ptr,
    M, N, grad_stride, x_stride,
    HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr + columns, columns < N, 0.0)
    part_weight = tl.zeros((BLOCK,), tl.float32)
    part_bias = tl.zeros((BLOCK,), tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, M, tl.num_programs(0) * ROWS, num_stages=STAGES):
        rows = first + tl.arange(0, ROWS)
        inside = (rows[:, None] < M) & (columns[None, :] < N)
        mean = tl.load(mean_ptr + rows, rows < M, 0.0)[:, None]
        rstd = tl.load(rstd_ptr + rows, rows < M, 0.0)[:, None]
        at = rows.to(tl.int64)[:, None]
        x = tl.load(x_ptr + at * x_stride + columns[None, :], inside, 0.0).to(tl.float32)
        grad = tl.load(grad_ptr + at * grad_stride + columns[None, :], inside, 0.0).to(tl.float32)
        normal = (x - mean) * rstd
        weighted = grad * weight.to(tl.float32)[None, :]
        # both sums in one reduction: one exchange between warps a row instead of two
        both = tl.sum(tl.join(weighted, weighted * normal), 1) / N
        level, along = tl.split(both)
        grad_x = rstd * (weighted - level[:, None] - normal * along[:, None])
        tl.store(grad_x_ptr + at * N + columns[None, :], grad_x, inside)
        part_weight += tl.sum(grad * normal, 0)
        if HAS_BIAS:
            part_bias += tl.sum(grad, 0)
    part = tl.program_id(0).to(tl.int64) * N + columns
    tl.store(part_ptr + part, part_weight, columns < N)
    if HAS_BIAS:
        part += tl.num_programs(0).to(tl.int64) * N
        tl.store(part_ptr + part, part_bias, columns < N)


@triton.jit
def _gradient_chunked(
    grad_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, grad_x_ptr, part_ptr,
    M, N: tl.constexpr, grad_stride, x_stride,
    HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """As _gradient, a row at a time, in pieces of BLOCK columns.

    Each program walks over its rows whole to sum, and writes CHUNKS of them: rows that are wider
    have several programs.
    """
    lanes, own = tl.arange(0, BLOCK), tl.program_id(1) * CHUNKS * BLOCK
    parts_weight, parts_bias = (), ()
    for _ in tl.static_range(CHUNKS):
        parts_weight += (tl.zeros((BLOCK,), tl.float32),)
        parts_bias += (tl.zeros((BLOCK,), tl.float32),)
    for row in tl.range(tl.program_id(0), M, tl.num_programs(0)):
        at = tl.full((), row, tl.int64)
        mean, rstd = tl.load(mean_ptr + row), tl.load(rstd_ptr + row)
        sums = tl.zeros((BLOCK,), tl.float32)
        products = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, N, BLOCK):
            columns = first + lanes
            inside = columns < N
            x = tl.load(x_ptr + at * x_stride + columns, inside, 0.0, eviction_policy="evict_last")
            grad = tl.load(
                grad_ptr + at * grad_stride + columns, inside, 0.0, eviction_policy="evict_last"
            )
            weight = tl.load(weight_ptr + columns, inside, 0.0, eviction_policy="evict_last")
            weighted = grad.to(tl.float32) * weight.to(tl.float32)
            sums += weighted
            products += weighted * ((x.to(tl.float32) - mean) * rstd)
        # both sums in one reduction: one exchange between warps a row instead of two
        level, along = tl.split(tl.sum(tl.join(sums, products), 0) / N)
        added_weight, added_bias = (), ()
        for piece in tl.static_range(CHUNKS):
            columns = own + piece * BLOCK + lanes
            inside = columns < N
            x = tl.load(x_ptr + at * x_stride + columns, inside, 0.0, eviction_policy="evict_first")
            grad = tl.load(
                grad_ptr + at * grad_stride + columns, inside, 0.0, eviction_policy="evict_first"
            )
            weight = tl.load(weight_ptr + columns, inside, 0.0, eviction_policy="evict_last")
            normal, grad = (x.to(tl.float32) - mean) * rstd, grad.to(tl.float32)
            grad_x = rstd * (grad * weight.to(tl.float32) - level - normal * along)
            tl.store(grad_x_ptr + at * N + columns, grad_x, inside)
            added_weight += (parts_weight[piece] + grad * normal,)
            if HAS_BIAS:
                added_bias += (parts_bias[piece] + grad,)
            else:
                added_bias += (parts_bias[piece],)
        parts_weight, parts_bias = added_weight, added_bias
    for piece in tl.static_range(CHUNKS):
        columns = own + piece * BLOCK + lanes
        part = part_ptr + tl.program_id(0).to(tl.int64) * N + columns
        tl.store(part, parts_weight[piece], columns < N)
        if HAS_BIAS:
            part += tl.num_programs(0).to(tl.int64) * N
            tl.store(part, parts_bias[piece], columns < N)


@triton.jit
def _add_parts(
    part_ptr, grad_weight_ptr, grad_bias_ptr, P, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """grad_weight, and in the second half of the grid grad_bias: sums of part [2, P, N] over P."""
    which = tl.program_id(1)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for first in tl.range(0, P, ROWS):
        rows = first + tl.arange(0, ROWS)
        at = (which * P + rows).to(tl.int64)[:, None] * N + columns[None, :]
        inside = (rows[:, None] < P) & (columns[None, :] < N)
        total += tl.sum(tl.load(part_ptr + at, inside, 0.0), 0)
    if which == 0:
        tl.store(grad_weight_ptr + columns, total, columns < N)
    else:
        tl.store(grad_bias_ptr + columns, total, columns < N)


def _default(n: int) -> dict[str, int]:
    """32 numbers a thread."""
    warps = min(max(triton.next_power_of_2(n) // 1024, 1), 8)
    return {"ROWS": 1, "WAVES": 0, "STAGES": 1, "WALK": 0, "num_warps": warps}


def _default_gradient(n: int) -> dict[str, int]:
    """16 numbers a thread, which holds of x, grad and three vectors as many; few, deep loads."""
    block = triton.next_power_of_2(n)
    warps = min(max(block // 512, 2), 16)
    return {"ROWS": 1, "WAVES": 1, "STAGES": 3, "WALK": 0, "num_warps": warps}


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    n = x.shape[-1]
    rows = as_rows(x)
    m = rows.shape[0]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean = torch.empty(m, dtype=torch.float32, device=x.device)
    rstd = torch.empty(m, dtype=torch.float32, device=x.device)
    if not y.numel():
        return y, mean.fill_(torch.nan), rstd.fill_(torch.nan)
    options = dict(configuration("layer_norm", "triton", {"M": m, "N": n}, _default(n)))
    height, waves, piece = (options.pop(name) for name in ("ROWS", "WAVES", "WALK"))
    block = triton.next_power_of_2(n)
    if not piece and not _held(height * block, options["num_warps"]):
        piece, options["num_warps"] = 4096, 8
    weight = weight.contiguous()
    if piece:
        _chunked[(m,)](
            rows, weight, bias.contiguous() if bias is not None else weight, y, mean, rstd,
            n, rows.stride(0), eps,
            HAS_BIAS=bias is not None, BLOCK=min(piece, block), num_warps=options["num_warps"],
        )  # fmt: skip
        return y, mean, rstd
    options["STAGES"] = fitting_stages(options["STAGES"], height * block * x.element_size())
    programs = triton.cdiv(m, height)
    if waves:
        programs = min(programs, waves * multiprocessors(x.device))
    _forward[(programs,)](
        rows, weight, bias.contiguous() if bias is not None else weight, y, mean, rstd,
        m, n, rows.stride(0), eps,
        HAS_BIAS=bias is not None, KEPT=waves > 0, ROWS=height, BLOCK=block, **options,
    )  # fmt: skip
    return y, mean, rstd


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's layer_norm_gradient."""
    n = x.shape[-1]
    rows, grads = as_rows(x), as_rows(grad)
    m = rows.shape[0]
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grad_weight = torch.empty(n, dtype=weight.dtype, device=x.device)
    grad_bias = torch.empty(n if has_bias else 0, dtype=weight.dtype, device=x.device)
    if not grad_x.numel():
        return grad_x, grad_weight.zero_(), grad_bias.zero_()
    options = dict(
        configuration("layer_norm", "triton", {"M": m, "N": n}, _default_gradient(n), "backward")
    )
    height, waves, block = options.pop("ROWS"), options.pop("WAVES"), triton.next_power_of_2(n)
    stages, piece = options.pop("STAGES"), options.pop("WALK")
    if not piece and not _held(height * block, options["num_warps"]):
        piece, options = 8192 // x.element_size(), {"num_warps": 16}
    height = 1 if piece else height
    programs = min(triton.cdiv(m, height), waves * multiprocessors(x.device))
    sums = 2 if has_bias else 1
    part = torch.empty((sums, programs, n), dtype=torch.float32, device=x.device)
    tensors = grads, rows, weight.contiguous(), mean, rstd, grad_x, part
    strides = grads.stride(0), rows.stride(0)
    if piece:
        chunks = triton.cdiv(min(n, _COLUMNS), piece)
        _gradient_chunked[(programs, triton.cdiv(n, chunks * piece))](
            *tensors, m, n, *strides, HAS_BIAS=has_bias, BLOCK=piece, CHUNKS=chunks, **options
        )
    else:
        stages = fitting_stages(stages, 2 * height * block * x.element_size())
        _gradient[(programs,)](
            *tensors, m, n, *strides,
            HAS_BIAS=has_bias, ROWS=height, BLOCK=block, STAGES=stages, **options,
        )  # fmt: skip
    _add_parts[(triton.cdiv(n, 32), sums)](
        part, grad_weight, grad_bias, programs, n, ROWS=128, COLUMNS=32, num_warps=4
    )
    return grad_x, grad_weight, grad_bias


def _held(numbers: int, warps: int) -> bool:
    """Whether vectors of so many numbers lie in registers: 65536 in all, and 255 a thread."""
    return numbers <= min(8192, 32 * warps * 32)
