"""Granite 3, dense: Llama with factors on embedding, scores, residuals and logits.

https://huggingface.co/docs/transformers/model_doc/granite
"""

from tercet.models.architecture import Architecture

ARCHITECTURE = Architecture(
    name="granite",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
    embedding_factor="embedding_multiplier",
    attention_factor="attention_multiplier",
    residual_factor="residual_multiplier",
    logits_divisor="logits_scaling",
    defaults={
        "embedding_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
)
