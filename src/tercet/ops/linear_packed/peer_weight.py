"""Peer weight: the arguments of a call in the terms that other libraries' kernels speak."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tercet.errors import UnsupportedError

_CODES = {torch.int8: "int8", torch.float8_e4m3fn: "fp8_e4m3"}


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A call without this package's layouts.

    Attributes:
        x: [M, K], 16-bit floats, or int8 or fp8 codes.
        x_scale: float32 [M] of codes; None for floats.
        activation: what the products are made of: "none" for x as it is, "int8", "fp8_e4m3"; x is
            rounded inside where it is not codes already.
        levels: [N, K] of an integer element, int8; of fp8, its codes.
        scale: [N, G] in the weight's dtype.
        group: columns that share a scale; 0 where a whole row does.
        bits: that hold every level: 2, 4 or 8.
        bias: [N] or None.
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
    """x as 16-bit (or wider) floats: codes times their scales, in bf16."""
    x, scale = arguments["x"], arguments.get("x_scale")
    if x.dtype not in _CODES or scale is None:
        return x
    return (x.float() * scale.float().reshape(*x.shape[:-1], 1)).to(torch.bfloat16)


def peer_of(arguments: dict[str, Any]) -> Peer:
    """The call in a peer's terms.

    Raises:
        UnsupportedError: for schemes that no peer has: zero points, blocks, sparse storage, second
            levels and scales shared by a whole tensor.
    """
    x, weight = arguments["x"], arguments["weight"]
    scheme, columns = weight.scheme, weight.shape[1]
    block_rows, group = scheme.scaling.block(weight.shape)
    element = scheme.element
    integer = element.integer
    if weight.zero is not None or weight.second is not None or block_rows != 1:
        raise UnsupportedError(
            f"scheme {scheme.name!r}: peers are given symmetric weights with a scale for "
            "each channel or group"
        )
    if not integer and element.name != "fp8_e4m3":
        raise UnsupportedError(f"scheme {scheme.name!r}: peers are given integers and fp8_e4m3")
    codes = weight.unpack().to(x.device)
    levels = (codes.to(torch.int16) + int(element.lowest)).to(torch.int8) if integer else codes
    highest = max(-element.lowest, element.highest + 1) if integer else 128
    return Peer(
        x=x,
        x_scale=arguments.get("x_scale"),
        activation=_CODES.get(x.dtype) or str(arguments.get("activation") or "none"),
        levels=levels,
        scale=weight.scale.to(x.device),
        group=0 if group >= columns else group,
        bits=next(bits for bits in (2, 4, 8) if highest <= 2 ** (bits - 1)),
        bias=arguments["bias"],
        dtype=x.dtype if x.dtype not in _CODES else torch.bfloat16,
    )
