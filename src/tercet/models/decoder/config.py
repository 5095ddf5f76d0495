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
        embedding_factor: see Architecture, here resolved; as all that follow.
        attention_factor: of scores.
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
    embedding_factor: float
    attention_factor: float
    residual_factor: float
    logits_divisor: float
    score_cap: float | None
    logits_cap: float | None

    @property
    def scaled(self) -> bool:
        """Whether there is a factor that Llama has not."""
        usual = (1.0, self.head_dim**-0.5, 1.0, 1.0)
        return usual != (
            self.embedding_factor,
            self.attention_factor,
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
            raise UnsupportedError(unknown_name("activation", self.activation, ACTIVATIONS))
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
    given = {**architecture.defaults, **config}
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
    return DecoderConfig(
        vocabulary=_size(given, "vocab_size"),
        hidden=hidden,
        layers=layers,
        heads=heads,
        key_value_heads=_size(given, "num_key_value_heads", heads),
        head_dim=head_dim,
        intermediate=_size(given, "intermediate_size"),
        norm_epsilon=_epsilon(given),
        activation=str(given.get(architecture.activation, "silu")),
        tied=bool(given.get("tie_word_embeddings", False)),
        positions=_size(given, "max_position_embeddings", 2048),
        qkv_bias=_flag(given, architecture.qkv_bias),
        output_bias=_flag(given, architecture.output_bias),
        mlp_bias=_flag(given, architecture.mlp_bias),
        windows=tuple(architecture.window(given, layer) for layer in range(layers)),
        mixture=_read_mixture(architecture, given, layers),
        embedding_factor=_factor(given, architecture.embedding_factor, 1.0),
        attention_factor=_factor(given, architecture.attention_factor, head_dim**-0.5),
        residual_factor=_factor(given, architecture.residual_factor, 1.0),
        logits_divisor=_factor(given, architecture.logits_divisor, 1.0),
        score_cap=_cap(given, architecture.score_cap),
        logits_cap=_cap(given, architecture.logits_cap),
    )


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


def _cap(config: Mapping[str, object], key: str | None) -> float | None:
    return None if key is None or config.get(key) is None else _positive(config, key)


def _positive(config: Mapping[str, object], key: str) -> float:
    value = config.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < inf:
        raise CheckpointError(f"config.json: {key} {value!r}: must be a number above 0")
    return float(value)


def _flag(config: Mapping[str, object], flag: bool | str) -> bool:
    return bool(config.get(flag, False)) if isinstance(flag, str) else flag
