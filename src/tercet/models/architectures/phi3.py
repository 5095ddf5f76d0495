"""Phi-3 and Phi-4: Llama with queries, keys and values, and gate and up, as one matrix each.

arXiv:2404.14219, arXiv:2412.08905.
"""

from tercet.models.architecture import Architecture
from tercet.models.sliding_window import every_layer

ARCHITECTURE = Architecture(
    name="phi3",
    queries_keys_values=("self_attn.qkv_proj",),
    gate_up=("mlp.gate_up_proj",),
    window=every_layer,
    partial_rotary=True,
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
)
