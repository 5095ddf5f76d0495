"""Gemma 2: norms around attention and feed-forward network, capped scores, every other layer local.

arXiv:2408.00118. Norm weights are stored less one, and the embedding is scaled by its width.
"""

from tercet.models.architecture import Architecture, Power
from tercet.models.sliding_window import by_layer_type

ARCHITECTURE = Architecture(
    name="gemma2",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    attention_output_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_output_norm="post_feedforward_layernorm",
    norm_offset=1.0,
    activation="hidden_activation",
    embedding_factor=Power(key="hidden_size", exponent=0.5),
    attention_factor=Power(key="query_pre_attn_scalar", exponent=-0.5),
    score_cap="attn_logit_softcapping",
    logits_cap="final_logit_softcapping",
    window=by_layer_type(2),
    defaults={
        "vocab_size": 256000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
)
