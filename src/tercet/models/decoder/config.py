"""The shape of a decoder, read from config.json and checked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from tercet.errors import CheckpointError, UnsupportedError, unknown_name
from tercet.models.architecture import Architecture, Power
from tercet.models.special_floats import decode_floats

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


@dataclass(frozen=True, kw_only=True)
class MixtureConfig:
    """Sizes of a mixture of experts.

    Attributes:
        experts: how many.
        per_token: how many of them see a token.
        inner: width of each.
        shared: width of the expert that sees every token; None without one.
        normalized: whether the weights of a token's experts are made to add up to 1.
        layers: whether each layer has experts.
    """

    experts: int
    per_token: int
    inner: int
    shared: int | None
    normalized: bool
    layers: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class StateSpaceConfig:
    """Sizes and factors of a Mamba-2 state space.

    Attributes:
        heads: H.
        head_dim: P, numbers of a head.
        groups: G, a divisor of H: heads of a group share B and C.
        state: N, numbers that each of a head's P is kept as.
        width: of the convolution over positions.
        bias: whether the input projection has one.
        convolution_bias: whether the convolution has one.
        output_bias: whether the output projection has one.
        normalized: whether there is an RMSNorm of each group of what the heads give.
        norm_first: whether it comes before the gate.
        input_factor: of the input.
        factors: of the input projection's parts: gate, states' input, B, C, time steps.
        output_factor: of the output.
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    width: int
    bias: bool
    convolution_bias: bool
    output_bias: bool
    normalized: bool
    norm_first: bool
    input_factor: float
    factors: tuple[float, ...]
    output_factor: float

    @property
    def inner(self) -> int:
        """I = H P, what all heads give."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """I + 2 G N, what the convolution runs over: the states' input, B and C."""
        return self.inner + 2 * self.groups * self.state

    @property
    def rows(self) -> int:
        """Of the input projection: gate, channels and a time step a head."""
        return self.inner + self.channels + self.heads


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Sizes of a decoder.

    Attributes:
        vocabulary: V, rows of the embedding.
        hidden: width of the residual stream.
        layers: number of layers.
        heads: query heads H.
        key_value_heads: key and value heads, a divisor of H.
        head_dim: D.
        intermediate: width of the feed-forward network.
        norm_epsilon: epsilon of every RMSNorm.
        activation: a key of ACTIVATIONS.
        tied: whether the head is the embedding.
        positions: the longest sequence that the model was made for.
        qkv_bias: see Architecture, here resolved.
        output_bias: see Architecture, here resolved.
        mlp_bias: see Architecture, here resolved.
        windows: positions that each layer sees, None for all.
        mixture: of the layers that have experts; None without.
        state_space: beside the attention of every layer; None without.
        embedding_factor: see Architecture, here resolved; as all that follow.
        attention_factor: of scores, the keys' among it.
        attention_input_factor: of the input of queries, keys and values.
        attention_output_factor: of what attention gives.
        gate_factor: of the gate, before its activation.
        mlp_output_factor: of what the feed-forward network gives.
        residual_factor: of what a layer adds.
        logits_divisor: of the head's scores.
        score_cap: of attention's scores, None for none.
        logits_cap: of the head's scores, likewise.
    """

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    intermediate: int
    norm_epsilon: float
    activation: str
    tied: bool
    positions: int
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    windows: tuple[int | None, ...]
    mixture: MixtureConfig | None
    state_space: StateSpaceConfig | None
    embedding_factor: float
    attention_factor: float
    attention_input_factor: float
    attention_output_factor: float
    gate_factor: float
    mlp_output_factor: float
    residual_factor: float
    logits_divisor: float
    score_cap: float | None
    logits_cap: float | None

    @property
    def scaled(self) -> bool:
        """Whether there is a factor that Llama has not."""
        usual = (1.0, self.head_dim**-0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
        return usual != (
            self.embedding_factor,
            self.attention_factor,
            self.attention_input_factor,
            self.attention_output_factor,
            self.gate_factor,
            self.mlp_output_factor,
            self.residual_factor,
            self.logits_divisor,
        )

    def logits(self, scores: Tensor) -> Tensor:
        """What the head's scores stand for."""
        if self.logits_divisor != 1:
            scores = scores / self.logits_divisor
        return scores if self.logits_cap is None else cap(scores, self.logits_cap)

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            known = unknown_name("activation", self.activation, ACTIVATIONS)
            raise UnsupportedError(f"{known}; load such a model with transformers")
        if self.heads % self.key_value_heads:
            raise CheckpointError(
                f"config.json: num_attention_heads {self.heads} is no multiple of "
                f"num_key_value_heads {self.key_value_heads}"
            )


def cap(scores: Tensor, limit: float) -> Tensor:
    """limit tanh(scores / limit): little changed where small, never beyond the limit."""
    return limit * torch.tanh(scores / limit)


def read_config(architecture: Architecture, config: Mapping[str, object]) -> DecoderConfig:
    """config.json as a DecoderConfig; CheckpointError names the key that is missing or wrong."""
    given: dict[str, object] = decode_floats({**architecture.defaults, **config})
    if given.get("use_bidirectional_attention"):
        raise UnsupportedError(
            "config.json: use_bidirectional_attention: the decoder attends to earlier positions "
            "only; load such a model with transformers"
        )
    if given.get("clip_qkv") is not None:
        raise UnsupportedError(
            "config.json: clip_qkv: the decoder does not clip queries, keys and values; load such "
            "a model with transformers"
        )
    layers, heads = _size(given, "num_hidden_layers"), _size(given, "num_attention_heads")
    hidden = _size(given, "hidden_size")
    head_dim = _size(given, "head_dim", hidden // heads)
    gate_factor, mlp_output_factor = _factors(given, architecture.mlp_factors, 2)
    return DecoderConfig(
        vocabulary=_size(given, "vocab_size"),
        hidden=hidden,
        layers=layers,
        heads=heads,
        key_value_heads=_size(given, "num_key_value_heads", heads),
        head_dim=head_dim,
        intermediate=_size(given, "intermediate_size"),
        norm_epsilon=_epsilon(given),
        activation=_activation(given, architecture),
        tied=bool(given.get("tie_word_embeddings", False)),
        positions=_size(given, "max_position_embeddings", 2048),
        qkv_bias=_flag(given, architecture.qkv_bias),
        output_bias=_flag(given, architecture.output_bias),
        mlp_bias=_flag(given, architecture.mlp_bias),
        windows=tuple(architecture.window(given, layer) for layer in range(layers)),
        mixture=_read_mixture(architecture, given, layers),
        state_space=_read_state_space(architecture, given, hidden),
        embedding_factor=_factor(given, architecture.embedding_factor, 1.0),
        attention_factor=_factor(given, architecture.attention_factor, head_dim**-0.5)
        * _factor(given, architecture.key_factor, 1.0),
        attention_input_factor=_factor(given, architecture.attention_input_factor, 1.0),
        attention_output_factor=_factor(given, architecture.attention_output_factor, 1.0),
        gate_factor=gate_factor,
        mlp_output_factor=mlp_output_factor,
        residual_factor=_factor(given, architecture.residual_factor, 1.0),
        logits_divisor=_factor(given, architecture.logits_divisor, 1.0),
        score_cap=_cap(given, architecture.score_cap),
        logits_cap=_cap(given, architecture.logits_cap),
    )


# other names that transformers has for the same function
_ALSO = {"swish": "silu", "gelu_new": "gelu_pytorch_tanh"}


def _activation(config: Mapping[str, object], architecture: Architecture) -> str:
    name = str(config.get(architecture.activation, "silu"))
    return _ALSO.get(name, name)


def _read_mixture(
    architecture: Architecture, config: Mapping[str, object], layers: int
) -> MixtureConfig | None:
    keys = architecture.mixture
    if keys is None:
        return None
    # transformers writes the second name, and knows both
    counted = "num_local_experts" if "num_local_experts" in config else "num_experts"
    experts = _size(config, counted)
    per_token = _size(config, "num_experts_per_tok")
    if per_token > experts:
        raise CheckpointError(
            f"config.json: num_experts_per_tok {per_token} is more than the {experts} experts"
        )
    step = _size(config, "decoder_sparse_step", 1)
    listed: object = config.get("mlp_only_layers") or []
    if not isinstance(listed, list):
        raise CheckpointError(f"config.json: mlp_only_layers {listed!r}: must be a list of layers")
    dense = cast(list[object], listed)
    return MixtureConfig(
        experts=experts,
        per_token=per_token,
        inner=_size(config, keys.inner),
        shared=None if keys.shared is None else _size(config, keys.shared),
        normalized=bool(config.get("norm_topk_prob", False)),
        layers=tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers)),
    )


def _read_state_space(
    architecture: Architecture, config: Mapping[str, object], hidden: int
) -> StateSpaceConfig | None:
    keys = architecture.state_space
    if keys is None:
        return None
    if (limit := config.get("time_step_limit")) not in (None, [0.0, inf]):
        raise UnsupportedError(
            f"config.json: time_step_limit {limit!r}: the decoder bounds no time steps; load such "
            f"a model with transformers"
        )
    heads, groups = _size(config, "mamba_n_heads"), _size(config, "mamba_n_groups")
    inner = config.get("mamba_d_ssm")
    inner = (
        _size(config, "mamba_expand") * hidden if inner is None else _size(config, "mamba_d_ssm")
    )
    given = config.get("mamba_d_head")
    head_dim = inner // heads if given == "auto" else _size(config, "mamba_d_head")
    if head_dim * heads != inner or heads % groups:
        raise CheckpointError(
            f"config.json: mamba_n_heads {heads}: must be a multiple of mamba_n_groups {groups}, "
            f"and mamba_d_ssm {inner} that many times mamba_d_head {given!r}"
        )
    return StateSpaceConfig(
        heads=heads,
        head_dim=head_dim,
        groups=groups,
        state=_size(config, "mamba_d_state"),
        width=_size(config, "mamba_d_conv"),
        bias=_flag(config, "mamba_proj_bias"),
        convolution_bias=_flag(config, "mamba_conv_bias"),
        output_bias=_flag(config, "projectors_bias"),
        normalized=_flag(config, "mamba_rms_norm"),
        norm_first=_flag(config, "mamba_norm_before_gate"),
        input_factor=_factor(config, keys.input_factor, 1.0),
        factors=_factors(config, keys.factors, 5),
        output_factor=_factor(config, keys.output_factor, 1.0),
    )


def _size(config: Mapping[str, object], key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or value < 1:
        raise CheckpointError(f"config.json: {key} {value!r}: must be a whole number above 0")
    return value


def _epsilon(config: Mapping[str, object]) -> float:
    value = config.get("rms_norm_eps", 1e-6)
    if not isinstance(value, int | float) or value < 0:
        raise CheckpointError(f"config.json: rms_norm_eps {value!r}: must be a number from 0 up")
    return float(value)


def _factor(config: Mapping[str, object], source: str | Power | None, usual: float) -> float:
    if source is None:
        return usual
    if isinstance(source, Power):
        return _positive(config, source.key) ** source.exponent
    return _positive(config, source)


def _factors(config: Mapping[str, object], key: str | None, count: int) -> tuple[float, ...]:
    """So many factors of one key; all 1 where there is no key, or a null."""
    value = None if key is None else config.get(key)
    if value is None:
        return (1.0,) * count
    if not isinstance(value, list) or len(cast(list[object], value)) != count:
        raise CheckpointError(f"config.json: {key} {value!r}: must be a list of {count} numbers")
    return tuple(_positive({str(key): one}, str(key)) for one in cast(list[object], value))


def _cap(config: Mapping[str, object], key: str | None) -> float | None:
    return None if key is None or config.get(key) is None else _positive(config, key)


def _positive(config: Mapping[str, object], key: str) -> float:
    value = config.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < inf:
        raise CheckpointError(f"config.json: {key} {value!r}: must be a number above 0")
    return float(value)


def _flag(config: Mapping[str, object], flag: bool | str) -> bool:
    return bool(config.get(flag, False)) if isinstance(flag, str) else flag
