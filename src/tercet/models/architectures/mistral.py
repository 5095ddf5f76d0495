"""Mistral 7B: Llama with a sliding window in every layer (arXiv:2310.06825)."""

from tercet.models.architecture import Architecture
from tercet.models.sliding_window import every_layer

ARCHITECTURE = Architecture(
    name="mistral",
    window=every_layer,
    defaults={
        "sliding_window": 4096,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    },
)
