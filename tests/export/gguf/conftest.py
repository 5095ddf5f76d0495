"""A tiny packed checkpoint of any kind, and llama.cpp."""

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import tercet
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.export.gguf.llama_cpp import library_path

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

WITH_HEAD_DIM = ("llama", "mistral", "gemma2", "gemma3_text", "qwen3", "qwen3_moe")
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}

# local layers and one that is not, prompts beyond the window, caps that bite
OWN: dict[str, dict[str, Any]] = {
    # the last layer does not rotate
    "smollm3": {"num_hidden_layers": 4},
    "mistral": {"sliding_window": None},
    "qwen2_moe": {**EXPERTS, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 192},
    "qwen3_moe": {**EXPERTS, "moe_intermediate_size": 128, "norm_topk_prob": True},
    "olmoe": {**EXPERTS, "num_key_value_heads": 4},
    "granite": {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.5,
        "logits_scaling": 4.0,
    },
    "gemma2": {
        "query_pre_attn_scalar": 64,
        "sliding_window": 8,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {
        "query_pre_attn_scalar": 64,
        "sliding_window": 8,
        "num_hidden_layers": 6,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 8.0},
        },
    },
}


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., PackedCheckpoint]:
    """A packed checkpoint of a tiny random model: layers in `layers`, embedding in `embedding`."""

    def build(
        kind: str = "llama",
        layers: str = "nonary-g64",
        embedding: str | None = "int8-g32",
        head: str | None = None,
        tied: bool = True,
        algorithm: str = "rtn",
        dtype: torch.dtype = torch.float32,
        **more: Any,
    ) -> PackedCheckpoint:
        torch.manual_seed(7)
        heads = {"head_dim": 64} if kind in WITH_HEAD_DIM else {}
        options = {**SIZES, **heads, **OWN.get(kind, {}), **more, "tie_word_embeddings": tied}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options)).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name or name.endswith("bias"):
                    parameter.copy_(torch.rand_like(parameter) + 0.5)
                else:
                    # a router's scores lie far apart: no rounding makes it take other experts
                    parameter.normal_(std=0.3 if name.endswith("mlp.gate.weight") else 0.06)
        folder = tmp_path_factory.mktemp(kind)
        model.to(dtype).save_pretrained(folder / "source")
        rules = [{"match": "*.layers.*", "format": layers, "algorithm": algorithm}]
        if embedding is not None:
            rules.append({"match": "model.embed_tokens", "format": embedding, "algorithm": "rtn"})
        if head is not None:
            rules.append({"match": "lm_head", "format": head, "algorithm": "rtn"})
        plan = tercet.Plan.model_validate({"name": "test", "rules": rules})
        tokens = torch.randint(3, 96, (4, 16), generator=torch.Generator().manual_seed(5))
        tercet.compress(folder / "source", plan, folder / "packed", calibration=tokens)
        return tercet.open_packed(folder / "packed")

    return build


@pytest.fixture(scope="session")
def client() -> Any:
    """The shared library of llama.cpp."""
    module = pytest.importorskip("xllamacpp", reason="pip install 'tercet[gguf]'")
    return ctypes.CDLL(str(library_path(module.__file__)))
