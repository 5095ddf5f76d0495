"""What sets one decoder architecture apart from the next, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tercet.models.rope_rule import RopeRule, one_rope
from tercet.models.sliding_window import WindowRule, no_window


@dataclass(frozen=True, kw_only=True)
class Power:
    """A factor that config.json holds another power of: the value of `key` to the `exponent`."""

    key: str
    exponent: float


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Keys of config.json about layers whose feed-forward network is a mixture of experts.

    How many experts there are is `num_experts` or `num_local_experts`, how many of them see a token
    `num_experts_per_tok`, whether their weights are made to add up to 1 `norm_topk_prob`. Layers in
    `mlp_only_layers` have no experts, of the others each `decoder_sparse_step`-th, or every one.

    Attributes:
        inner: the width of an expert.
        shared: the width of the expert that sees every token, weighed by a gate of its own; None
            without one.
    """

    inner: str
    shared: str | None = None


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A decoder: RMSNorm, rotary grouped-query attention, gated feed-forward network.

    A bias is `True` (always there), `False` (never) or the config.json key that says so. A factor
    is the config.json key that has it, a Power of one, or None for a model without. A cap is the
    key of the c in c tanh(s / c), which keeps s within -c and c; a null there means no cap.

    Attributes:
        name: `model_type` in config.json.
        qkv_bias: whether the query, key and value projections have biases.
        output_bias: whether the attention's output projection has one.
        mlp_bias: whether the three projections of the feed-forward network have them.
        qk_norm: RMSNorm of queries and keys before the rotation: over each "head", or over the
            whole "projection" of all heads; None without.
        attention_norm: module of a layer that normalizes the attention's input; None without.
        attention_output_norm: the one that normalizes what attention adds; None without.
        mlp_norm: like attention_norm, of the feed-forward network; as the next.
        mlp_output_norm: like attention_output_norm.
        norm_offset: what a norm multiplies by is its stored weight and this.
        activation: the config.json key of the gate's activation.
        queries_keys_values: modules of a layer that give them: three, or one for all.
        gate_up: modules of a layer that give the gate and what it gates: two, or one for both.
        mixture: layers of experts; None without.
        embedding_factor: that the embedding's rows are multiplied by.
        attention_factor: that scores of attention are multiplied by; None for head_dim ** -0.5.
        residual_factor: that what a layer adds to the residual stream is multiplied by.
        logits_divisor: that the head's scores are divided by.
        score_cap: of attention's scores, before those out of sight are left out.
        logits_cap: of the head's scores.
        window: how many positions back each layer sees.
        rope: by which part of config.json each layer rotates.
        partial_rotary: whether a `partial_rotary_factor` in config.json counts: the others'
            classes in transformers rotate whole heads whatever it says.
        defaults: what transformers assumes for keys that config.json leaves out.
        embedding: module name of the token embedding.
        layer: module name of layer i, to be formatted with i.
        norm: module name of the last norm.
        head: module name of the output projection, where it is not tied to the embedding.
    """

    name: str
    qkv_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: Literal["head", "projection"] | None = None
    attention_norm: str | None = "input_layernorm"
    attention_output_norm: str | None = None
    mlp_norm: str | None = "post_attention_layernorm"
    mlp_output_norm: str | None = None
    norm_offset: float = 0.0
    activation: str = "hidden_act"
    queries_keys_values: tuple[str, ...] = (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
    )
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    mixture: Mixture | None = None
    embedding_factor: str | Power | None = None
    attention_factor: str | Power | None = None
    residual_factor: str | Power | None = None
    logits_divisor: str | Power | None = None
    score_cap: str | None = None
    logits_cap: str | None = None
    window: WindowRule = no_window
    rope: RopeRule = one_rope
    partial_rotary: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    embedding: str = "model.embed_tokens"
    layer: str = "model.layers.{}"
    norm: str = "model.norm"
    head: str = "lm_head"
