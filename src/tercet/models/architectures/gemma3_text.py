"""Gemma 3, text alone: as Gemma 2, with norms of query and key heads in the place of capped scores.

arXiv:2503.19786. Five of six layers are local, and rotate by a base of their own.
"""

from tercet.models.architecture import Architecture, Power
from tercet.models.rope_rule import by_layer_type as rope_by_layer_type
from tercet.models.sliding_window import by_layer_type

ARCHITECTURE = Architecture(
    name="gemma3_text",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="head",
    attention_output_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_output_norm="post_feedforward_layernorm",
    norm_offset=1.0,
    activation="hidden_activation",
    embedding_factor=Power(key="hidden_size", exponent=0.5),
    attention_factor=Power(key="query_pre_attn_scalar", exponent=-0.5),
    logits_cap="final_logit_softcapping",
    window=by_layer_type(6, "sliding_window_pattern"),
    rope=rope_by_layer_type(6, "sliding_window_pattern", local=10_000.0, far=1_000_000.0),
    defaults={
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "final_logit_softcapping": None,
    },
)
