"""SmolLM3: as Llama, but every fourth layer does not rotate (NoPE, arXiv:2501.18795)."""

from tercet.models.architecture import Architecture
from tercet.models.rope_rule import some_layers
from tercet.models.sliding_window import layers_that_do_not_rotate

ARCHITECTURE = Architecture(
    name="smollm3",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
    window=layers_that_do_not_rotate(4),
    rope=some_layers(4),
    defaults={
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
        "rope_theta": 2_000_000.0,
    },
)
