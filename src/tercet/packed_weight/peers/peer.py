"""Peer weight: the arguments of a call in the terms that other libraries' kernels speak."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.formats import PackedTensor
from tercet.packed_weight.call import CODES, resolve_output


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A call without this package's layouts; with the weights of E experts, rows sorted by expert.

    Attributes:
        x: [M, K], 16-bit floats, or int8 or fp8 codes.
        x_scale: float32 [M] of codes; None for floats.
        activation: what the products are made of: "none" for x as it is, "int8", "fp8_e4m3"; x is
            rounded inside where it is not codes already.
        levels: [N, K] or [E, N, K] of an integer element, int8; of fp8, its codes.
        scale: [N, G] or [E, N, G] in the weight's dtype.
        group: columns that share a scale; 0 where a whole row does.
        bits: that hold every level: 2, 4 or 8.
        bias: [N], [E, N] or None.
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


def output_dtype(arguments: dict[str, Any]) -> torch.dtype:
    """The dtype of the outputs: as asked for, else x's, bfloat16 for codes."""
    return resolve_output(arguments["x"], "none", arguments.get("out_dtype"))[1]


def dense_input(arguments: dict[str, Any]) -> Tensor:
    """x as floats in the dtype of the outputs: codes times their scales."""
    x, scale = arguments["x"], arguments.get("x_scale")
    if x.dtype in CODES and scale is not None:
        x = x.float() * scale.float().reshape(*x.shape[:-1], 1)
    return x.to(output_dtype(arguments))


def peer_of(arguments: dict[str, Any]) -> Peer:
    """The call in a peer's terms; its weight is one, or a tuple of those of all experts.

    Raises:
        UnsupportedError: for what no peer has: a residual, zero points, blocks, second levels and
            scales shared by a whole tensor.
    """
    x, given = arguments["x"], arguments["weight"]
    weights: tuple[PackedTensor, ...] = (given,) if isinstance(given, PackedTensor) else given
    weight = weights[0]
    scheme, columns = weight.scheme, weight.shape[1]
    block_rows, group = scheme.scaling.block(weight.shape)
    element = scheme.element
    integer = element.integer
    if weight.zero is not None or weight.second is not None or block_rows != 1:
        raise UnsupportedError(
            f"scheme {scheme.name!r}: peers are given symmetric weights with a scale for "
            "each channel or group"
        )
    if arguments.get("residual") is not None:
        raise UnsupportedError("peers add no residual: leave it out")
    if not integer and element.name != "fp8_e4m3":
        raise UnsupportedError(f"scheme {scheme.name!r}: peers are given integers and fp8_e4m3")
    levels = torch.stack([each.unpack().to(x.device) for each in weights])
    scale = torch.stack([each.scale.to(x.device) for each in weights])
    if integer:
        # uint8 wraps around: the sum's bits are those of the level
        levels = (levels.to(torch.uint8) + (int(element.lowest) & 255)).view(torch.int8)
    if weight is given:
        levels, scale = levels[0], scale[0]
    highest = max(-element.lowest, element.highest + 1) if integer else 128
    return Peer(
        x=x if x.dtype in CODES else dense_input(arguments),
        x_scale=arguments.get("x_scale"),
        activation=CODES.get(x.dtype) or str(arguments.get("activation") or "none"),
        levels=levels,
        scale=scale,
        group=0 if group >= columns else group,
        bits=next(bits for bits in (2, 4, 8) if highest <= 2 ** (bits - 1)),
        bias=arguments["bias"],
        dtype=output_dtype(arguments),
    )
