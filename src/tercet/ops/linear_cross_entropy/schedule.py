"""The order of linear_cross_entropy on a GPU: three products in all, logits never whole.

The gradients are computed with the loss, which is a scalar: the incoming gradient is only a factor.
Two schedules share the tokens:

- resident: the first H tokens keep their logits in the memory of the gradient of weight, which has
  exactly that size and is not needed yet, in pieces of SLICE classes. A row's softmax gradient
  replaces its logits, each piece where the one before it lay; that of the first piece goes to a
  scratch buffer. So the last piece's own memory is free for the gradient of its classes' weight,
  one product over all these tokens, which frees the memory of the piece before it, and so on.
- chunks: later tokens find that memory taken. They come in chunks of CHUNK with a buffer of
  CHUNK x V; every chunk reads and writes all of the gradient of weight.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tercet.kernel.device.add_product import add_product
from tercet.kernel.launch import as_rows

# 1056 classes of 4096 tokens are a whole wave of tiles of 128 x 256 on 132 multiprocessors
DEFAULT = {"CHUNK": 768, "RESIDENT": 1, "SLICE": 21120, "SPLIT": 1, "TILE": 0}

# classes of a piece are whole multiples of this, so that every row of it starts on 16 bytes
_PIECE = 16


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Some tokens' logits, to be turned into losses and gradients.

    Attributes:
        logits: as many elements as tokens times V, in pieces of `piece` classes: piece s is a
            contiguous [tokens, its classes] from element s * piece * tokens on.
        first: where the gradient of piece 0 goes, [tokens, min(piece, V)]; None where no gradient
            is wanted. That of piece s goes where piece s - 1 lay, with rows `piece` elements apart.
        piece: a multiple of 16; V or more for whole rows, and then `first` may be `logits`.
        target, losses, lse: [tokens].
        unit: [], the factor of the gradient.
    """

    logits: Tensor
    first: Tensor | None
    piece: int
    target: Tensor
    losses: Tensor
    lse: Tensor
    unit: Tensor
    classes: int
    ignore_index: int


# a kernel that reads the logits of rows, and writes losses, lse and gradients
Softmax = Callable[[Rows], None]


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
    softmax: Softmax
    split: int
    tile: int

    def rows(self, part: slice, logits: Tensor, first: Tensor | None, piece: int) -> Rows:
        return Rows(
            logits=logits, first=first, piece=piece, target=self.target[part],
            losses=self.losses[part], lse=self.lse[part], unit=self.unit,
            classes=self.weight.shape[0], ignore_index=self.ignore_index,
        )  # fmt: skip


Inputs = tuple[Tensor, Tensor, Tensor, int, str, bool, bool, bool, bool]


def prepared(x: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """With unit stride along H."""
    if not x.is_cuda:
        # torch's bfloat16 product on a CPU reads an element past odd rows that lie apart
        x, weight = x.contiguous(), weight.contiguous()
    return as_rows(x), as_rows(weight), target.contiguous()


def run(
    inputs: Inputs, options: Mapping[str, int], softmax: Softmax
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """op.linear_cross_entropy's results, with this kernel for the rows.

    Args:
        inputs: as of op.linear_cross_entropy, but `in_place`; the tensors `prepared`.
        options: CHUNK, RESIDENT, SLICE (classes of a piece, rounded down to a multiple of 16),
            SPLIT, TILE (of the kernel for the gradient of weight, see kernel/device/cublas_lt.py).
        softmax: the kernel.
    """
    x, weight, target, ignore_index, reduction, x_gradient, weight_gradient, exact, late = inputs
    (m, h), v = x.shape, weight.shape[0]
    count = (target != ignore_index).sum()
    divide = reduction == "mean" and not late
    unit = count.clamp(min=1).float().reciprocal() if divide else count.float().fill_(1.0)
    kept_as = torch.float32 if exact else x.dtype
    call = _Call(
        x=x, weight=weight, target=target, ignore_index=ignore_index, unit=unit,
        losses=x.new_empty(m, dtype=torch.float32), lse=x.new_empty(m, dtype=torch.float32),
        grad_x=torch.empty((m, h), dtype=x.dtype, device=x.device) if x_gradient else None,
        total=torch.empty((v, h), dtype=kept_as, device=x.device) if weight_gradient else None,
        softmax=softmax, split=options["SPLIT"], tile=options["TILE"],
    )  # fmt: skip
    chunk, done = options["CHUNK"], 0
    if call.total is not None and not m:
        call.total.zero_()
    if options["RESIDENT"] and kept_as == x.dtype and weight_gradient and m > chunk <= h:
        done = min(m, h)
        # the scratch takes no more than the logits of a chunk
        piece = min(options["SLICE"], chunk * v // done)
        _resident(call, done, max(_PIECE, piece // _PIECE * _PIECE))
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
        part = slice(first, min(first + chunk, m))
        x = call.x[part]
        logits = buffer[: x.shape[0]]
        torch.mm(x, call.weight.t(), out=logits)
        whole = max(_PIECE, 1 << (v - 1).bit_length())
        call.softmax(call.rows(part, logits, logits if gradient else None, whole))
        if call.grad_x is not None:
            _times_weight(logits, call.weight, call.grad_x[part], call.split)
        if call.total is not None:
            add_product(call.total, logits.t(), x, fresh=first == 0, tile=call.tile)


def _resident(call: _Call, count: int, piece: int) -> None:
    """The first `count` <= H tokens, their logits in the gradient of weight's memory."""
    v, h = call.weight.shape
    total = call.total
    assert total is not None
    x = call.x[:count]
    memory = total.view(-1)[: v * count]
    scratch = x.new_empty((count, min(piece, v)))
    starts = range(0, v, piece)
    for first in starts:
        weight = call.weight[first : first + piece]
        here = memory[first * count : (first + weight.shape[0]) * count]
        torch.mm(x, weight.t(), out=here.view(count, -1))
    call.softmax(call.rows(slice(0, count), memory, scratch, piece))
    sum_x = None if call.grad_x is None else _sum_memory(call.grad_x, count)
    for first in reversed(starts):
        weight = call.weight[first : first + piece]
        behind = memory[(first - piece) * count : first * count] if first else scratch
        grad = behind.view(count, -1)[:, : weight.shape[0]]
        if sum_x is not None:
            add_product(sum_x, grad, weight, fresh=first == starts[-1])
        out = total[first : first + weight.shape[0]]
        add_product(out, grad.t(), x, fresh=True, tile=call.tile)
    if sum_x is not None and call.grad_x is not None and sum_x.dtype != x.dtype:
        # by way of the scratch: the sum may lie under its own result
        rounded = scratch.view(-1)[: count * h] if piece >= h <= v else x.new_empty(count * h)
        call.grad_x[:count].copy_(rounded.view(count, h).copy_(sum_x))


def _sum_memory(grad_x: Tensor, count: int) -> Tensor:
    """Where a float32 sum for the first `count` tokens lies [count, H].

    In the gradient itself where that of as many later tokens, not computed yet, gives it room.
    """
    if grad_x.dtype == torch.float32:
        return grad_x[:count]
    if grad_x.shape[0] >= 2 * count:
        return grad_x[: 2 * count].view(-1).view(torch.float32).view(count, -1)
    return grad_x.new_empty((count, grad_x.shape[1]), dtype=torch.float32)


def _times_weight(grad: Tensor, weight: Tensor, out: Tensor, split: int) -> None:
    """out = grad @ weight; for few tokens the sum over V in `split` parts fills the GPU better."""
    (rows, v), h = grad.shape, weight.shape[1]
    if split == 1 or v % split:
        torch.mm(grad, weight, out=out)
        return
    left = grad.view(rows, split, v // split).transpose(0, 1)
    torch.sum(torch.bmm(left, weight.view(split, v // split, h)), 0, out=out)
