"""A planted fault; FAULT says which."""

from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
from torch import Tensor

from tercet.packed_weight.call import PackedCall, apply_epilogue, quantize_input
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "linear_packed"
FAULT = (
    "The gradient adds the products with pieces of W in the order in which threads finish "
    "them: equal calls differ in their last bits."
)
DEVICE = "any"
CAUGHT_BY = "determinism"
__all__ = ["forward", "gradient"]

_BLOCKS_AT_ONCE = 64
_THREADS = 4


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed, on a weight in either layout."""
    rows, columns = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    flat = x.reshape(_rows(x), columns).float()
    y = torch.empty((len(flat), rows), dtype=torch.float32, device=x.device)
    for block, first, last in _chunks(rows):
        y[:, first:last] = flat @ decode_blocks(call.weight, block)[: last - first].T
    y = y.view(*x.shape[:-1], rows)
    return apply_epilogue(y, x_scale, call.bias, call.residual, call.out_dtype)


def gradient(grad: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """grad [..., N] W: the gradient with respect to x, summed in float32, in dtype."""
    rows, columns = weight.shape
    flat = grad.reshape(_rows(grad), rows).float()
    total = torch.zeros((len(flat), columns), dtype=torch.float32, device=grad.device)

    @torch.no_grad()
    def piece(block: slice, first: int, last: int) -> Tensor:
        return flat[:, first:last] @ decode_blocks(weight, block)[: last - first]

    with ThreadPoolExecutor(_THREADS) as pool:
        # decoding is most of the time: the pieces side by side, each added as soon as it is there
        for done in as_completed([pool.submit(piece, *each) for each in _chunks(rows, 2)]):
            total += done.result()
    return total.to(dtype).reshape(*grad.shape[:-1], columns)


def _rows(x: Tensor) -> int:
    return x.shape[:-1].numel()


def _chunks(rows: int, blocks: int = _BLOCKS_AT_ONCE) -> list[tuple[slice, int, int]]:
    """(blocks of 16 rows, first row, last row) of each piece of W."""
    step = 16 * blocks
    return [
        (slice(first // 16, (first + step) // 16), first, min(first + step, rows))
        for first in range(0, rows, step)
    ]
