"""One layer of a decoder: attention, then the gated feed-forward network."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from tercet.models.architecture import Architecture
from tercet.models.decoder.attention import attend
from tercet.models.decoder.config import DecoderConfig
from tercet.models.decoder.kv_cache import Positions
from tercet.models.decoder.linear import Linear, load_linear
from tercet.models.decoder.mlp import Gated, Routed, load_mlp
from tercet.models.decoder.native_layer import NativeLayer, native_layer
from tercet.models.decoder.norm import Norm, SharedNorm, load_norm, normalize
from tercet.models.decoder.one_token import Heads, Native, native
from tercet.models.decoder.rope import Angles, rotate_
from tercet.models.decoder.state_space.mixer import StateSpaceMixer, load_state_space
from tercet.models.decoder.tensor_parallel.group import RankGroup
from tercet.models.decoder.weight_reader import WeightReader


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """What all layers share in one pass over new positions.

    Attributes:
        batch: B.
        angles: the rotations of the new positions, of each kind that layers have.
        masks: by window, which positions each new one sees: bool [T, length]; None for all up to
            itself.
        native: the C++ functions; None where they do not apply.
    """

    batch: int
    angles: tuple[Angles, ...]
    masks: dict[int | None, Tensor | None]
    native: Native | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """Weights of one layer; `config` gives the sizes, Architecture says what the norms are of.

    Queries and keys are normalized over all heads of a token where their norms are that wide, else
    each head for itself. `rope` is the layer's kind of rotation. What a state space gives is added
    to what attention does. Of a `group` each rank has a part of the products; what attention and
    network give is summed over them.
    """

    config: DecoderConfig
    window: int | None
    rope: int = 0
    attention_norm: Norm | None
    qkv: Linear
    query_norm: Norm | None
    key_norm: Norm | None
    output: Linear
    attention_output_norm: Norm | None = None
    mlp_norm: Norm | None
    mlp: Gated | Routed
    mlp_output_norm: Norm | None = None
    state_space: StateSpaceMixer | None = None
    group: RankGroup | None = None

    def forward_(self, hidden: Tensor, step: Step, positions: Positions) -> None:
        """Adds the layer to the residual stream hidden [B * T, hidden], in place.

        Args:
            hidden: the residual stream.
            step: what the layers share.
            positions: its keys and values; the new ones are written.
        """
        if step.native is not None and not isinstance(self.query_norm, SharedNorm):
            self._native_(step.native, hidden, step, positions)
            return
        factor = self.config.residual_factor
        x = normalize(self.attention_norm, hidden)
        mixed = self._mix(self._attention(self._scaled(x), step, positions), x, positions)
        hidden.add_(normalize(self.attention_output_norm, mixed), alpha=factor)
        made = self.sum_ranks(self.mlp(normalize(self.mlp_norm, hidden)))
        hidden.add_(normalize(self.mlp_output_norm, made), alpha=factor)

    def _native_(self, functions: Native, hidden: Tensor, step: Step, positions: Positions) -> None:
        by, factor = step.angles[self.rope], self.config.residual_factor
        count = hidden.shape[0] // step.batch
        if count == 1 and self.whole is not None:
            self.whole(hidden, by, positions)
            return
        normal = functions.normalize(hidden, self.attention_norm)
        qkv = self.qkv(self._scaled(normal))
        if count == 1:
            mixed = functions.attend(qkv, self.heads, by, positions)
        else:
            heads = qkv.view(step.batch, count, -1, self.config.head_dim)
            functions.store(heads, self.heads, by, positions)
            mixed = self._attend(heads[:, :, : self.config.heads], step, positions)
        mixed = self._mix(self.output(mixed), normal, positions)
        functions.add_(hidden, mixed, self.attention_output_norm, factor)
        x = functions.normalize(hidden, self.mlp_norm)
        if isinstance(self.mlp, Routed):
            made = self.mlp(x)
        else:
            made = self.mlp.finish(functions.gate(self.mlp.gate_and_up(x), self.config.activation))
        functions.add_(hidden, self.sum_ranks(made), self.mlp_output_norm, factor)

    @cached_property
    def whole(self) -> NativeLayer | None:
        """The layer as one C++ function; None where its linears are more than packed products."""
        functions = native()
        if functions is None or isinstance(self.mlp, Routed) or self.state_space is not None:
            return None
        if self.group is not None:
            return None
        return native_layer(
            functions,
            linears=(self.qkv, self.output, self.mlp.gate_up, self.mlp.down),
            norms=(
                *(self.attention_norm, self.attention_output_norm),
                *(self.mlp_norm, self.mlp_output_norm),
            ),
            heads=self.heads,
            activation=self.config.activation,
            factor=self.config.residual_factor,
        )

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
            scale=self.config.attention_factor,
            cap=self.config.score_cap,
        )

    def _scaled(self, x: Tensor) -> Tensor:
        """The input of queries, keys and values."""
        factor = self.config.attention_input_factor
        return x if factor == 1 else x * factor

    def sum_ranks(self, product: Tensor) -> Tensor:
        """What all ranks' parts of a product add up to, in its place."""
        return product if self.group is None else self.group.sum_(product)

    def _mix(self, mixed: Tensor, x: Tensor, positions: Positions) -> Tensor:
        """What attention gives, and what the state space makes of the same input x."""
        factor = self.config.attention_output_factor
        mixed = self.sum_ranks(mixed)
        mixed = mixed if factor == 1 else mixed.mul_(factor)
        if self.state_space is None or positions.state is None:
            return mixed
        return mixed.add_(self.state_space(x, positions.state))

    def _attention(self, x: Tensor, step: Step, positions: Positions) -> Tensor:
        config = self.config
        rotated = config.heads + config.key_value_heads
        heads = self.qkv(x).view(step.batch, positions.new.shape[2], -1, config.head_dim)
        query = heads[:, :, : config.heads]
        _normalize_heads_(query, self.query_norm)
        _normalize_heads_(heads[:, :, config.heads : rotated], self.key_norm)
        rotate_(heads[:, :, :rotated], step.angles[self.rope])
        positions.write(heads[:, :, config.heads :].transpose(1, 2))
        return self.output(self._attend(query, step, positions))

    def _attend(self, query: Tensor, step: Step, positions: Positions) -> Tensor:
        """Of queries [B, T, H, D], rotated: [B * T, H D]."""
        mask, (keys, values) = step.masks[self.window], positions.read(query.dtype)
        query = positions.meet(query.transpose(1, 2))
        mixed = attend(self.config, self.window, mask, query, keys, values)
        return mixed.transpose(1, 2).flatten(2).flatten(0, 1)


def _normalize_heads_(heads: Tensor, norm: Norm | None) -> None:
    """Normalizes heads [B, T, H, D] in place, each or all H together, as wide as the norm is."""
    if norm is None:
        return
    whole = norm.weight.shape[0] != heads.shape[3]
    found = norm(heads.flatten(2) if whole else heads)
    heads.copy_(found.view(heads.shape))


def load_layer(
    reader: WeightReader,
    architecture: Architecture,
    config: DecoderConfig,
    index: int,
    rope: int,
    group: RankGroup | None = None,
) -> Layer:
    """Layer `index` of a checkpoint, whose kind of rotation is `rope`.

    Of a group of ranks the reader and the config are this rank's own.
    """
    name = architecture.layer.format(index)

    def norm(module: str | None, size: int) -> Norm | None:
        if module is None:
            return None
        return load_norm(
            reader,
            f"{name}.{module}",
            size,
            epsilon=config.norm_epsilon,
            offset=architecture.norm_offset,
        )

    def head_norm(module: str, size: int) -> Norm | None:
        if kind is None:
            return None
        found = norm(f"self_attn.{module}", size if whole else config.head_dim)
        if found is None or group is None or not whole:
            return found
        return SharedNorm(weight=found.weight, epsilon=found.epsilon, group=group)

    kind = architecture.qk_norm
    whole = kind == "projection"
    queries, keys = (n * config.head_dim for n in (config.heads, config.key_value_heads))
    qkv = _modules(name, architecture.queries_keys_values, (queries, keys, keys))
    output = [(f"{name}.self_attn.o_proj", config.hidden)]
    return Layer(
        config=config,
        window=config.windows[index],
        rope=rope,
        attention_norm=norm(architecture.attention_norm, config.hidden),
        qkv=load_linear(reader, qkv, config.hidden, config.qkv_bias),
        query_norm=head_norm("q_norm", queries),
        key_norm=head_norm("k_norm", keys),
        output=load_linear(reader, output, queries, config.output_bias),
        attention_output_norm=norm(architecture.attention_output_norm, config.hidden),
        mlp_norm=norm(architecture.mlp_norm, config.hidden),
        mlp=load_mlp(reader, architecture, config, index),
        mlp_output_norm=norm(architecture.mlp_output_norm, config.hidden),
        state_space=load_state_space(reader, architecture, config, index),
        group=group,
    )


def _modules(layer: str, names: tuple[str, ...], rows: tuple[int, ...]) -> list[tuple[str, int]]:
    """The modules that give so many rows each; one module gives all of them."""
    given = rows if len(names) == len(rows) else (sum(rows),)
    return [(f"{layer}.{name}", count) for name, count in zip(names, given, strict=True)]
