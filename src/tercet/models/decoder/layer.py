"""One layer of a decoder: attention, then the gated feed-forward network."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from tercet.models.architecture import Architecture
from tercet.models.decoder.config import ACTIVATIONS, DecoderConfig
from tercet.models.decoder.linear import Linear, load_linear
from tercet.models.decoder.native_layer import NativeLayer, native_layer
from tercet.models.decoder.one_token import Heads, Native, native
from tercet.models.decoder.rope import Angles, rotate_
from tercet.models.decoder.weight_reader import WeightReader


@dataclass(frozen=True, kw_only=True, eq=False)
class Norm:
    """RMSNorm (arXiv:1910.07467) over the last dimension."""

    weight: Tensor
    epsilon: float

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight.shape, self.weight, self.epsilon)


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """What all layers share in one pass over new positions.

    Attributes:
        batch: B.
        angles: the rotations of the new positions.
        masks: by window, which positions each new one sees: bool [T, length]; None for all up to
            itself.
        native: the C++ functions for one new position; None where they do not apply.
    """

    batch: int
    angles: Angles
    masks: dict[int | None, Tensor | None]
    native: Native | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """Weights of one layer; `config` gives the sizes."""

    config: DecoderConfig
    window: int | None
    attention_norm: Norm
    qkv: Linear
    query_norm: Norm | None
    key_norm: Norm | None
    output: Linear
    mlp_norm: Norm
    gate_up: Linear
    down: Linear

    def forward_(
        self, hidden: Tensor, step: Step, new: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        """Adds the layer to the residual stream hidden [B * T, hidden], in place.

        Args:
            hidden: the residual stream.
            step: what the layers share.
            new: where keys and values of the new positions go [B, 2H, T, D].
            keys: of all positions, the new ones included [B, H, length, D].
            values: like keys.
        """
        if step.native is not None:
            self._one_token_(step.native, hidden, step, keys, values)
            return
        factor = self.config.residual_factor
        mixed = self._attention(self.attention_norm(hidden), step, new, keys, values)
        hidden.add_(mixed, alpha=factor)
        gate, up = self.gate_up(self.mlp_norm(hidden)).chunk(2, -1)
        hidden.add_(self.down(ACTIVATIONS[self.config.activation](gate).mul_(up)), alpha=factor)

    def _one_token_(
        self, functions: Native, hidden: Tensor, step: Step, keys: Tensor, values: Tensor
    ) -> None:
        if self.whole is not None:
            self.whole(hidden, step.angles, keys, values)
            return
        norm = self.attention_norm
        x = functions.add_norm_(hidden, None, norm.weight, norm.epsilon)
        mixed = functions.attend(self.qkv(x), self.heads, step.angles, keys, values)
        norm = self.mlp_norm
        x = functions.add_norm_(hidden, self.output(mixed), norm.weight, norm.epsilon)
        hidden.add_(self.down(functions.silu_gate(self.gate_up(x))))

    @cached_property
    def whole(self) -> NativeLayer | None:
        """The layer as one C++ function; None where its linears are more than packed products."""
        functions = native()
        if functions is None or self.attention_norm.epsilon != self.mlp_norm.epsilon:
            return None
        linears = (self.qkv, self.output, self.gate_up, self.down)
        norms = (self.attention_norm.weight, self.mlp_norm.weight)
        return native_layer(functions, linears, norms, self.mlp_norm.epsilon, self.heads)

    @cached_property
    def heads(self) -> Heads:
        """What the C++ attention needs to know."""
        query_norm, key_norm = self.query_norm, self.key_norm
        return Heads(
            count=self.config.heads,
            key_value=self.config.key_value_heads,
            dim=self.config.head_dim,
            window=self.window,
            query_norm=None if query_norm is None else query_norm.weight,
            key_norm=None if key_norm is None else key_norm.weight,
            epsilon=self.config.norm_epsilon,
        )

    def _attention(
        self, x: Tensor, step: Step, new: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        config = self.config
        rotated = config.heads + config.key_value_heads
        heads = self.qkv(x).view(step.batch, new.shape[2], -1, config.head_dim)
        query = heads[:, :, : config.heads]
        if self.query_norm is not None and self.key_norm is not None:
            query.copy_(self.query_norm(query))
            key = heads[:, :, config.heads : rotated]
            key.copy_(self.key_norm(key))
        rotate_(heads[:, :, :rotated], step.angles)
        new.copy_(heads[:, :, config.heads :].transpose(1, 2))
        mixed = self._mix(query.transpose(1, 2), step, keys, values)
        return self.output(mixed.transpose(1, 2).reshape(x.shape[0], -1))

    def _mix(self, query: Tensor, step: Step, keys: Tensor, values: Tensor) -> Tensor:
        count, length = query.shape[2], keys.shape[2]
        if count == 1 and self.window is not None and length > self.window:
            keys, values = keys[:, :, -self.window :], values[:, :, -self.window :]
        return scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=step.masks[self.window],
            is_causal=count == length > 1 and step.masks[self.window] is None,
            scale=self.config.attention_factor,
            enable_gqa=self.config.heads != self.config.key_value_heads,
        )


def masks(
    windows: tuple[int | None, ...], count: int, length: int, device: torch.device
) -> dict[int | None, Tensor | None]:
    """By window, which of `length` positions the last `count` ones see: bool [count, length].

    None where that is all of them (one new position) or all up to itself (all positions new).
    """
    found: dict[int | None, Tensor | None] = dict.fromkeys(windows)
    if count == 1:
        return found
    for window in found:
        if count == length and (window is None or length <= window):
            continue
        key = torch.arange(length, device=device)
        distance = torch.arange(length - count, length, device=device).unsqueeze(1) - key
        seen = distance >= 0
        found[window] = seen if window is None else seen & (distance < window)
    return found


def load_layer(
    reader: WeightReader, architecture: Architecture, config: DecoderConfig, index: int
) -> Layer:
    """Layer `index` of a checkpoint."""
    name = architecture.layer.format(index)

    def norm(module: str, size: int) -> Norm:
        weight = reader.tensor(f"{name}.{module}.weight", (size,))
        return Norm(weight=weight, epsilon=config.norm_epsilon)

    queries, keys = (n * config.head_dim for n in (config.heads, config.key_value_heads))
    qkv = _modules(name, architecture.queries_keys_values, (queries, keys, keys))
    gate_up = _modules(name, architecture.gate_up, (config.intermediate, config.intermediate))
    output, down = (
        [(f"{name}.{module}", config.hidden)] for module in ("self_attn.o_proj", "mlp.down_proj")
    )
    qk_norm = architecture.qk_norm
    return Layer(
        config=config,
        window=config.windows[index],
        attention_norm=norm("input_layernorm", config.hidden),
        qkv=load_linear(reader, qkv, config.hidden, config.qkv_bias),
        query_norm=norm("self_attn.q_norm", config.head_dim) if qk_norm else None,
        key_norm=norm("self_attn.k_norm", config.head_dim) if qk_norm else None,
        output=load_linear(reader, output, queries, config.output_bias),
        mlp_norm=norm("post_attention_layernorm", config.hidden),
        gate_up=load_linear(reader, gate_up, config.hidden, config.mlp_bias),
        down=load_linear(reader, down, config.intermediate, config.mlp_bias),
    )


def _modules(layer: str, names: tuple[str, ...], rows: tuple[int, ...]) -> list[tuple[str, int]]:
    """The modules that give so many rows each; one module gives all of them."""
    given = rows if len(names) == len(rows) else (sum(rows),)
    return [(f"{layer}.{name}", count) for name, count in zip(names, given, strict=True)]
