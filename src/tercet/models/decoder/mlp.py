"""The feed-forward network of a layer: gated, or a mixture of such experts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tercet.errors import UnsupportedError
from tercet.models.architecture import Architecture
from tercet.models.decoder.config import ACTIVATIONS, DecoderConfig, MixtureConfig
from tercet.models.decoder.linear import Linear, load_linear
from tercet.models.decoder.weight_reader import WeightReader
from tercet.models.experts_product import ExpertsProduct, Weight
from tercet.models.packed_modules import load_transform
from tercet.models.split_experts import SHARED_GATE


@dataclass(frozen=True, kw_only=True, eq=False)
class Gated:
    """down(act(gate) * up), gate and up side by side in one linear.

    The gate and the result may have factors.
    """

    gate_up: Linear
    down: Linear
    activation: str
    gate_factor: float = 1.0
    output_factor: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """x [M, H] to [M, H]."""
        gate, up = self.gate_and_up(x).chunk(2, -1)
        return self.finish(ACTIVATIONS[self.activation](gate).mul_(up))

    def gate_and_up(self, x: Tensor) -> Tensor:
        """x [M, H] to gate and up, side by side [M, 2 I]."""
        both = self.gate_up(x)
        if self.gate_factor != 1:
            both[:, : both.shape[1] // 2].mul_(self.gate_factor)
        return both

    def finish(self, gated: Tensor) -> Tensor:
        """What is gated [M, I] to [M, H]."""
        made = self.down(gated)
        return made if self.output_factor == 1 else made.mul_(self.output_factor)


@dataclass(frozen=True, kw_only=True, eq=False)
class Shared:
    """An expert that sees every token, times the sigmoid of its gate's one row [1, H]."""

    network: Gated
    gate: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """x [M, H] to [M, H]."""
        return functional.linear(x, self.gate).sigmoid() * self.network(x)


@dataclass(frozen=True, kw_only=True, eq=False)
class Routed:
    """Experts, of which each token is seen by the likeliest; and one for all, where there is one.

    Attributes:
        router: [E, H].
        experts: all of them.
        shared: that for all.
        config: how many see a token, and how they are weighed.
    """

    router: Tensor
    experts: ExpertsProduct
    shared: Shared | None
    config: MixtureConfig

    def __call__(self, x: Tensor) -> Tensor:
        """x [M, H] to [M, H]; the host waits for nothing."""
        scores = functional.linear(x, self.router).softmax(-1, dtype=torch.float32)
        weights, experts = scores.topk(self.config.per_token, -1)
        if self.config.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        found = self.experts(x, experts, weights.to(x.dtype))
        return found if self.shared is None else found + self.shared(x)


def load_mlp(
    reader: WeightReader, architecture: Architecture, config: DecoderConfig, layer: int
) -> Gated | Routed:
    """The network of layer `layer` of a checkpoint.

    Raises:
        UnsupportedError: experts are not packed, or not alike.
    """
    name = architecture.layer.format(layer)
    mixture = config.mixture
    if mixture is None or not mixture.layers[layer]:
        return _load_gated(
            reader,
            [f"{name}.{module}" for module in architecture.gate_up],
            f"{name}.{architecture.down}",
            config,
            config.intermediate,
            bias=config.mlp_bias,
        )
    shared = None
    if mixture.shared is not None:
        module = f"{name}.mlp.shared_expert"
        shared = Shared(
            network=_load_gated(
                reader,
                [f"{module}.gate_proj", f"{module}.up_proj"],
                f"{module}.down_proj",
                config,
                mixture.shared,
            ),
            gate=reader.tensor(f"{name}.mlp.{SHARED_GATE}.weight", (1, config.hidden)),
        )
    return Routed(
        router=reader.tensor(f"{name}.mlp.gate.weight", (mixture.experts, config.hidden)),
        experts=_load_experts(reader, f"{name}.mlp.experts", config, mixture),
        shared=shared,
        config=mixture,
    )


def _load_gated(
    reader: WeightReader,
    gate_up: Sequence[str],
    down: str,
    config: DecoderConfig,
    inner: int,
    bias: bool = False,
) -> Gated:
    rows = 2 * inner // len(gate_up)
    return Gated(
        gate_up=load_linear(reader, [(module, rows) for module in gate_up], config.hidden, bias),
        down=load_linear(reader, [(down, config.hidden)], inner, bias),
        activation=config.activation,
        gate_factor=config.gate_factor,
        output_factor=config.mlp_output_factor,
    )


def _load_experts(
    reader: WeightReader, name: str, config: DecoderConfig, mixture: MixtureConfig
) -> ExpertsProduct:
    def read(projection: str, shape: tuple[int, int]) -> list[tuple[str, Weight]]:
        modules = [f"{name}.{index}.{projection}" for index in range(mixture.experts)]
        return [(module, _read_packed(reader, module, shape)) for module in modules]

    inner = (mixture.inner, config.hidden)
    return ExpertsProduct(
        read("gate_proj", inner),
        read("up_proj", inner),
        read("down_proj", (config.hidden, mixture.inner)),
        ACTIVATIONS[config.activation],
        reader.device,
    )


def _read_packed(reader: WeightReader, module: str, shape: tuple[int, int]) -> Weight:
    if not reader.is_packed(module, shape):
        raise UnsupportedError(
            f"{module} is not packed: the decoder multiplies packed experts; give all of a layer's "
            f"experts a format in the plan, or load such a model with transformers"
        )
    source = reader.source
    return source.read_packed(module), load_transform(source, module, reader.device)
