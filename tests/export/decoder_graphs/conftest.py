from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

import tercet
from tercet.checkpoints.packed.layout import PackedModule, QuantizationConfig
from tercet.checkpoints.packed.read import PackedCheckpoint, open_packed
from tercet.models import Decoder

# 80 and 104 columns are no multiple of 32 or 64: the last groups are short
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 80,
    "intermediate_size": 104,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EMBEDDING, HEAD = "model.embed_tokens", "lm_head"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A tiny model, and formats by pattern."""

    config: type[PreTrainedConfig]
    options: dict[str, Any]
    formats: dict[str, str]


KINDS = {
    "llama": Kind(
        config=LlamaConfig,
        options={"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
        formats={
            EMBEDDING: "int8-g64",
            "*.0.self_attn.*": "int4-g32",
            "*.0.mlp.*": "nonary-g64",
            "*.1.self_attn.*": "ternary-g64",
            "*.1.mlp.*": "ternary-channel",
        },
    ),
    "mistral": Kind(
        config=MistralConfig,
        options={"tie_word_embeddings": False, "sliding_window": 5, "hidden_act": "gelu"},
        formats={
            EMBEDDING: "ternary-g32",
            HEAD: "int8",
            "*.0.*": "int4-g32-asym",
            "*.1.self_attn.*": "int2-g16-asym",
            "*.1.mlp.*": "int8-g64-asym",
        },
    ),
    "qwen2": Kind(
        config=Qwen2Config,
        options={"tie_word_embeddings": True},
        formats={
            EMBEDDING: "nonary-g48",
            "*.0.*": "nonary-g128-bfloat16",
            "*.1.self_attn.*": "ternary-tensor-float32",
            "*.1.mlp.down_proj": "int3-g32",
            "*.1.mlp.*": "int3-g16-asym",
        },
    ),
    "qwen3": Kind(
        config=Qwen3Config,
        options={"tie_word_embeddings": False, "head_dim": 24},
        formats={HEAD: "int4-g64", "*.0.*": "ternary-g64", "*.1.*": "int4-channel"},
    ),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A packed checkpoint, and the decoder that says what it answers."""

    checkpoint: PackedCheckpoint
    decoder: Decoder


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    made: dict[str, Case] = {}

    def find(name: str) -> Case:
        if name not in made:
            made[name] = _make(KINDS[name], tmp_path_factory.mktemp(name))
        return made[name]

    return find


def _make(kind: Kind, folder: Path) -> Case:
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(kind.config(**SIZES, **kind.options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    model.save_pretrained(folder / "source")
    rules = [
        {"match": match, "format": scheme, "algorithm": "rtn"}
        for match, scheme in kind.formats.items()
    ]
    plan = tercet.Plan.model_validate({"name": "test", "rules": rules})
    tercet.compress(folder / "source", plan, folder / "packed")
    checkpoint = open_packed(folder / "packed")
    return Case(checkpoint=checkpoint, decoder=Decoder.from_checkpoint(checkpoint))


@pytest.fixture(scope="session")
def case(request: pytest.FixtureRequest, cases: Callable[[str], Case]) -> Case:
    return cases(request.param)


@pytest.fixture
def with_module(cases: Callable[[str], Case]) -> Callable[..., PackedCheckpoint]:
    """A checkpoint whose first layer's q_proj is said to be of another format or transform."""

    def make(scheme: str = "int4-g32", **options: Any) -> PackedCheckpoint:
        checkpoint = cases("llama").checkpoint
        entry = PackedModule(format=scheme, shape=(80, 80), **options)
        modules = {**checkpoint.modules, "model.layers.0.self_attn.q_proj": entry}
        return replace(checkpoint, quantization=QuantizationConfig(modules=modules))

    return make


@pytest.fixture(scope="session")
def tokens() -> list[int]:
    return torch.randint(3, 96, (13,), generator=torch.Generator().manual_seed(3)).tolist()


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "float8": ({"scheme": "fp8_e4m3"}, "fp8_e4m3: .*use int8"),
    "float4": ({"scheme": "mxfp4"}, "fp4_e2m1: .*use int4 or nonary"),
    "sparse": ({"scheme": "ternary-g64-sparse_2_4"}, "sparse storage .*compress to ternary"),
    "blocks": ({"scheme": "int8-b16x16"}, "blocks of 16 rows: .*use groups"),
    "float zero points": ({"scheme": "int4-g64-hqq"}, "zero points in float16: .*use asym"),
    "scale dtype": ({"scheme": "int4-g64-e8m0"}, "scales in e8m0: .*takes float16"),
    "two levels": ({"scheme": "int4-g64-twolevel"}, "scales in two levels: .*takes float16"),
    "input scale": ({"input_scale": True}, "an input scale .*compress with rtn"),
    "rotation": ({"hadamard": 16}, "Hadamard rotation of size 16"),
    "activations": ({"activation": "int8_token"}, "activations quantized as int8_token"),
}


@pytest.fixture(params=list(REFUSALS))
def refused(
    request: pytest.FixtureRequest, with_module: Callable[..., PackedCheckpoint]
) -> tuple[PackedCheckpoint, str]:
    """A checkpoint that neither target can hold, and what the message says."""
    options, message = REFUSALS[request.param]
    return with_module(**options), message
