"""linear_packed in plain torch: any device, one block of rows of W in memory at a time."""

import torch
from torch import Tensor

from tercet.kernel.packed_call import finished, quantized
from tercet.kernel.prepared import PreparedWeight, decode_blocks

_BLOCKS_AT_ONCE = 64


def forward(
    x: Tensor,
    codes: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    x_scale: Tensor | None,
    x_sum: Tensor | None,
    scheme: str,
    rows: int,
    columns: int,
    activation: str,
    out_dtype: torch.dtype,
) -> Tensor:
    """As op.linear_packed, on the parts of a PreparedWeight in either layout."""
    del x_sum
    weight = PreparedWeight(
        codes=codes, scale=scale, zero=zero, scheme=scheme, shape=(rows, columns)
    )
    x, x_scale = quantized(x, x_scale, activation)
    flat = x.reshape(_rows(x), columns).float()
    y = torch.empty((len(flat), rows), dtype=torch.float32, device=x.device)
    for block, first, last in _chunks(rows):
        y[:, first:last] = flat @ decode_blocks(weight, block)[: last - first].T
    return finished(y.view(*x.shape[:-1], rows), x_scale, bias, residual, out_dtype)


def gradient(
    grad: Tensor,
    codes: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    scheme: str,
    rows: int,
    columns: int,
    dtype: torch.dtype,
) -> Tensor:
    """grad [..., N] W: the gradient with respect to x, summed in float32, in dtype."""
    weight = PreparedWeight(
        codes=codes, scale=scale, zero=zero, scheme=scheme, shape=(rows, columns)
    )
    flat = grad.reshape(_rows(grad), rows).float()
    total = torch.zeros((len(flat), columns), dtype=torch.float32, device=grad.device)
    for block, first, last in _chunks(rows):
        total += flat[:, first:last] @ decode_blocks(weight, block)[: last - first]
    return total.to(dtype).reshape(*grad.shape[:-1], columns)


def _rows(x: Tensor) -> int:
    return x.shape[:-1].numel()


def _chunks(rows: int) -> list[tuple[slice, int, int]]:
    """(blocks of 16 rows, first row, last row) of each piece of W."""
    step = 16 * _BLOCKS_AT_ONCE
    return [
        (slice(first // 16, (first + step) // 16), first, min(first + step, rows))
        for first in range(0, rows, step)
    ]
