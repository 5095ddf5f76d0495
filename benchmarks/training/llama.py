"""Models of published shapes, from random weights."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tercet.models import catalog

TINY = LlamaConfig(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    vocab_size=128,
    tie_word_embeddings=True,
)
_SAME = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
)


def shape(name: str) -> LlamaConfig:
    """A dense model of the catalog, as transformers' Llama."""
    entry = catalog.read(name)
    return LlamaConfig(**{field: getattr(entry, field) for field in _SAME})


def random_model(
    config: LlamaConfig, seed: int, device: torch.device | str, dtype: torch.dtype = torch.float32
) -> LlamaForCausalLM:
    """A model to train; equal seeds give equal weights."""
    torch.manual_seed(seed)
    kept = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return LlamaForCausalLM(config).train()
    finally:
        torch.set_default_dtype(kept)
