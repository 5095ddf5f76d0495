"""layer: one layer of a skeleton, whose quantized linears and norms are trained together."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from tercet.compress.algorithm import Quantized
from tercet.compress.blockwise.latent_vector import LatentVector
from tercet.compress.blockwise.latent_weight import LatentWeight
from tercet.compress.blockwise.output_loss import Hidden, output_loss
from tercet.compress.blockwise.repeatable import repeatable
from tercet.compress.blockwise.settings import Blockwise
from tercet.compress.blockwise.tune import Errors, tune
from tercet.compress.calibration.stream import LayerCall
from tercet.compress.skeleton import Skeleton
from tercet.models.input_transform import InputTransform


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """A layer after training.

    Attributes:
        quantized: its linears, by name.
        vectors: norms and biases by parameter, in the dtypes that the source has.
        errors: of the layer's output.
    """

    quantized: dict[str, Quantized]
    vectors: dict[str, Tensor]
    errors: Errors


def tune_layer(
    skeleton: Skeleton,
    index: int,
    call: LayerCall,
    quantized: Mapping[str, Quantized],
    originals: Mapping[str, Tensor],
    hidden: Hidden,
    settings: Blockwise,
) -> Tuned:
    """Trains what a layer stores. Hooks on its linears that transform inputs are in place.

    Args:
        skeleton: the model; the layer's weights are in memory.
        index: of the layer.
        call: how the model calls it.
        quantized: linears of the layer, by name: where training begins.
        originals: their uncompressed weights.
        hidden: states before and behind the layer.
        settings: see there.
    """
    layer = skeleton.layers[index]
    prefix = skeleton.layer_names()[index] + "."
    weights = {
        name: LatentWeight(result.packed, in_basis(originals[name], result), name)
        for name, result in quantized.items()
    }
    vectors = _vectors(skeleton, layer, prefix) if settings.norms else {}
    latents = {f"{name}.weight".removeprefix(prefix): one for name, one in weights.items()}

    def forward(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        def run(*arguments: Any, **named: Any) -> Any:
            return functional_call(layer, dict(parameters), arguments, named)

        return call.differentiably(run, x)

    with repeatable(skeleton.device):
        errors = tune(
            output_loss(forward, hidden),
            {**latents, **vectors},
            len(hidden.inputs),
            settings,
            seed=settings.seed + index,
            device=skeleton.device,
        )
    return Tuned(
        quantized={
            name: replace(result, packed=weights[name].pack()) for name, result in quantized.items()
        },
        vectors={prefix + name: one.stored() for name, one in vectors.items()},
        errors=errors,
    )


def in_basis(weight: Tensor, result: Quantized) -> Tensor:
    """The original weight for the inputs that the quantized one reads."""
    if result.input_scale is not None:
        weight = weight / result.input_scale.to(weight.device)
    if result.hadamard is not None:
        weight = InputTransform(hadamard=result.hadamard)(weight)
    return weight


def _vectors(skeleton: Skeleton, layer: nn.Module, prefix: str) -> dict[str, LatentVector]:
    return {
        name: LatentVector(value.detach(), skeleton.read_stored(prefix + name).dtype)
        for name, value in layer.named_parameters()
        if value.ndim == 1
    }
