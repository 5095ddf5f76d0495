"""grouped_linear_packed in plain torch: a loop over experts, one expert's W in memory at a time."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from tercet.kernel.packed_call import finished, quantized
from tercet.kernel.prepared import PreparedWeight, decode_blocks
from tercet.kernel.stacked import StackedWeight
from tercet.ops.grouped_linear_packed.arguments import check_bounds


def forward(
    x: Tensor,
    offsets: Tensor,
    codes: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bias: Tensor | None,
    row_weight: Tensor | None,
    x_scale: Tensor | None,
    scheme: str,
    rows: int,
    columns: int,
    activation: str,
    out_dtype: torch.dtype,
) -> Tensor:
    """As op.grouped_linear_packed, on weights in either layout."""
    x, x_scale = quantized(x, x_scale, activation)
    y = torch.empty((len(x), rows), dtype=torch.float32, device=x.device)
    for expert, some, weight in segments(offsets, len(x), codes, scale, zero, scheme, columns):
        product = x[some].float() @ decode_blocks(weight, slice(None))[:rows].T
        scaled = None if x_scale is None else x_scale[some]
        shared = None if bias is None else bias[expert]
        y[some] = finished(product, scaled, shared, None, torch.float32)
    return weighted(y, row_weight).to(out_dtype)


def segments(
    offsets: Tensor,
    count: int,
    codes: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    scheme: str,
    columns: int,
) -> Iterator[tuple[int, slice, PreparedWeight]]:
    """(expert, its rows of x, its weight with rows filled up to 16) where it has rows of x."""
    bounds = check_bounds(offsets, count)
    experts = len(bounds) - 1
    shape = (experts, len(codes) // experts * 16, columns)
    whole = StackedWeight(codes=codes, scale=scale, zero=zero, scheme=scheme, shape=shape)
    for expert, (first, last) in enumerate(pairwise(bounds)):
        if first < last:
            yield expert, slice(first, last), whole.expert(expert)


def weighted(y: Tensor, row_weight: Tensor | None) -> Tensor:
    """y [T, N] times row_weight [T], in place."""
    return y if row_weight is None else y.mul_(row_weight[:, None])


def gradient(
    grad: Tensor,
    offsets: Tensor,
    codes: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    row_weight: Tensor | None,
    scheme: str,
    rows: int,
    columns: int,
    dtype: torch.dtype,
) -> Tensor:
    """row_weight * grad [T, N] W_e: the gradient with respect to x, summed in float32, in dtype."""
    total = torch.empty((len(grad), columns), dtype=torch.float32, device=grad.device)
    for _, some, weight in segments(offsets, len(grad), codes, scale, zero, scheme, columns):
        total[some] = grad[some].float() @ decode_blocks(weight, slice(None))[:rows]
    return weighted(total, row_weight).to(dtype)
