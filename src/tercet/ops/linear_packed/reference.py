"""The meaning of linear_packed, in float64."""

import torch
from torch import Tensor

from tercet.formats import PackedTensor

_LIMITS = {"int8": 127.0, "fp8_e4m3": 448.0}
_SHORT = 16384  # terms of a float32 sum that the tolerance holds


def reference(
    x: Tensor,
    weight: PackedTensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    x_scale: Tensor | None = None,
    x_sum: Tensor | None = None,
    activation: str = "none",
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """x [..., K] W^T + bias + residual in float64, W dequantized in float64.

    With an activation, x is what its codes stand for: quantized here, to the bit as
    `quantize_activation` does, or given as codes with their scale. The gradient passes straight
    through the rounding.
    """
    del x_sum, out_dtype
    product = _input(x, x_scale, activation) @ weight.dequantize(torch.float64).T
    for term in (bias, residual):
        product = product if term is None else product + term.double()
    return product


def _input(x: Tensor, x_scale: Tensor | None, activation: str) -> Tensor:
    if x_scale is not None:
        return x.float().double() * x_scale.double()[..., None]
    if activation == "none" or not x.numel():
        return x.double()
    limit, exact = _LIMITS[activation], x.detach().float()
    # a tensor: on a GPU torch turns division by a number into a product with its reciprocal
    scale = exact.abs().amax(-1, keepdim=True) / torch.tensor([limit], device=x.device)
    ratio = torch.where((scale > 0) & scale.isfinite(), exact / scale, 0.0)
    codes = ratio.clamp(-limit, limit)
    codes = codes.round() if activation == "int8" else codes.to(torch.float8_e4m3fn).float()
    return x.double() + (codes.double() * scale.double() - x.detach().double())


def magnitude(
    x: Tensor,
    weight: PackedTensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    x_scale: Tensor | None = None,
    x_sum: Tensor | None = None,
    activation: str = "none",
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """|x| |W|^T + |bias| + |residual|, where |W| = (|level| + |zero|) scale.

    It is what a rounding is relative to. Of very long rows the roundings of a float32 sum add up as
    the square root of their count: N. Higham and T. Mary, "A New Approach to Probabilistic Rounding
    Error Analysis", 2019.
    """
    del x_sum
    product = _input(x, x_scale, activation).detach().abs() @ weight.magnitude().T
    if (out_dtype or x.dtype) == torch.float32:
        product = product * max(1.0, (x.shape[-1] / _SHORT) ** 0.5)
    for term in (bias, residual):
        product = product if term is None else product + term.double().abs()
    return product


def gradient_magnitude(
    directions: list[Tensor | None],
    x: Tensor,
    weight: PackedTensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    x_scale: Tensor | None = None,
    x_sum: Tensor | None = None,
    activation: str = "none",
    out_dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """The same for the gradients: of x |dy| |W|, which may cancel in all of a row's columns."""
    del residual, x_scale, x_sum, activation, out_dtype
    if directions[0] is None:
        return {}
    dy = directions[0].double().abs().reshape(x.shape[:-1].numel(), weight.shape[0])
    sizes = {"x": (dy @ weight.magnitude()).reshape(x.shape)}
    return sizes if bias is None else {**sizes, "bias": dy.sum(0)}
