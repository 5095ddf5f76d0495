"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values (arXiv:2407.10671)."""

from tercet.models.architecture import Architecture
from tercet.models.sliding_window import upper_layers

ARCHITECTURE = Architecture(
    name="qwen2",
    qkv_bias=True,
    window=upper_layers,
    defaults={
        "sliding_window": 4096,
        "max_window_layers": 28,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
    },
)
