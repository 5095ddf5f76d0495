"""linear_cross_entropy in Triton around cuBLAS: each row of logits is read twice."""

import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.device.scaled import scaled
from tercet.kernel.launch import multiprocessors
from tercet.kernel.tuned import configuration
from tercet.ops.linear_cross_entropy.schedule import DEFAULT, Rows, prepared, run

_DEFAULT = {**DEFAULT, "BLOCK": 16384, "num_warps": 16}
_LOWEST = tl.constexpr(-3.0e38)  # not -inf, so that inf - inf does not arise without an infinity


@triton.jit
def _add_piece(logits_ptr, size, largest, total, lanes, BLOCK: tl.constexpr):
    """Each thread's maximum and sum of powers so far, and those of `size` logits more."""
    for first in range(0, size, BLOCK):
        at = first + lanes
        z = tl.load(logits_ptr + at, at < size, float("-inf")).to(tl.float32)
        now = tl.maximum(largest, tl.max(z, 1))
        total = total * tl.exp(largest - now) + tl.sum(tl.exp(z - now[:, None]), 1)
        largest = now
    return largest, total


@triton.jit
def _write_piece(
    logits_ptr, grad_ptr, size, target, top, share, scale, kept, lanes, BLOCK: tl.constexpr
):  # fmt: skip
    """The gradient of `size` logits; `target` counts from the first of them."""
    for first in range(0, size, BLOCK):
        at = first + lanes
        z = tl.load(logits_ptr + at, at < size, float("-inf")).to(tl.float32)
        grad = (tl.exp(z - top) * share - (at == target).to(tl.float32)) * scale
        tl.store(grad_ptr + at, tl.where(kept, grad, 0.0), at < size)


@triton.jit
def _softmax_rows(
    logits_ptr, first_ptr, target_ptr, unit_ptr, loss_ptr, lse_ptr,
    rows, whole, rest, ignore_index,
    PIECE: tl.constexpr, GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Losses of whole rows of logits, and their gradients; of both, where schedule.Rows says.

    `whole` classes are in pieces of PIECE, the `rest` in one that is not whole. One row at a time
    on a multiprocessor: the second read of its 256 KiB comes from L2. In every piece a thread
    has the same lanes, so it writes only over logits that it read itself, an iteration before.
    """
    # eight neighbours to a thread: their maximum costs no exchange between threads
    lanes = tl.arange(0, BLOCK // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
    unit = tl.load(unit_ptr)
    count = tl.full((), 0, tl.int64) + rows
    for number in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.full((), 0, tl.int64) + number
        ours = logits_ptr + row * PIECE
        last = logits_ptr + (count * whole + row * rest)
        target = tl.load(target_ptr + row)
        kept = target != ignore_index
        valid = (target >= 0) & (target < whole + rest)
        within = target % PIECE
        place = (target - within) * count + within
        place += row * tl.where(target < whole, PIECE, rest)
        picked = tl.load(logits_ptr + place, valid, float("nan")).to(tl.float32)
        largest = tl.full((BLOCK // 8,), _LOWEST, tl.float32)
        total = tl.zeros((BLOCK // 8,), tl.float32)
        for start in range(0, whole, PIECE):
            largest, total = _add_piece(ours + count * start, PIECE, largest, total, lanes, BLOCK)
        largest, total = _add_piece(last, rest, largest, total, lanes, BLOCK)
        top = tl.max(largest, 0)
        # the maximum apart: an lse of 10,000 is off by 5e-4 in float32, and so would the softmax be
        sum = tl.sum(total * tl.exp(largest - top), 0)
        tl.store(lse_ptr + row, top + tl.log(sum))
        tl.store(loss_ptr + row, tl.where(kept, tl.log(sum) - (picked - top), 0.0))
        if GRADIENT:
            scale = tl.where(valid, unit, float("nan"))
            share = 1.0 / sum
            if whole > 0:
                to = first_ptr + row * PIECE
                _write_piece(ours, to, PIECE, target, top, share, scale, kept, lanes, BLOCK)
                for start in range(PIECE, whole, PIECE):
                    at = ours + count * start
                    to = at - count * PIECE
                    hot = target - start
                    _write_piece(at, to, PIECE, hot, top, share, scale, kept, lanes, BLOCK)
                to = ours + count * (whole - PIECE)
                hot = target - whole
                _write_piece(last, to, rest, hot, top, share, scale, kept, lanes, BLOCK)
            else:
                to = first_ptr + row * rest
                _write_piece(last, to, rest, target, top, share, scale, kept, lanes, BLOCK)


def forward(
    x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str,
    x_gradient: bool, weight_gradient: bool,
    accumulate_float32: bool, divide_late: bool, in_place: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As op.linear_cross_entropy."""
    del in_place
    x, weight, target = prepared(x, weight, target)
    sizes = {"M": x.shape[0], "H": x.shape[1], "V": weight.shape[0]}
    options = configuration("linear_cross_entropy", "triton", sizes, _DEFAULT)

    def softmax(rows: Rows) -> None:
        count = rows.target.shape[0]
        whole = rows.classes // rows.piece * rows.piece
        _softmax_rows[(min(count, multiprocessors(x.device)),)](
            rows.logits, rows.logits if rows.first is None else rows.first, rows.target, rows.unit,
            rows.losses, rows.lse,
            count, whole, rows.classes - whole, rows.ignore_index,
            PIECE=rows.piece, GRADIENT=rows.first is not None,
            BLOCK=min(options["BLOCK"], triton.next_power_of_2(rows.piece)),
            num_warps=options["num_warps"],
        )  # fmt: skip

    return run(
        (
            x, weight, target, ignore_index, reduction,
            x_gradient, weight_gradient, accumulate_float32, divide_late,
        ),
        options, softmax,
    )  # fmt: skip


def gradient(
    grad: Tensor, grad_x: Tensor, grad_weight: Tensor, in_place: bool
) -> tuple[Tensor, Tensor]:
    """As op's linear_cross_entropy_gradient: both times the scalar grad."""
    first, second = (
        scaled("linear_cross_entropy", grad, kept, in_place) for kept in (grad_x, grad_weight)
    )
    return first, second
