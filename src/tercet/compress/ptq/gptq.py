"""GPTQ: quantize column by column, spreading each column's error over those still to come.

Frantar et al., arXiv:2210.17323. With H = E[x x^T] damped and U the upper Cholesky factor of H^-1
in the order of processing, column i is rounded and the rest moves by

    W[:, j] -= (W[:, i] - Q[:, i]) / U[i, i] * U[i, j],   j > i

Beyond the paper: columns in order of falling H[i, i] (activation order) with groups fixed in the
original order, so that scales stay plain; scales searched under the weights H[i, i] (the weights
1 / U[i, i]^2, with which rounding errors enter the loss, gave perplexity 26.69 against 26.18 at 4
bits on SmolLM2-135M); then rounds of exact scale fitting and coordinate descent.
"""

from typing import cast

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from tercet.compress.algorithm import Algorithm, Quantized, Statistics
from tercet.compress.ptq import quadratic
from tercet.compress.ptq.grid import Grid
from tercet.formats import PackedTensor, Scheme, check_weight
from tercet.formats.fit import absmax, mse

_BLOCK = 64


class Options(BaseModel):
    """Options of GPTQ.

    Attributes:
        activation_order: process columns by falling diagonal of the Gram matrix.
        damping: added to the diagonal, as a share of its mean.
        search_scale: search each group's scale under the Hessian's weights; else absmax.
        refine: rounds of exact scale fitting and coordinate descent afterwards.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    activation_order: bool = True
    damping: float = Field(default=0.05, gt=0)
    search_scale: bool = True
    refine: int = Field(default=3, ge=0)


def quantize(
    weight: Tensor, gram: Tensor, scheme: Scheme, options: Options, name: str = "tensor"
) -> PackedTensor:
    """GPTQ on one weight.

    Args:
        weight: W [N, K], floating point, finite.
        gram: E[x x^T] [K, K] of the layer's inputs.
        scheme: the number format; any granularity.
        options: see Options.
        name: what to call the tensor in an error.
    """
    check_weight(weight, name)
    weight, gram = weight.float(), quadratic.add_damping(gram, options.damping)
    shape = (weight.shape[0], weight.shape[1])
    order = torch.arange(shape[1])
    if options.activation_order:
        order = torch.argsort(gram.diagonal(), descending=True, stable=True)
    factor = inverse_factor(gram[order][:, order])
    searched = mse(weight, scheme, gram.diagonal()) if options.search_scale else None
    fitted = searched or absmax(weight, scheme)
    grid = Grid.of(scheme, shape, *fitted, name)
    levels = spread(weight, grid, factor, order)
    levels, grid = quadratic.refine(weight, levels, grid, gram, options.refine, name)
    return grid.pack(levels)


def inverse_factor(gram: Tensor) -> Tensor:
    """U, upper triangular, with U^T U = H^-1, for a positive definite H [K, K]; float64 inside."""
    if not gram.numel():
        return gram
    lower = cast(Tensor, torch.linalg.cholesky(gram.double()))
    inverse = torch.cholesky_inverse(lower)
    factor = cast(Tensor, torch.linalg.cholesky(inverse, upper=True))
    return factor.to(gram.dtype)


def spread(weight: Tensor, grid: Grid, factor: Tensor, order: Tensor) -> Tensor:
    """Levels [N, K] after rounding columns in `order` and spreading each error over the rest.

    The work is done transposed, so that a column is contiguous.

    Args:
        weight: W [N, K], float32.
        grid: scales and zero points.
        factor: U [K, K] in processing order.
        order: the processing order of the columns [K].
    """
    element = grid.scheme.element
    rest = weight.T[order].contiguous()
    scale = grid.scale.T[order].contiguous()
    inverse = torch.where(scale > 0, 1.0 / scale, 0.0)
    zero = torch.zeros(1).expand_as(scale) if grid.zero is None else grid.zero.T[order].contiguous()
    levels = torch.empty_like(rest)
    pivots = cast("list[float]", factor.diagonal().reciprocal().tolist())
    for start in range(0, weight.shape[1], _BLOCK):
        end = min(start + _BLOCK, weight.shape[1])
        local, local_factor = rest[start:end], factor[start:end, start:end]
        errors = torch.empty_like(local)
        for i in range(end - start):
            column = start + i
            values = (local[i] * inverse[column]).add_(zero[column])
            level = quadratic.round_levels(values, element)
            rounded = (level - zero[column]).mul_(scale[column])
            torch.mul(local[i] - rounded, pivots[column], out=errors[i])
            levels[column] = level
            local[i + 1 :].addr_(local_factor[i, i + 1 :], errors[i], alpha=-1)
        rest[end:].addmm_(factor[start:end, end:].T, errors, alpha=-1)
    restored = torch.empty_like(levels)
    restored[order] = levels
    return restored.T.contiguous()


def _quantize_group(
    weights: dict[str, Tensor], statistics: Statistics, scheme: Scheme, options: Options
) -> dict[str, Quantized]:
    return {
        name: Quantized(packed=quantize(weight, statistics.gram, scheme, options, name))
        for name, weight in weights.items()
    }


ALGORITHM = Algorithm(name="gptq", options=Options, needs_inputs=True, quantize=_quantize_group)
