"""Decoders of every kind that are small enough to train in a test, and plans to pack them by."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.llama import LlamaConfig
from transformers.models.qwen2_moe import Qwen2MoeConfig
from transformers.models.qwen3 import Qwen3Config

from tercet.compress.plan import Plan

SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 64,
}
MODELS: dict[str, Any] = {
    "llama": LlamaConfig(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE),
    "gemma3": Gemma3TextConfig(**SHAPE, query_pre_attn_scalar=16, sliding_window=8),
    "qwen2_moe": Qwen2MoeConfig(
        **{name: value for name, value in SHAPE.items() if name != "head_dim"},
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
}
SCHEMES = [
    "ternary-g16",
    "nonary-g16-bfloat16",
    "int2-g16-asym",
    "int2-g16-hqq",
    "int3-channel",
    "int4-tensor",
    "int4-b8x16",
    "int3-g16-e4m3-twolevel",
    "int4-channel-float32",
]


def save(kind: str, folder: Path, dtype: torch.dtype = torch.float32, layers: int = 2) -> Path:
    torch.manual_seed(5)
    # saving writes the dtype into it, and the next model would be made in that
    config = deepcopy(MODELS[kind])
    config.num_hidden_layers = layers
    AutoModelForCausalLM.from_config(config).eval().to(dtype).save_pretrained(folder)
    return folder


def plan(form: str, blockwise: dict[str, Any] | None, **rule: Any) -> Plan:
    rules = [
        {"match": "*embed_tokens", "format": "int8-g16", "algorithm": "rtn"},
        {"match": "*layers*", "format": form, **rule},
    ]
    return Plan.model_validate({"name": "tried", "blockwise": blockwise, "rules": rules})


def tokens(sequences: int = 64, seed: int = 0) -> Tensor:
    return torch.randint(3, 64, (sequences, 16), generator=torch.Generator().manual_seed(seed))


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
