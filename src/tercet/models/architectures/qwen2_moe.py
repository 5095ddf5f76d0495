"""Qwen1.5-MoE and Qwen2, mixtures of experts: as Qwen2, with an expert for every token.

arXiv:2407.10671.
"""

from tercet.models.architecture import Architecture, Mixture
from tercet.models.sliding_window import every_other_layer

ARCHITECTURE = Architecture(
    name="qwen2_moe",
    qkv_bias="qkv_bias",
    window=every_other_layer,
    mixture=Mixture(inner="moe_intermediate_size", shared="shared_expert_intermediate_size"),
    defaults={
        "qkv_bias": True,
        "num_key_value_heads": 16,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    },
)
