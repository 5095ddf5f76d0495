"""linear_cross_entropy in Triton around cuBLAS: three products in all, logits never whole.

The gradients are computed with the loss, which is a scalar: the incoming gradient is only a factor.
Two schedules share the tokens:

- resident: the first H tokens keep their logits, transposed [V, H], in the memory of the gradient
  of weight, which has exactly that size and is not needed yet. Slices of classes, the last one
  first, then turn logits into that slice's gradient of weight, in one product without a sum over
  chunks. Later tokens cannot do so: the memory is taken.
- chunks: the other tokens come in chunks of CHUNK with a buffer of CHUNK x V; every chunk reads and
  writes all of the gradient of weight.

Both read the logits for the softmax and again for its gradient, which replaces them.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows, multiprocessors
from tercet.kernel.tuned import configuration

_DEFAULT = {
    "CHUNK": 768, "RESIDENT": 1, "SLICE": 16384, "SPLIT": 1, "BLOCK": 16384, "num_warps": 16,
    "SUM_DEEP": 4, "SUM_V": 32, "SUM_C": 64, "SUM_SPLITS": 16, "SLICE_V": 16, "SLICE_C": 128,
}  # fmt: skip
_DEFAULT_GRADIENT = {"BLOCK": 8192, "num_warps": 8}
_LOWEST = tl.constexpr(-3.0e38)  # not -inf, so that inf - inf does not arise without an infinity


@triton.jit
def _softmax_rows(
    logits_ptr, target_ptr, unit_ptr, loss_ptr, lse_ptr,
    rows, V, ignore_index,
    GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Losses of whole rows of logits; their gradients in place of the logits.

    One row at a time on a multiprocessor: the second read of its 256 KiB comes from L2.
    """
    # eight neighbours to a thread: their maximum costs no exchange between threads
    lanes = tl.arange(0, BLOCK // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
    unit = tl.load(unit_ptr)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        base = logits_ptr + (tl.full((), 0, tl.int64) + row) * V
        target = tl.load(target_ptr + row)
        kept = target != ignore_index
        valid = (target >= 0) & (target < V)
        picked = tl.load(base + target, valid, float("nan")).to(tl.float32)
        largest = tl.full((BLOCK // 8,), _LOWEST, tl.float32)
        total = tl.zeros((BLOCK // 8,), tl.float32)
        for first in range(0, V, BLOCK):
            z = tl.load(base + first + lanes, first + lanes < V, float("-inf")).to(tl.float32)
            now = tl.maximum(largest, tl.max(z, 1))
            total = total * tl.exp(largest - now) + tl.sum(tl.exp(z - now[:, None]), 1)
            largest = now
        top = tl.max(largest, 0)
        # the maximum apart: an lse of 10,000 is off by 5e-4 in float32, and so would the softmax be
        sum = tl.sum(total * tl.exp(largest - top), 0)
        tl.store(lse_ptr + row, top + tl.log(sum))
        tl.store(loss_ptr + row, tl.where(kept, tl.log(sum) - (picked - top), 0.0))
        if GRADIENT:
            scale = tl.where(valid, unit, float("nan"))
            share = 1.0 / sum
            for first in range(0, V, BLOCK):
                at = first + lanes
                z = tl.load(base + at, at < V, float("-inf")).to(tl.float32)
                grad = (tl.exp(z - top) * share - (at == target).to(tl.float32)) * scale
                tl.store(base + at, tl.where(kept, grad, 0.0), at < V)


@triton.jit
def _sums_of_columns(
    logits_ptr, top_ptr, sum_ptr, C, V, height,
    DEEP: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Maximum and sum of exp(logits - maximum) along V of logits [V, C], of `height` rows each."""
    columns = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    first = tl.program_id(1) * height
    last = tl.minimum(first + height, V)
    deep = tl.arange(0, DEEP)[:, None, None] * BLOCK_V + tl.arange(0, BLOCK_V)[None, :, None]
    largest = tl.full((BLOCK_V, BLOCK_C), _LOWEST, tl.float32)
    total = tl.zeros((BLOCK_V, BLOCK_C), tl.float32)
    for start in range(first, last, DEEP * BLOCK_V):
        rows = start + deep
        inside = (rows < last) & (columns[None, None, :] < C)
        at = rows.to(tl.int64) * C + columns[None, None, :]
        z = tl.load(logits_ptr + at, inside, float("-inf")).to(tl.float32)
        now = tl.maximum(largest, tl.max(z, 0))
        total = total * tl.exp(largest - now) + tl.sum(tl.exp(z - now[None, :, :]), 0)
        largest = now
    top = tl.max(largest, 0)
    sum = tl.sum(total * tl.exp(largest - top[None, :]), 0)
    at = tl.program_id(1).to(tl.int64) * C + columns
    tl.store(top_ptr + at, top, columns < C)
    tl.store(sum_ptr + at, sum, columns < C)


@triton.jit
def _softmax_slice(
    logits_ptr, grad_ptr, target_ptr, top_ptr, sum_ptr, unit_ptr,
    first, rows, C, V, ignore_index,
    BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradient [rows, C] of rows first.. of logits [V, C]."""
    within = (tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V))[:, None]
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = (within < rows) & (columns[None, :] < C)
    target = tl.load(target_ptr + columns, columns < C, ignore_index)
    top = tl.load(top_ptr + columns, columns < C, 0.0)
    share = 1.0 / tl.load(sum_ptr + columns, columns < C, 1.0)
    valid = (target >= 0) & (target < V)
    scale = tl.where(valid, tl.load(unit_ptr), float("nan"))
    at = (first + within).to(tl.int64) * C + columns[None, :]
    z = tl.load(logits_ptr + at, inside, 0.0).to(tl.float32)
    hot = (first + within == target[None, :]).to(tl.float32)
    grad = (tl.exp(z - top[None, :]) * share[None, :] - hot) * scale[None, :]
    grad = tl.where((target != ignore_index)[None, :], grad, 0.0)
    tl.store(grad_ptr + within.to(tl.int64) * C + columns[None, :], grad, inside)


@triton.jit
def _scale(factor_ptr, from_ptr, to_ptr, N, IN_PLACE: tl.constexpr, BLOCK: tl.constexpr):
    factor = tl.load(factor_ptr).to(tl.float32)
    # the usual loss.backward() comes with 1: nothing is read or written, and no host waits
    count = tl.where(factor == 1.0, 0, N) if IN_PLACE else N
    start = tl.program_id(0).to(tl.int64) * BLOCK
    for first in tl.range(start, count, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(from_ptr + at, at < N, 0.0).to(tl.float32)
        tl.store(to_ptr + at, value * factor, at < N)


@dataclass(frozen=True, kw_only=True)
class _Call:
    """One call: its inputs, its outputs and the factor `unit` of the kept gradients."""

    x: Tensor
    weight: Tensor
    target: Tensor
    ignore_index: int
    unit: Tensor
    losses: Tensor
    lse: Tensor
    grad_x: Tensor | None
    total: Tensor | None
    block: int
    warps: int
    split: int
    sum_tile: dict[str, int]
    splits: int
    slice_tile: dict[str, int]


def forward(
    x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str,
    x_gradient: bool, weight_gradient: bool,
    accumulate_float32: bool, divide_late: bool, in_place: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As op.linear_cross_entropy."""
    del in_place
    (m, h), v = x.shape, weight.shape[0]
    if not x.is_cuda:
        # torch's bfloat16 product on a CPU reads an element past odd rows that lie apart
        x, weight = x.contiguous(), weight.contiguous()
    x, weight, target = as_rows(x), as_rows(weight), target.contiguous()
    sizes = {"M": m, "H": h, "V": v}
    options = configuration("linear_cross_entropy", "triton", sizes, _DEFAULT)
    count = (target != ignore_index).sum()
    divide = reduction == "mean" and not divide_late
    unit = count.clamp(min=1).float().reciprocal() if divide else count.float().fill_(1.0)
    kept_as = torch.float32 if accumulate_float32 else x.dtype
    call = _Call(
        x=x, weight=weight, target=target, ignore_index=ignore_index, unit=unit,
        losses=x.new_empty(m, dtype=torch.float32), lse=x.new_empty(m, dtype=torch.float32),
        grad_x=torch.empty((m, h), dtype=x.dtype, device=x.device) if x_gradient else None,
        total=torch.empty((v, h), dtype=kept_as, device=x.device) if weight_gradient else None,
        block=max(8, min(options["BLOCK"], triton.next_power_of_2(v))),
        warps=options["num_warps"], split=options["SPLIT"],
        sum_tile={
            "DEEP": options["SUM_DEEP"], "BLOCK_V": options["SUM_V"], "BLOCK_C": options["SUM_C"],
        },
        splits=options["SUM_SPLITS"],
        slice_tile={"BLOCK_V": options["SLICE_V"], "BLOCK_C": options["SLICE_C"]},
    )  # fmt: skip
    chunk, done = options["CHUNK"], 0
    if call.total is not None and not m:
        call.total.zero_()
    if options["RESIDENT"] and kept_as == x.dtype and weight_gradient and m > chunk <= h:
        done = min(m, h)
        _resident(call, done, options["SLICE"])
    _chunks(call, done, chunk)
    loss = call.losses.sum()
    none = x.new_empty(0)
    return (
        loss / count if reduction == "mean" else loss,
        call.lse,
        none if call.grad_x is None else call.grad_x,
        none if call.total is None else call.total.to(x.dtype),
    )


def _chunks(call: _Call, done: int, chunk: int) -> None:
    """Tokens from `done` on."""
    m, v = call.x.shape[0], call.weight.shape[0]
    buffer = call.x.new_empty((max(0, min(chunk, m - done)), v))
    gradient = call.grad_x is not None or call.total is not None
    for first in range(done, m, chunk):
        rows = min(chunk, m - first)
        x, logits = call.x[first : first + rows], buffer[:rows]
        torch.mm(x, call.weight.t(), out=logits)
        _softmax_rows[(min(rows, multiprocessors(x.device)),)](
            logits, call.target[first:], call.unit, call.losses[first:], call.lse[first:],
            rows, v, call.ignore_index,
            GRADIENT=gradient, BLOCK=call.block, num_warps=call.warps,
        )  # fmt: skip
        if call.grad_x is not None:
            _times_weight(logits, call.weight, call.grad_x[first : first + rows], call.split)
        if call.total is not None:
            _add_product(call.total, logits.t(), x, fresh=first == 0)


def _resident(call: _Call, count: int, height: int) -> None:
    """The first `count` <= H tokens, their logits [V, count] in the gradient of weight's memory."""
    v, h = call.weight.shape
    total = call.total
    assert total is not None
    x, target = call.x[:count], call.target[:count]
    logits = total.view(-1)[: v * count].view(v, count)
    torch.mm(call.weight, x.t(), out=logits)
    top, sum = _columns(call, logits)
    grad_x = None
    if call.grad_x is not None:
        exact = x.dtype == torch.float32
        grad_x = call.grad_x[:count] if exact else x.new_empty((count, h), dtype=torch.float32)
    scratch = x.new_empty((min(height, v), count))
    # the last slice first: what a slice writes lies at or behind its own logits, as count <= H
    starts = range(0, v, height)
    for first in reversed(starts):
        rows = min(height, v - first)
        grad = scratch[:rows]
        tile = call.slice_tile
        grid = (triton.cdiv(rows, tile["BLOCK_V"]), triton.cdiv(count, tile["BLOCK_C"]))
        _softmax_slice[grid](
            logits, grad, target, top, sum, call.unit, first, rows, count, v, call.ignore_index,
            **tile, num_warps=4,
        )  # fmt: skip
        if grad_x is not None:
            weight = call.weight[first : first + rows]
            _add_product(grad_x, grad.t(), weight, fresh=first == starts[-1])
        torch.mm(grad, x, out=total[first : first + rows])
    if grad_x is not None and call.grad_x is not None and grad_x.dtype != x.dtype:
        call.grad_x[:count].copy_(grad_x)


def _columns(call: _Call, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum and sum of exp(logits - maximum) of logits [V, count]; writes lse and losses."""
    v, count = logits.shape
    splits = max(1, min(call.splits, v // 1024))
    tops, sums = (call.lse.new_empty((splits, count)) for _ in range(2))
    tile = call.sum_tile
    _sums_of_columns[(triton.cdiv(count, tile["BLOCK_C"]), splits)](
        logits, tops, sums, count, v, triton.cdiv(v, splits), **tile, num_warps=8,
    )  # fmt: skip
    top = tops.amax(0)
    sum = (sums * (tops - top).exp()).sum(0)
    call.lse[:count] = top + sum.log()
    target = call.target[:count]
    valid = (target >= 0) & (target < v)
    chosen = torch.where(valid, target, 0)
    picked = logits.gather(0, chosen[None, :])[0].float()
    losses = torch.where(valid, sum.log() - (picked - top), torch.nan)
    call.losses[:count] = torch.where(target != call.ignore_index, losses, 0.0)
    return top, sum


def _times_weight(grad: Tensor, weight: Tensor, out: Tensor, split: int) -> None:
    """out = grad @ weight; for few tokens the sum over V in `split` parts fills the GPU better."""
    (rows, v), h = grad.shape, weight.shape[1]
    if split == 1 or v % split:
        torch.mm(grad, weight, out=out)
        return
    left = grad.view(rows, split, v // split).transpose(0, 1)
    torch.sum(torch.bmm(left, weight.view(split, v // split, h)), 0, out=out)


def _add_product(total: Tensor, left: Tensor, right: Tensor, *, fresh: bool) -> None:
    """total (+)= left @ right, summed in float32 and rounded once to total's dtype."""
    beta = 0 if fresh else 1
    if total.dtype == left.dtype:
        total.addmm_(left, right, beta=beta)
    elif total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, beta=beta, out=total)
    else:  # out_dtype is for GPUs; here kernels are interpreted
        total.addmm_(left.to(total.dtype), right.to(total.dtype), beta=beta)


def gradient(
    grad: Tensor, grad_x: Tensor, grad_weight: Tensor, in_place: bool
) -> tuple[Tensor, Tensor]:
    """As op's linear_cross_entropy_gradient: both times the scalar grad."""
    first, second = (_scaled(grad, kept, in_place) for kept in (grad_x, grad_weight))
    return first, second


def _scaled(grad: Tensor, kept: Tensor, in_place: bool) -> Tensor:
    out = kept if in_place else torch.empty_like(kept)
    if kept.numel():
        options = dict(
            configuration(
                "linear_cross_entropy", "triton", {"N": kept.numel()}, _DEFAULT_GRADIENT, "backward"
            )
        )
        programs = triton.cdiv(kept.numel(), options["BLOCK"])
        _scale[(min(programs, 8 * multiprocessors(kept.device)),)](
            grad, kept, out, kept.numel(), IN_PLACE=in_place, **options
        )
    return out
