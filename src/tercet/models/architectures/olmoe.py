"""OLMoE: a mixture of experts in every layer, norms over all queries or keys.

arXiv:2409.02060.
"""

from tercet.models.architecture import Architecture, Mixture

ARCHITECTURE = Architecture(
    name="olmoe",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="projection",
    mixture=Mixture(inner="intermediate_size"),
    defaults={
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "num_experts": 64,
        "num_experts_per_tok": 8,
    },
)
