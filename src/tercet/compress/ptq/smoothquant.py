"""SmoothQuant: move the range of outlier channels from activations into weights.

Xiao et al., arXiv:2211.10438. With one factor s_j per input channel,

    y = (x / s) (W * s)^T,   s_j = max |x_j|^alpha / max |W_j|^(1 - alpha)

so that both x / s and W * s quantize well to int8: weights with one scale per output channel,
activations with one scale per token, found at run time.
"""

from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from tercet.compress.algorithm import Algorithm, Quantized, Statistics, stored_input_scale
from tercet.compress.ptq import rtn
from tercet.errors import FormatError
from tercet.formats import PackedTensor, Scheme, check_weight


def smoothing_scale(weights: list[Tensor], activation_absmax: Tensor, alpha: float = 0.5) -> Tensor:
    """The factor s [K] by which weights are multiplied and inputs divided.

    Args:
        weights: W [N_i, K] of every linear layer that reads the same input.
        activation_absmax: max |x_j| over calibration tokens, [K].
        alpha: share of the range that moves into the weights, from 0 to 1.

    Returns:
        s [K], float32, > 0; 1 where a channel's inputs or weights are all zero.

    Raises:
        FormatError: no weights, weights that are no finite matrix, values not [K] or negative,
            alpha outside 0 to 1.
    """
    if not weights:
        raise FormatError("no weights to smooth: give every linear layer that reads this input")
    if not 0 <= alpha <= 1:
        raise FormatError(f"alpha {alpha}: must be from 0 to 1")
    for index, weight in enumerate(weights):
        check_weight(weight, f"weight {index}")
        rtn.check_per_column("activation_absmax", activation_absmax, weight, f"weight {index}")
    activation = activation_absmax.float()
    largest = column_absmax(weights)
    # the clamp keeps s and 1 / s finite in float16, where the engine folds them
    scale = activation.pow(alpha) / largest.pow(1 - alpha)
    return torch.where((activation > 0) & (largest > 0), scale.clamp(1e-4, 1e4), 1.0)


def column_absmax(weights: list[Tensor]) -> Tensor:
    """max |W_j| [K] over the rows of all weights [N_i, K], float32; 0 where there are no rows."""
    stacked = torch.cat([weight.float() for weight in weights])
    if not stacked.numel():
        return stacked.new_zeros(stacked.shape[1])
    return stacked.abs().amax(dim=0)


def quantize(
    weight: Tensor, scheme: Scheme, scale: Tensor, fit: str = "absmax", name: str = "tensor"
) -> PackedTensor:
    """W * s packed; its inputs are to be divided by s.

    Args:
        weight: W [N, K], floating point, finite.
        scheme: the number format, "int8-channel" in the paper.
        scale: s [K] from `smoothing_scale`.
        fit: where the scales of the format come from, as in `rtn.quantize`.
        name: what to call the tensor in an error.
    """
    check_weight(weight, name)
    rtn.check_per_column("scale", scale, weight, name)
    return rtn.quantize(weight.float() * scale.float(), scheme, fit=fit, name=name)


def quantize_activation(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., K] to int8 codes [..., K] and one float32 scale per token [..., 1].

    x = codes * scale, scale = max |x| / 127; a token of zeros has scale 0. The reference for the
    kernels' quantization of activations.
    """
    values = x.float()
    if not values.shape[-1]:
        return values.to(torch.int8), values.new_zeros((*values.shape[:-1], 1))
    scale = values.abs().amax(dim=-1, keepdim=True) / 127
    codes = (values / torch.where(scale > 0, scale, torch.inf)).round().clamp(-127, 127)
    return codes.to(torch.int8), scale


class Options(BaseModel):
    """Options of SmoothQuant.

    Attributes:
        alpha: share of the range that moves into the weights.
        fit: where the scales of the weights come from.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    alpha: float = Field(default=0.5, ge=0, le=1)
    fit: Literal["mse", "absmax"] = "absmax"


def _quantize_group(
    weights: dict[str, Tensor], statistics: Statistics, scheme: Scheme, options: Options
) -> dict[str, Quantized]:
    scale = smoothing_scale(list(weights.values()), statistics.absmax, options.alpha)
    divisor, stored = stored_input_scale(scale)
    return {
        name: Quantized(
            packed=quantize(weight, scheme, divisor, options.fit, name),
            input_scale=stored,
            activation="int8_token",
        )
        for name, weight in weights.items()
    }


ALGORITHM = Algorithm(
    name="smoothquant",
    options=Options,
    needs_inputs=True,
    quantize=_quantize_group,
    transforms_inputs=True,
)
