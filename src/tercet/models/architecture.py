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
class StateSpace:
    """A Mamba-2 state space (arXiv:2405.21060) that reads what attention reads; both are added.

    Its sizes are config.json's keys that begin with `mamba_`.

    Attributes:
        module: of a layer.
        input_factor: key of the factor that its input is multiplied by.
        factors: key of the five that parts of the input projection are multiplied by: gate,
            states' input, B, C and time steps.
        output_factor: key of the factor that its output is multiplied by.
    """

    module: str
    input_factor: str
    factors: str
    output_factor: str


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
        down: module of a layer that ends its feed-forward network.
        mixture: layers of experts; None without.
        state_space: beside the attention of every layer; None without.
        embedding_factor: that the embedding's rows are multiplied by.
        attention_factor: that scores of attention are multiplied by; None for head_dim ** -0.5.
        key_factor: that scores are multiplied by, too.
        attention_input_factor: that the input of queries, keys and values is multiplied by.
        attention_output_factor: that what attention adds is multiplied by.
        mlp_factors: key of the two that the gate, before its activation, and what the feed-forward
            network adds are multiplied by.
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
    down: str = "mlp.down_proj"
    mixture: Mixture | None = None
    state_space: StateSpace | None = None
    embedding_factor: str | Power | None = None
    attention_factor: str | Power | None = None
    key_factor: str | Power | None = None
    attention_input_factor: str | Power | None = None
    attention_output_factor: str | Power | None = None
    mlp_factors: str | None = None
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
