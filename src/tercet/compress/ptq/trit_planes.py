"""Trit planes: ternary and nonary weights fitted as sums of ternary planes, Hessian-weighted.

    ternary: W ~ s T0            nonary: W ~ s (3 T1 + T0)          T0, T1 in {-1, 0, 1}

Three starting scales per group (a searched one and two multiples of the mean absolute weight) are
tried; from each, the planes and the scales are fitted in turn on the layer's own objective
tr((W - Q) H (W - Q)^T), scales exactly and the planes of one column at a time, jointly: the pair
(T1, T0) of a weight is the base-3 expansion of its best level. The start of least loss is kept.
"""

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from tercet.compress.algorithm import Algorithm, Quantized, Statistics
from tercet.compress.ptq import quadratic
from tercet.compress.ptq.grid import Grid
from tercet.compress.ptq.native.scale_search import mse
from tercet.errors import PlanError
from tercet.formats import PackedTensor, Scheme, check_weight
from tercet.formats.fit import absmean

_PLANES = {"ternary": 1, "nonary": 2}
_MEAN_MULTIPLES = (0.9, 1.3)


class Options(BaseModel):
    """Options of trit-plane fitting.

    Attributes:
        damping: added to the diagonal of the Gram matrix, as a share of its mean.
        rounds: alternations of scales and planes; fitting stops early once nothing improves.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    damping: float = Field(default=0.05, gt=0)
    rounds: int = Field(default=8, ge=1)


def quantize(
    weight: Tensor, gram: Tensor, scheme: Scheme, options: Options, name: str = "tensor"
) -> PackedTensor:
    """Trit-plane fitting of one weight.

    Args:
        weight: W [N, K], floating point, finite.
        gram: E[x x^T] [K, K] of the layer's inputs.
        scheme: symmetric ternary or nonary, of any granularity.
        options: see Options.
        name: what to call the tensor in an error.
    """
    if scheme.element.name not in _PLANES or scheme.scaling.zero is not None:
        raise PlanError(
            f"{name}: trit_planes fits symmetric ternary and nonary, not {scheme.name!r}: "
            f"use gptq for other formats"
        )
    check_weight(weight, name)
    weight, gram = weight.float(), quadratic.add_damping(gram, options.damping)
    shape = (weight.shape[0], weight.shape[1])
    mean, _ = absmean(weight, scheme)
    searched, _ = mse(weight, scheme, gram.diagonal())
    best: tuple[float, Tensor, Grid] | None = None
    for start in (searched, *(mean * multiple for multiple in _MEAN_MULTIPLES)):
        grid = Grid.of(scheme, shape, start, None, name)
        levels = quadratic.sweep(weight, grid.nearest(weight), grid, gram)
        levels, grid = quadratic.refine(weight, levels, grid, gram, options.rounds, name)
        found = quadratic.loss(weight, grid.values(levels), gram)
        if best is None or found < best[0]:
            best = (found, levels, grid)
    assert best is not None
    return best[2].pack(best[1])


def planes(packed: PackedTensor) -> list[Tensor]:
    """The ternary planes [N, K] (int8, values -1, 0, 1), lowest first: level = sum of 3**i T_i."""
    level = packed.scheme.element.decode(packed.unpack()).to(torch.int8)
    found: list[Tensor] = []
    for _ in range(_PLANES[packed.scheme.element.name]):
        plane = (level + 1) % 3 - 1
        found.append(plane)
        level = torch.div(level - plane, 3, rounding_mode="floor")
    return found


def _quantize_group(
    weights: dict[str, Tensor], statistics: Statistics, scheme: Scheme, options: Options
) -> dict[str, Quantized]:
    return {
        name: Quantized(packed=quantize(weight, statistics.gram, scheme, options, name))
        for name, weight in weights.items()
    }


ALGORITHM = Algorithm(
    name="trit_planes", options=Options, needs_inputs=True, quantize=_quantize_group
)
