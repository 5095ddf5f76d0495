"""linear_packed in plain torch: any device, one block of rows of W in memory at a time."""

import torch
from torch import Tensor

from tercet.kernel.prepared import PreparedWeight, decode_blocks

_BLOCKS_AT_ONCE = 64


def forward(
    x: Tensor,
    codes: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bias: Tensor | None,
    scheme: str,
    rows: int,
    columns: int,
) -> Tensor:
    """As op.linear_packed, on the parts of a PreparedWeight."""
    weight = PreparedWeight(
        codes=codes, scale=scale, zero=zero, scheme=scheme, shape=(rows, columns)
    )
    flat = x.reshape(-1, columns).float() if x.numel() else x.new_zeros(_rows(x), columns).float()
    y = torch.empty((len(flat), rows), dtype=torch.float32, device=x.device)
    for block, first, last in _chunks(rows):
        y[:, first:last] = flat @ decode_blocks(weight, block)[: last - first].T
    if bias is not None:
        y += bias.float()
    return y.to(x.dtype).reshape(*x.shape[:-1], rows)


def gradient(
    grad: Tensor,
    codes: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    scheme: str,
    rows: int,
    columns: int,
) -> Tensor:
    """grad [..., N] W: the gradient with respect to x, summed in float32, in grad's dtype."""
    weight = PreparedWeight(
        codes=codes, scale=scale, zero=zero, scheme=scheme, shape=(rows, columns)
    )
    flat = grad.reshape(_rows(grad), rows).float()
    total = torch.zeros((len(flat), columns), dtype=torch.float32, device=grad.device)
    for block, first, last in _chunks(rows):
        total += flat[:, first:last] @ decode_blocks(weight, block)[: last - first]
    return total.to(grad.dtype).reshape(*grad.shape[:-1], columns)


def _rows(x: Tensor) -> int:
    return x.shape[:-1].numel()


def _chunks(rows: int) -> list[tuple[slice, int, int]]:
    """(blocks of 16 rows, first row, last row) of each piece of W."""
    step = 16 * _BLOCKS_AT_ONCE
    return [
        (slice(first // 16, (first + step) // 16), first, min(first + step, rows))
        for first in range(0, rows, step)
    ]
