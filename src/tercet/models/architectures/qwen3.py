"""Qwen3, dense: norms on each query and key head instead of biases (arXiv:2505.09388)."""

from tercet.models.architecture import Architecture
from tercet.models.sliding_window import upper_layers

ARCHITECTURE = Architecture(
    name="qwen3",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="head",
    window=upper_layers,
    defaults={
        "head_dim": 128,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
    },
)
