"""The meaning of grouped_linear_packed, in float64."""

from collections.abc import Iterator
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor

from tercet.formats import PackedTensor

_LIMITS = {"int8": 127.0, "fp8_e4m3": 448.0}


def reference(
    x: Tensor,
    offsets: Tensor,
    weight: tuple[PackedTensor, ...],
    bias: Tensor | None = None,
    row_weight: Tensor | None = None,
    x_scale: Tensor | None = None,
    activation: str = "none",
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """row_weight * (x W_e^T + bias_e) in float64 for the rows offsets[e] .. offsets[e + 1] of x.

    With an activation, x is what its codes stand for: quantized here, to the bit as
    `quantize_activation` does, or given as codes with their scale. The gradient passes straight
    through the rounding.
    """
    del out_dtype
    exact, pieces = _input(x, x_scale, activation), list[Tensor]()
    for expert, rows in _segments(offsets):
        piece = exact[rows] @ weight[expert].dequantize(torch.float64).T
        pieces.append(piece if bias is None else piece + bias[expert].double())
    y = torch.cat(pieces) if pieces else exact.new_zeros((0, weight[0].shape[0]))
    return y if row_weight is None else y * row_weight.double()[:, None]


def magnitude(
    x: Tensor,
    offsets: Tensor,
    weight: tuple[PackedTensor, ...],
    bias: Tensor | None = None,
    row_weight: Tensor | None = None,
    x_scale: Tensor | None = None,
    activation: str = "none",
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """|row_weight| (|x| |W_e|^T + |bias_e|), where |W| = (|level| + |zero|) scale."""
    del out_dtype
    exact, pieces = _input(x, x_scale, activation).detach().abs(), list[Tensor]()
    for expert, rows in _segments(offsets):
        piece = exact[rows] @ weight[expert].magnitude().T
        pieces.append(piece if bias is None else piece + bias[expert].double().abs())
    y = torch.cat(pieces) if pieces else exact.new_zeros((0, weight[0].shape[0]))
    return y if row_weight is None else y * row_weight.double().abs()[:, None]


def gradient_magnitude(
    directions: list[Tensor | None],
    x: Tensor,
    offsets: Tensor,
    weight: tuple[PackedTensor, ...],
    bias: Tensor | None = None,
    row_weight: Tensor | None = None,
    x_scale: Tensor | None = None,
    activation: str = "none",
    out_dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """The size of what is summed into each element of each gradient."""
    way = directions[0]
    if way is None:
        return {}
    way, sizes = way.double().abs(), dict[str, Tensor]()
    if row_weight is not None:
        product = magnitude(x, offsets, weight, bias, None, x_scale, activation, out_dtype)
        sizes["row_weight"] = (way * product).sum(-1)
        way = way * row_weight.double().abs()[:, None]
    sizes["x"] = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    if bias is not None:
        sizes["bias"] = torch.zeros(bias.shape, dtype=torch.float64, device=x.device)
    for expert, rows in _segments(offsets):
        sizes["x"][rows] = way[rows] @ weight[expert].magnitude()
        if bias is not None:
            sizes["bias"][expert] = way[rows].sum(0)
    return sizes


def _segments(offsets: Tensor) -> Iterator[tuple[int, slice]]:
    """The rows of each expert that has any."""
    bounds = cast(list[int], offsets.tolist())
    for expert, (first, last) in enumerate(pairwise(bounds)):
        if first < last:
            yield expert, slice(first, last)


def _input(x: Tensor, x_scale: Tensor | None, activation: str) -> Tensor:
    if x_scale is not None:
        return x.float().double() * x_scale.double()[:, None]
    if activation == "none" or not x.numel():
        return x.double()
    limit, exact = _LIMITS[activation], x.detach().float()
    # a tensor: on a GPU torch turns division by a number into a product with its reciprocal
    scale = exact.abs().amax(-1, keepdim=True) / torch.tensor([limit], device=x.device)
    ratio = torch.where((scale > 0) & scale.isfinite(), exact / scale, 0.0)
    codes = ratio.clamp(-limit, limit)
    codes = codes.round() if activation == "int8" else codes.to(torch.float8_e4m3fn).float()
    return x.double() + (codes.double() * scale.double() - x.detach().double())
