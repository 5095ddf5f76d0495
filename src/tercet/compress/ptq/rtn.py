"""RTN: every weight to its nearest level, scales from the weights alone.

    Q = (clamp(round(W / s + z)) - z) * s

with s (and z) by absmax, absmean or a search for the least squared error. The baseline that every
other algorithm has to beat.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from tercet.compress.algorithm import Algorithm, Quantized, Statistics
from tercet.compress.ptq.native.scale_search import mse
from tercet.compress.ptq.row_blocks import quantize_by_rows
from tercet.errors import FormatError
from tercet.formats import PackedTensor, Scheme, check_weight, encode
from tercet.formats import fit as fit_scale

# an embedding is quantized by this: packing takes 16 bytes a weight
_WEIGHTS_AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 26}


def quantize(
    weight: Tensor,
    scheme: Scheme,
    fit: str = "mse",
    importance: Tensor | None = None,
    name: str = "tensor",
) -> PackedTensor:
    """Round to nearest.

    Args:
        weight: W [N, K], floating point, finite.
        scheme: the number format.
        fit: where scales come from: "mse", "absmax" or "absmean".
        importance: [K] weights of the squared error per column, for "mse" only (say, the diagonal
            of the Gram matrix).
        name: what to call the tensor in an error.

    Raises:
        FormatError: weights that are no finite matrix, an unknown fit, an importance that the fit
            does not use, a scale that the scheme cannot hold.
    """
    check_weight(weight, name)
    if importance is not None:
        if fit != "mse":
            raise FormatError(
                f"{name}: importance weighs the search of fit 'mse', got fit {fit!r}: "
                f"use 'mse' or pass no importance"
            )
        check_per_column("importance", importance, weight, name)
    return quantize_by_rows(
        weight,
        scheme,
        lambda rows: _quantize_rows(rows, scheme, fit, importance, name),
        at_once=_WEIGHTS_AT_ONCE,
    )


def _quantize_rows(
    weight: Tensor, scheme: Scheme, fit: str, importance: Tensor | None, name: str
) -> PackedTensor:
    searched = fit == "mse"
    scale, zero = mse(weight, scheme, importance) if searched else fit_scale(weight, scheme, fit)
    return encode(weight, scheme, scale, zero, name)


def check_per_column(label: str, values: Tensor, weight: Tensor, name: str) -> None:
    """FormatError unless values are [K], finite and not negative, for a weight [N, K]."""
    columns = weight.shape[1]
    if tuple(values.shape) != (columns,):
        raise FormatError(
            f"{name}: {label} has shape {list(values.shape)}, the weight has {columns} columns: "
            f"give one value per column"
        )
    if not bool((values.isfinite() & (values >= 0)).all()):
        raise FormatError(f"{name}: {label} has values that are negative, NaN or inf")


class Options(BaseModel):
    """Options of round-to-nearest.

    Attributes:
        fit: where scales come from.
        activation: how the input is quantized at run time, by one scale a token; None leaves it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    fit: Literal["mse", "absmax", "absmean"] = "mse"
    activation: Literal["int8_token", "fp8_token"] | None = None


def _quantize_group(
    weights: dict[str, Tensor], _: Statistics | None, scheme: Scheme, options: Options
) -> dict[str, Quantized]:
    return {
        name: Quantized(
            packed=quantize(weight, scheme, options.fit, name=name), activation=options.activation
        )
        for name, weight in weights.items()
    }


ALGORITHM = Algorithm(name="rtn", options=Options, needs_inputs=False, quantize=_quantize_group)
