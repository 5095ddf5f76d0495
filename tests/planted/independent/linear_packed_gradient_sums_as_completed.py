"""linear_packed in plain torch, with a fault; written blind."""

from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
from torch import Tensor

from tercet.packed_weight.call import PackedCall, apply_epilogue, quantize_input
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "linear_packed"
FAULT = (
    "Parts of the input gradient are made by a pool of threads and added in the order in "
    "which they end. Shows with more than 128 rows of W (three parts): equal calls may give "
    "other bits, rarely."
)
CAUGHT_BY = "forward"

_ROWS = 64


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed, on a weight in either layout."""
    rows, columns = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    flat = x.reshape(x.shape[:-1].numel(), columns).float()
    y = torch.empty((len(flat), rows), dtype=torch.float32, device=x.device)
    for block, first, last in _chunks(rows, 1024):
        y[:, first:last] = flat @ decode_blocks(call.weight, block)[: last - first].T
    y = y.view(*x.shape[:-1], rows)
    return apply_epilogue(y, x_scale, call.bias, call.residual, call.out_dtype)


def gradient(grad: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """grad [..., N] W: the gradient with respect to x, summed in float32, in dtype."""
    rows, columns = weight.shape
    flat = grad.reshape(grad.shape[:-1].numel(), rows).float()
    total = torch.zeros((len(flat), columns), dtype=torch.float32, device=grad.device)

    def part(block: slice, first: int, last: int) -> Tensor:
        with torch.no_grad():
            return flat[:, first:last] @ decode_blocks(weight, block)[: last - first]

    with ThreadPoolExecutor(4) as pool:
        for done in as_completed([pool.submit(part, *chunk) for chunk in _chunks(rows, _ROWS)]):
            total += done.result()
    return total.to(dtype).reshape(*grad.shape[:-1], columns)


def _chunks(rows: int, step: int) -> list[tuple[slice, int, int]]:
    """(blocks of 16 rows, first row, last row) of each piece of W."""
    return [
        (slice(first // 16, (first + step) // 16), first, min(first + step, rows))
        for first in range(0, rows, step)
    ]
