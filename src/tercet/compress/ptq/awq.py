"""AWQ: scale up the input channels that matter before rounding, and clip.

Lin et al., arXiv:2306.00978. With one factor s_j per input channel,

    y = (x / s) (W * s)^T

is the same layer, but rounding W * s makes errors of channel j smaller by about s_j. Candidates are

    s = a^alpha   and   s = a^alpha / w^(1 - alpha),   alpha on a grid from 0 to 1

with a the mean |x_j| and w the mean |W_j| relative to its group's largest weight; the best has the
least output error over all layers that read this input,

    loss = sum_i tr(E_i H E_i^T),   E_i = W_i - dequantize(quantize(W_i * s)) / s,   H = E[x x^T]

so that no activations are needed. Then each group's range is clipped to lower e H_gg e^T, with H_gg
the group's diagonal block of H.
"""

from collections.abc import Callable

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from tercet.compress.algorithm import Algorithm, Quantized, Statistics, stored_input_scale
from tercet.compress.ptq import rtn
from tercet.compress.ptq.native.scale_search import mse
from tercet.errors import FormatError
from tercet.formats import PackedTensor, Scheme, check_weight, encode
from tercet.formats.encode import effective_scale, round_scale, store_zero
from tercet.formats.fit import Fitted, absmax, blocks_of, join_blocks, nearest, search
from tercet.formats.packed import expand_blocks

_FINALISTS = 3
_SAMPLED_ROWS = 256
_COARSE_CLIPS = torch.tensor([1.0, 0.9, 0.8, 0.7, 0.6, 0.5], dtype=torch.float32)
_FINE_CLIPS = torch.linspace(1.0, 0.3, 36, dtype=torch.float32)


def search_scale(
    weights: list[Tensor],
    scheme: Scheme,
    activation_magnitude: Tensor,
    gram: Tensor,
    steps: int = 20,
) -> Tensor:
    """The factor s [K] by which weights are multiplied and inputs divided.

    Args:
        weights: W [N_i, K] of every linear layer that reads the same input.
        scheme: the number format of all of them.
        activation_magnitude: mean |x_j| over calibration tokens, [K].
        gram: H = E[x x^T], [K, K].
        steps: points of the grid of alpha, apart from 0.

    Returns:
        s [K], float32, > 0; all ones where no candidate beats plain rounding. Both are judged on
        256 rows of each weight, evenly spread: on 1536 rows of SmolLM2-135M that is a fifth of the
        time for the same loss.

    Raises:
        FormatError: no weights, weights that are no finite matrix, statistics of the wrong shape.
    """
    if not weights:
        raise FormatError("no weights to scale: give every linear layer that reads this input")
    for index, weight in enumerate(weights):
        name = f"weight {index}"
        check_weight(weight, name)
        rtn.check_per_column("activation_magnitude", activation_magnitude, weight, name)
        check_gram(gram, weight, name)
    weights, gram = [weight.float() for weight in weights], gram.float()
    tried = candidates(activation_magnitude.float(), relative_magnitude(weights, scheme), steps)
    weights = [weight[:: -(-weight.shape[0] // _SAMPLED_ROWS) or 1] for weight in weights]
    losses = [_loss(weights, scheme, scale, gram, _coarse_fit) for scale in tried]
    ranking = sorted(range(len(tried)), key=losses.__getitem__)
    finalists = [gram.new_ones(gram.shape[0]), *(tried[index] for index in ranking[:_FINALISTS])]
    final = [_loss(weights, scheme, scale, gram, fit_clipped) for scale in finalists]
    return finalists[final.index(min(final))]


def candidates(activation: Tensor, weight: Tensor, steps: int) -> list[Tensor]:
    """s [K] for each point of the grid, with max(s) * min(s) = 1."""
    if not activation.numel() or not bool((activation > 0).any()):
        return [torch.ones_like(activation)]
    # a silent channel would take s to zero, and 1 / s with it to infinity
    activation = (activation / activation.mean()).clamp_min(1e-4)
    weight = (weight / weight.mean().clamp_min(1e-30)).clamp_min(1e-4)
    found: list[Tensor] = []
    for step in range(1, steps + 1):
        alpha = step / steps
        for scale in (activation.pow(alpha), activation.pow(alpha) / weight.pow(1 - alpha)):
            scale = scale / (scale.max() * scale.min()).sqrt()
            found.append(scale.clamp(1e-4, 1e4))
    return found


def relative_magnitude(weights: list[Tensor], scheme: Scheme) -> Tensor:
    """Mean over all rows of |W_j| / (largest |W| of the group), [K]."""
    total = weights[0].new_zeros(weights[0].shape[1])
    for weight in weights:
        shape = (weight.shape[0], weight.shape[1])
        blocks, _ = blocks_of(weight.abs(), scheme)
        largest = blocks.amax(-1) if blocks.numel() else blocks.new_zeros(blocks.shape[:-1])
        wide = expand_blocks(largest, scheme.scaling.block(shape), shape)
        total += torch.where(wide > 0, weight.abs() / wide, 0.0).sum(0)
    return total / max(sum(weight.shape[0] for weight in weights), 1)


def quantize(
    weight: Tensor,
    scheme: Scheme,
    scale: Tensor,
    gram: Tensor | None = None,
    name: str = "tensor",
) -> PackedTensor:
    """W * s packed, its groups clipped; its inputs are to be divided by s.

    Args:
        weight: W [N, K], floating point, finite.
        scheme: the number format.
        scale: s [K] from `search_scale`.
        gram: H = E[x x^T] [K, K] of the inputs before division; None clips for the least squared
            error of the weights.
        name: what to call the tensor in an error.
    """
    check_weight(weight, name)
    rtn.check_per_column("scale", scale, weight, name)
    scaled = weight.float() * scale.float()
    if gram is None:
        return rtn.quantize(scaled, scheme, name=name)
    check_gram(gram, weight, name)
    fitted, zero = fit_clipped(scaled, scheme, scaled_gram(gram.float(), scale.float()))
    return encode(scaled, scheme, fitted, zero, name)


def scaled_gram(gram: Tensor, scale: Tensor) -> Tensor:
    """The Gram matrix of the divided inputs x / s."""
    return gram / torch.outer(scale, scale)


def fit_clipped(weight: Tensor, scheme: Scheme, gram: Tensor) -> Fitted:
    """Scales (and zeros) by whichever of three clipping searches has the least tr(E H E^T).

    They minimize, group by group: squared error; squared error weighted with the diagonal of H;
    e H_gg e^T.
    """
    blocks, _ = blocks_of(weight, scheme)
    start = absmax(weight, scheme)
    cost = group_cost(gram, scheme, (weight.shape[0], weight.shape[1]))
    fits = (
        mse(weight, scheme),
        mse(weight, scheme, gram.diagonal().clamp_min(0)),
        search(blocks, scheme, *start, _FINE_CLIPS, cost=cost),
    )
    losses = [_output_error(weight, scheme, fitted, gram) for fitted in fits]
    return fits[losses.index(min(losses))]


def group_cost(gram: Tensor, scheme: Scheme, shape: tuple[int, int]) -> Callable[[Tensor], Tensor]:
    """Errors [R, C, br * bk] to e H_gg e^T, summed over the rows of each block, [R, C]."""
    br, bk = scheme.scaling.block(shape)
    count = -(-shape[1] // bk)
    padded = torch.nn.functional.pad(gram, (0, -shape[1] % bk, 0, -shape[1] % bk))
    parts = padded.reshape(count, bk, count, bk).diagonal(dim1=0, dim2=2).permute(2, 0, 1)

    def cost(error: Tensor) -> Tensor:
        rows = error.reshape(error.shape[0], count, br, bk).transpose(0, 1)
        rows = rows.reshape(count, error.shape[0] * br, bk)
        squares = (torch.bmm(rows, parts) * rows).sum(-1)
        return squares.reshape(count, error.shape[0], br).sum(-1).T

    return cost


def _coarse_fit(weight: Tensor, scheme: Scheme, gram: Tensor) -> Fitted:
    blocks, _ = blocks_of(weight, scheme)
    importance, _ = blocks_of(gram.diagonal().clamp_min(0).expand_as(weight), scheme)
    return search(blocks, scheme, *absmax(weight, scheme), _COARSE_CLIPS, importance)


def _loss(
    weights: list[Tensor],
    scheme: Scheme,
    scale: Tensor,
    gram: Tensor,
    fit: Callable[[Tensor, Scheme, Tensor], Fitted],
) -> float:
    """sum_i tr(E_i H E_i^T) of the weights quantized under s."""
    divided, total = scaled_gram(gram, scale), 0.0
    for weight in weights:
        scaled = weight * scale
        total += _output_error(scaled, scheme, fit(scaled, scheme, divided), divided)
    return total


def _output_error(weight: Tensor, scheme: Scheme, fitted: Fitted, gram: Tensor) -> float:
    stored, second = round_scale(fitted[0], scheme, "tensor")
    zero = store_zero(fitted[1], scheme)
    blocks, _ = blocks_of(weight, scheme)
    rounded = nearest(
        blocks, scheme, effective_scale(stored, second), None if zero is None else zero.float()
    )
    error = join_blocks(rounded - blocks, scheme, (weight.shape[0], weight.shape[1]))
    return float(((error @ gram) * error).sum())


def check_gram(gram: Tensor, weight: Tensor, name: str) -> None:
    """FormatError unless H is a finite matrix [K, K] for a weight [N, K]."""
    columns = weight.shape[1]
    if tuple(gram.shape) != (columns, columns):
        raise FormatError(
            f"{name}: the Gram matrix has shape {list(gram.shape)}, the weight has {columns} "
            f"columns: give E[x x^T], [{columns}, {columns}]"
        )
    if not bool(gram.isfinite().all()):
        raise FormatError(f"{name}: the Gram matrix has NaN or inf: check the calibration inputs")


class Options(BaseModel):
    """Options of AWQ.

    Attributes:
        steps: points of the grid of alpha, apart from 0.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int = Field(default=20, ge=1)


def _quantize_group(
    weights: dict[str, Tensor], statistics: Statistics, scheme: Scheme, options: Options
) -> dict[str, Quantized]:
    scale = search_scale(
        list(weights.values()), scheme, statistics.absmean, statistics.gram, options.steps
    )
    divisor, stored = stored_input_scale(scale)
    return {
        name: Quantized(
            packed=quantize(weight, scheme, divisor, statistics.gram, name), input_scale=stored
        )
        for name, weight in weights.items()
    }


ALGORITHM = Algorithm(
    name="awq",
    options=Options,
    needs_inputs=True,
    quantize=_quantize_group,
    transforms_inputs=True,
)
