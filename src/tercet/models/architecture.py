"""What sets one decoder architecture apart from the next, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tercet.models.sliding_window import WindowRule, no_window


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A pre-norm decoder: RMSNorm, rotary grouped-query attention, gated feed-forward network.

    A bias is `True` (always there), `False` (never) or the config.json key that says so. A factor
    is the config.json key that has it, or None for a model without.

    Attributes:
        name: `model_type` in config.json.
        qkv_bias: whether the query, key and value projections have biases.
        output_bias: whether the attention's output projection has one.
        mlp_bias: whether the three projections of the feed-forward network have them.
        qk_norm: RMSNorm over each query and key head before the rotation.
        queries_keys_values: modules of a layer that give them: three, or one for all.
        gate_up: modules of a layer that give the gate and what it gates: two, or one for both.
        embedding_factor: that the embedding's rows are multiplied by.
        attention_factor: that scores of attention are multiplied by; None for head_dim ** -0.5.
        residual_factor: that what a layer adds to the residual stream is multiplied by.
        logits_divisor: that the head's scores are divided by.
        window: how many positions back each layer sees.
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
    qk_norm: bool = False
    queries_keys_values: tuple[str, ...] = (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
    )
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    embedding_factor: str | None = None
    attention_factor: str | None = None
    residual_factor: str | None = None
    logits_divisor: str | None = None
    window: WindowRule = no_window
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    embedding: str = "model.embed_tokens"
    layer: str = "model.layers.{}"
    norm: str = "model.norm"
    head: str = "lm_head"
