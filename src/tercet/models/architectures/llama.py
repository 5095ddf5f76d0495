"""Llama 1 to 3 and what is built like it: SmolLM, TinyLlama, Yi (arXiv:2302.13971)."""

from tercet.models.architecture import Architecture

ARCHITECTURE = Architecture(
    name="llama",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
)
