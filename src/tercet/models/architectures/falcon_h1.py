"""Falcon-H1: a Mamba-2 state space beside the attention of each layer, and factors everywhere.

arXiv:2507.22448.
"""

from math import inf

from tercet.models.architecture import Architecture, Power, StateSpace

ARCHITECTURE = Architecture(
    name="falcon_h1",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
    mlp_norm="pre_ff_layernorm",
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    state_space=StateSpace(
        module="mamba",
        input_factor="ssm_in_multiplier",
        factors="ssm_multipliers",
        output_factor="ssm_out_multiplier",
    ),
    embedding_factor="embedding_multiplier",
    attention_input_factor="attention_in_multiplier",
    key_factor="key_multiplier",
    attention_output_factor="attention_out_multiplier",
    mlp_factors="mlp_multipliers",
    logits_divisor=Power(key="lm_head_multiplier", exponent=-1.0),
    norm="model.final_layernorm",
    defaults={
        "vocab_size": 128000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "embedding_multiplier": 1.0,
        "attention_in_multiplier": 1.0,
        "key_multiplier": 1.0,
        "attention_out_multiplier": 1.0,
        "mlp_multipliers": [1.0, 1.0],
        "lm_head_multiplier": 1.0,
        "ssm_in_multiplier": 1.0,
        "ssm_multipliers": [1.0] * 5,
        "ssm_out_multiplier": 1.0,
        "mamba_d_ssm": 1024,
        "mamba_n_heads": 128,
        "mamba_d_head": "auto",
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "mamba_norm_before_gate": True,
        "mamba_rms_norm": False,
        "time_step_limit": [0.0, inf],
        "projectors_bias": False,
    },
)
