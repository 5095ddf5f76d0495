"""Qwen3, mixtures of experts: as Qwen3 (arXiv:2505.09388)."""

from tercet.models.architecture import Architecture, Mixture
from tercet.models.sliding_window import if_switched_on

ARCHITECTURE = Architecture(
    name="qwen3_moe",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="head",
    window=if_switched_on,
    mixture=Mixture(inner="moe_intermediate_size"),
    defaults={
        "sliding_window": 4096,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
)
