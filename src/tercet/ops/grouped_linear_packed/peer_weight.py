"""Peer weight: the arguments of a call in the terms that other libraries' kernels speak."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.formats import PackedTensor
from tercet.ops.grouped_linear_packed.arguments import CODES


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A call without this package's layouts.

    Attributes:
        x: [T, K], 16-bit floats, or int8 or fp8 codes.
        x_scale: float32 [T] of codes; None for floats.
        activation: what the products are made of: "none" for x as it is, "int8", "fp8_e4m3".
        levels: [E, N, K] of an integer element, int8; of fp8, its codes.
        scale: [E, N, G] in the weights' dtype.
        group: columns that share a scale; 0 where a whole row does.
        bits: that hold every level: 2, 4 or 8.
        bias: [E, N] or None.
        dtype: of the outputs.
    """

    x: Tensor
    x_scale: Tensor | None
    activation: str
    levels: Tensor
    scale: Tensor
    group: int
    bits: int
    bias: Tensor | None
    dtype: torch.dtype


def dense_input(arguments: dict[str, Any]) -> Tensor:
    """x as floats in the dtype of the outputs: codes times their scales."""
    x, scale = arguments["x"], arguments.get("x_scale")
    dtype = arguments.get("out_dtype") or (torch.bfloat16 if x.dtype in CODES else x.dtype)
    return (x if scale is None else x.float() * scale[:, None]).to(dtype)


def peer_of(arguments: dict[str, Any]) -> Peer:
    """The call in a peer's terms.

    Raises:
        UnsupportedError: for what no peer has: zero points, blocks, second levels and scales shared
            by a whole tensor.
    """
    x, weights = arguments["x"], arguments["weight"]
    first: PackedTensor = weights[0]
    scheme, columns = first.scheme, first.shape[1]
    block_rows, group = scheme.scaling.block(first.shape)
    element = scheme.element
    if first.zero is not None or first.second is not None or block_rows != 1:
        raise UnsupportedError(
            f"scheme {scheme.name!r}: peers are given symmetric weights with a scale for "
            "each channel or group"
        )
    if not element.integer and element.name != "fp8_e4m3":
        raise UnsupportedError(f"scheme {scheme.name!r}: peers are given integers and fp8_e4m3")
    codes = torch.stack([each.unpack().to(x.device) for each in weights])
    lowest = int(element.lowest) & 255 if element.integer else 0
    # uint8 wraps around: the sum's bits are those of the level
    levels = (codes.to(torch.uint8) + lowest).view(torch.int8) if element.integer else codes
    highest = max(-element.lowest, element.highest + 1) if element.integer else 128
    return Peer(
        x=x if x.dtype in CODES else dense_input(arguments),
        x_scale=arguments.get("x_scale"),
        activation=CODES.get(x.dtype) or str(arguments.get("activation") or "none"),
        levels=levels,
        scale=torch.stack([each.scale.to(x.device) for each in weights]),
        group=0 if group >= columns else group,
        bits=next(bits for bits in (2, 4, 8) if highest <= 2 ** (bits - 1)),
        bias=arguments["bias"],
        dtype=dense_input({**arguments, "x": x[:0], "x_scale": None}).dtype,
    )
