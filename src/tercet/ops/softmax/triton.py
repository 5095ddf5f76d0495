"""softmax in Triton. A row that fits one program lies in its registers and is read once.

A longer row does not fit: 131072 numbers of 2 bytes are 256 KiB, all registers of an H200's
multiprocessor, and more than its shared memory. Then there are two ways:

- several resident programs share the row (`_shared`, `_shared_gradient`): each holds a slice in
  registers, publishes what the others need of it (maximum and sum, or a dot product), loads its
  slice of the next row, and waits for the others. Every byte moves once.
- one program walks over the row twice (`_chunked`, `_chunked_gradient`), forward the second time
  backwards, so that it begins with what the caches saw last. This serves the interpreter, which
  runs one program after the other, and rows of more slices than can be resident; and the gradient
  of rows of 16384, whose pieces the first-level cache keeps.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.interpreter.corrections import interpreting
from tercet.kernel.launch import as_rows, multiprocessors
from tercet.kernel.tuned import Direction, configuration

_LOG2_E = math.log2(math.e)
_WIDEST = 16384


@triton.jit
def _one_block(
    x_ptr, y_ptr, M, N, x_stride, scale, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """scale is in units of log2: exp2 is the instruction that there is."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (rows[:, None] < M) & (columns < N)
    rows = rows.to(tl.int64)[:, None]
    x = tl.load(x_ptr + rows * x_stride + columns, inside, -float("inf")).to(tl.float32)
    part = tl.exp2((x - tl.max(x, 1)[:, None]) * scale)
    tl.store(y_ptr + rows * N + columns, part * (1.0 / tl.sum(part, 1))[:, None], inside)


@triton.jit
def _one_block_gradient(
    grad_ptr, y_ptr, grad_x_ptr, M, N, grad_stride, y_stride, scale,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (rows[:, None] < M) & (columns < N)
    rows = rows.to(tl.int64)[:, None]
    y = tl.load(y_ptr + rows * y_stride + columns, inside, 0.0).to(tl.float32)
    grad = tl.load(grad_ptr + rows * grad_stride + columns, inside, 0.0).to(tl.float32)
    along = tl.sum(grad * y, 1)[:, None]
    tl.store(grad_x_ptr + rows * N + columns, scale * y * (grad - along), inside)


@triton.jit
def _place(ready_ptr, M, SLICES: tl.constexpr):
    """(slice, first row) of this program, in the order in which programs began to run.

    So whoever waits waits only for programs that run already, or that begin to run as soon as one
    of an earlier row ends: no order of launch can lock up, nor a GPU that is shared.
    """
    ticket = tl.atomic_add(ready_ptr + M, 1)
    return ticket % SLICES, ticket // SLICES


@triton.jit
def _publish(ready_ptr, at):
    tl.debug_barrier()
    tl.atomic_add(ready_ptr + at, 1, sem="release")


@triton.jit
def _wait(ready_ptr, at, SLICES: tl.constexpr):
    while tl.atomic_add(ready_ptr + at, 0, sem="acquire") < SLICES:
        pass
    tl.debug_barrier()


@triton.jit
def _shared(
    x_ptr, y_ptr, part_ptr, ready_ptr, M, N, x_stride, scale,
    SLICES: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """part [M, SLICES, 2]: maximum and sum of each slice; ready [M + 1]: zeros."""
    member, first = _place(ready_ptr, M, SLICES)
    groups = tl.num_programs(0) // SLICES
    columns = member * BLOCK + tl.arange(0, BLOCK)
    slices = tl.arange(0, PADDED)
    at = first.to(tl.int64)
    x = tl.load(x_ptr + at * x_stride + columns, (first < M) & (columns < N), -float("inf"))
    for _ in tl.range(first, M, groups):
        top = tl.max(x.to(tl.float32), 0)
        shift = tl.where(top == -float("inf"), 0.0, top)
        here = part_ptr + (at * SLICES + member) * 2
        tl.store(here, top)
        tl.store(here + 1, tl.sum(tl.exp2((x.to(tl.float32) - shift) * scale), 0))
        _publish(ready_ptr, at)
        following = (at + groups < M) & (columns < N)
        x_next = tl.load(x_ptr + (at + groups) * x_stride + columns, following, -float("inf"))
        _wait(ready_ptr, at, SLICES)
        there = part_ptr + (at * SLICES + slices) * 2
        tops = tl.load(there, slices < SLICES, -float("inf"), volatile=True)
        sums = tl.load(there + 1, slices < SLICES, 0.0, volatile=True)
        peak = tl.max(tops, 0)
        total = tl.sum(sums * tl.where(tops == -float("inf"), 0.0, tl.exp2((tops - peak) * scale)))
        y = tl.exp2((x.to(tl.float32) - peak) * scale) * (1.0 / total)
        tl.store(y_ptr + at * N + columns, y, columns < N)
        x = x_next
        at += groups


@triton.jit
def _shared_gradient(
    grad_ptr, y_ptr, grad_x_ptr, part_ptr, ready_ptr, M, N, grad_stride, y_stride, scale,
    SLICES: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """part [M, SLICES]: each slice's part of sum(grad y); ready [M + 1]: zeros."""
    member, first = _place(ready_ptr, M, SLICES)
    groups = tl.num_programs(0) // SLICES
    columns = member * BLOCK + tl.arange(0, BLOCK)
    slices = tl.arange(0, PADDED)
    at = first.to(tl.int64)
    inside = (first < M) & (columns < N)
    y_next = tl.load(y_ptr + at * y_stride + columns, inside, 0.0)
    grad_next = tl.load(grad_ptr + at * grad_stride + columns, inside, 0.0)
    for _ in tl.range(first, M, groups):
        y, grad = y_next, grad_next
        dot = tl.sum(y.to(tl.float32) * grad.to(tl.float32), 0)
        tl.store(part_ptr + at * SLICES + member, dot)
        _publish(ready_ptr, at)
        inside = (at + groups < M) & (columns < N)
        y_next = tl.load(y_ptr + (at + groups) * y_stride + columns, inside, 0.0)
        grad_next = tl.load(grad_ptr + (at + groups) * grad_stride + columns, inside, 0.0)
        _wait(ready_ptr, at, SLICES)
        parts = tl.load(part_ptr + at * SLICES + slices, slices < SLICES, 0.0, volatile=True)
        grad_x = scale * y.to(tl.float32) * (grad.to(tl.float32) - tl.sum(parts, 0))
        tl.store(grad_x_ptr + at * N + columns, grad_x, columns < N)
        at += groups


@triton.jit
def _chunked(x_ptr, y_ptr, N, x_stride, scale, BLOCK: tl.constexpr):
    """Every lane keeps a maximum and a sum of its own: nothing is exchanged until the end."""
    at = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in tl.range(0, N, BLOCK):
        here = first + columns
        x = tl.load(x_ptr + at * x_stride + here, here < N, -float("inf")).to(tl.float32)
        above = tl.maximum(top, x)
        shift = tl.where(above == -float("inf"), 0.0, above)
        total = total * tl.exp2((top - shift) * scale) + tl.exp2((x - shift) * scale)
        top = above
    peak = tl.max(top, 0)
    total *= tl.where(top == -float("inf"), 0.0, tl.exp2((top - peak) * scale))
    inverse = 1.0 / tl.sum(total, 0)
    for back in tl.range(0, N, BLOCK):
        here = (N - 1) // BLOCK * BLOCK - back + columns
        x = tl.load(x_ptr + at * x_stride + here, here < N, -float("inf")).to(tl.float32)
        tl.store(y_ptr + at * N + here, tl.exp2((x - peak) * scale) * inverse, here < N)


@triton.jit
def _chunked_gradient(
    grad_ptr, y_ptr, grad_x_ptr, N, grad_stride, y_stride, scale,
    CHUNKS: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """WHOLE: all CHUNKS are, so that masks are constants and vanish."""
    end = CHUNKS * BLOCK if WHOLE else N
    at = tl.program_id(0).to(tl.int64)
    y_ptr += at * y_stride
    grad_ptr += at * grad_stride
    columns = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for chunk in range(CHUNKS):
        here = chunk * BLOCK + columns
        y = tl.load(y_ptr + here, here < end, 0.0, eviction_policy="evict_last")
        grad = tl.load(grad_ptr + here, here < end, 0.0, eviction_policy="evict_last")
        total += y.to(tl.float32) * grad.to(tl.float32)
    along = tl.sum(total, 0)
    for chunk in range(CHUNKS):
        here = chunk * BLOCK + columns
        y = tl.load(y_ptr + here, here < end, 0.0, eviction_policy="evict_first").to(tl.float32)
        grad = tl.load(grad_ptr + here, here < end, 0.0, eviction_policy="evict_first")
        grad_x = scale * y * (grad.to(tl.float32) - along)
        tl.store(grad_x_ptr + at * N + here, grad_x, here < end, cache_modifier=".cs")


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    rows = as_rows(x)
    m, n = rows.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not y.numel():
        return y
    height, block, waves, options = _options(m, n, x.device, "forward")
    exponent = scale * _LOG2_E
    if n <= block:
        _one_block[(triton.cdiv(m, height),)](
            rows, y, m, n, rows.stride(0), exponent,
            ROWS=height, BLOCK=triton.next_power_of_2(n), **options,
        )  # fmt: skip
    elif not waves:
        _chunked[(m,)](rows, y, n, rows.stride(0), exponent, BLOCK=block, **options)
    else:
        slices = triton.cdiv(n, block)
        _shared[(_programs(m, slices, waves, x.device),)](
            rows, y, *_meeting(m, slices, 2, x.device), m, n, rows.stride(0), exponent,
            SLICES=slices, PADDED=triton.next_power_of_2(slices), BLOCK=block, **options,
        )  # fmt: skip
    return y


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    rows, grads = as_rows(y), as_rows(grad)
    m, n = rows.shape
    grad_x = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    if not grad_x.numel():
        return grad_x
    height, block, waves, options = _options(m, n, y.device, "backward")
    strides = grads.stride(0), rows.stride(0)
    if n <= block:
        _one_block_gradient[(triton.cdiv(m, height),)](
            grads, rows, grad_x, m, n, *strides, scale,
            ROWS=height, BLOCK=triton.next_power_of_2(n), **options,
        )  # fmt: skip
    elif not waves:
        _chunked_gradient[(m,)](
            grads, rows, grad_x, n, *strides, scale,
            CHUNKS=triton.cdiv(n, block), WHOLE=n % block == 0, BLOCK=block, **options,
        )  # fmt: skip
    else:
        slices = triton.cdiv(n, block)
        _shared_gradient[(_programs(m, slices, waves, y.device),)](
            grads, rows, grad_x, *_meeting(m, slices, 1, y.device), m, n, *strides, scale,
            SLICES=slices, PADDED=triton.next_power_of_2(slices), BLOCK=block, **options,
        )  # fmt: skip
    return grad_x


def _options(
    m: int, n: int, device: torch.device, direction: Direction
) -> tuple[int, int, int, dict[str, int]]:
    """(rows of a program, widest block, programs a multiprocessor or 0 to walk, launch options)."""
    options = dict(
        configuration("softmax", "triton", {"M": m, "N": n}, _default(n, direction), direction)
    )
    height, block, waves = (options.pop(name) for name in ("ROWS", "BLOCK", "WAVES"))
    # all that share a row must be resident at once: one program a multiprocessor always is
    if interpreting() or triton.cdiv(n, block) > multiprocessors(device):
        waves = 0
    return height, block, waves, options


def _default(n: int, direction: Direction) -> dict[str, int]:
    """32 numbers a thread, 16 where slices of grad and y are held, and as many programs as fit."""
    if n > _WIDEST and direction == "forward":
        return {"ROWS": 1, "BLOCK": 8192, "WAVES": 3, "num_warps": 8}
    if n > _WIDEST:
        return {"ROWS": 1, "BLOCK": 4096, "WAVES": 4, "num_warps": 8}
    warps = min(max(triton.next_power_of_2(n) // 1024, 2), 16)
    return {"ROWS": 1 if n > 512 else 4, "BLOCK": _WIDEST, "WAVES": 3, "num_warps": warps}


def _programs(m: int, slices: int, waves: int, device: torch.device) -> int:
    """Whole groups of programs, one a row, and no more rows at once than there are."""
    return slices * min(m, max(waves * multiprocessors(device) // slices, 1))


def _meeting(m: int, slices: int, values: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where programs that share a row leave parts and count themselves; zeros in every call."""
    part = torch.empty((m, slices, values), dtype=torch.float32, device=device)
    return part, torch.zeros(m + 1, dtype=torch.int32, device=device)
