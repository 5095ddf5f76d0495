"""The meaning of linear_packed, in float64."""

import torch
from torch import Tensor

from tercet.formats import PackedTensor


def reference(x: Tensor, weight: PackedTensor, bias: Tensor | None = None) -> Tensor:
    """x [..., K] W^T + bias in float64, W dequantized in float64."""
    product = x.double() @ weight.dequantize(torch.float64).T
    return product if bias is None else product + bias.double()


def magnitude(x: Tensor, weight: PackedTensor, bias: Tensor | None = None) -> Tensor:
    """|x| |W|^T + |bias|, where |W| = (|level| + |zero|) scale: what a rounding is relative to."""
    element, scaling = weight.scheme.element, weight.scheme.scaling
    levels = element.decode(weight.unpack(), torch.float64).abs()
    rows, columns = scaling.block(weight.shape)

    def spread(values: Tensor) -> Tensor:
        tall = values.double().repeat_interleave(rows, 0)[: weight.shape[0]]
        return tall.repeat_interleave(columns, 1)[:, : weight.shape[1]]

    if weight.zero is not None:
        levels = levels + spread(weight.zero).abs()
    sizes = levels * spread(weight.scale)
    if weight.second is not None:
        sizes = sizes * weight.second.double()
    product = x.double().abs() @ sizes.T
    return product if bias is None else product + bias.double().abs()
