"""A tiny model and tokens that it can learn from, for all tests of training."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 64


def llama(**changes: object) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "initializer_range": 0.1,
    }
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **changes}))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    llama().save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def ids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens with an order: each is mostly the one before it plus 7."""
    generator = torch.Generator().manual_seed(1)
    jumps = torch.where(torch.rand(2048, generator=generator) < 0.9, 7, 20)
    path = tmp_path_factory.mktemp("data") / "ids.safetensors"
    save_file({"input_ids": jumps.cumsum(0)[None] % VOCABULARY}, path)
    return path
