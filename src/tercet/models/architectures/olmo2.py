"""OLMo 2: norms behind attention and feed-forward network only, and over all queries or keys.

arXiv:2501.00656.
"""

from tercet.models.architecture import Architecture

ARCHITECTURE = Architecture(
    name="olmo2",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="projection",
    attention_norm=None,
    attention_output_norm="post_attention_layernorm",
    mlp_norm=None,
    mlp_output_norm="post_feedforward_layernorm",
    defaults={"rms_norm_eps": 1e-5, "vocab_size": 50304, "max_position_embeddings": 2048},
)
