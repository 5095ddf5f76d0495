"""What sets one decoder architecture apart from the next, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tercet.models.sliding_window import WindowRule, no_window


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A pre-norm decoder: RMSNorm, rotary grouped-query attention, gated feed-forward network.

    A bias is `True` (always there), `False` (never) or the config.json key that says so.

    Attributes:
        name: `model_type` in config.json.
        qkv_bias: whether the query, key and value projections have biases.
        output_bias: whether the attention's output projection has one.
        mlp_bias: whether the three projections of the feed-forward network have them.
        qk_norm: RMSNorm over each query and key head before the rotation.
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
    window: WindowRule = no_window
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    embedding: str = "model.embed_tokens"
    layer: str = "model.layers.{}"
    norm: str = "model.norm"
    head: str = "lm_head"
