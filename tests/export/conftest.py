from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.llama import LlamaConfig
from transformers.models.olmo2 import Olmo2Config
from transformers.models.qwen2 import Qwen2Config

import tercet
from tercet.compress.ptq.hadamard import rotate
from tercet.compress.ptq.smoothquant import quantize_activation
from tercet.errors import UnsupportedError
from tercet.export.target import Target

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GEMMA = {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 24}
KINDS: dict[str, Callable[..., Any]] = {
    "gemma2": partial(Gemma2Config, **GEMMA, attn_logit_softcapping=1.5),
    "gemma3_text": partial(
        Gemma3TextConfig, **GEMMA, layer_types=["sliding_attention", "full_attention"]
    ),
    "llama": LlamaConfig,
    "olmo2": Olmo2Config,
    "qwen2": Qwen2Config,
}
EMBEDDING, HEAD = "model.embed_tokens", "lm_head"


def build_model(kind: str, tied: bool) -> PreTrainedModel:
    """A tiny random model with random norms and biases, so that none can be left out unseen."""
    torch.manual_seed(7)
    config = KINDS[kind](**SMALL, tie_word_embeddings=tied)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    return model


def plan(*rules: dict[str, Any]) -> tercet.Plan:
    return tercet.Plan.model_validate({"name": "test", "rules": rules})


@dataclass(frozen=True)
class Case:
    """A source model on disk and the checkpoint that was made of it."""

    model: PreTrainedModel
    source: Path
    packed: Path

    def effective(self) -> PreTrainedModel:
        """The source model with the weights that the checkpoint stands for, unpacked.

        Scales and rotations of the input are folded into the weights; only the quantization of
        activations stays a step of its own.
        """
        checkpoint = tercet.open_packed(self.packed)
        model = AutoModelForCausalLM.from_pretrained(self.source)
        for name, entry in checkpoint.modules.items():
            weight = checkpoint.read_packed(name).dequantize()
            scale = checkpoint.input_scale(name) if entry.input_scale else torch.ones(())
            module = model.get_submodule(name)
            if entry.activation == "int8_token":
                module.register_forward_pre_hook(_scaled_to_int8(scale))
            else:
                if entry.hadamard is not None:
                    weight = rotate(weight, entry.hadamard)
                weight = weight * scale
            with torch.no_grad():
                module.weight.copy_(weight)
        return model.eval()


def _scaled_to_int8(scale: Tensor) -> Callable[[nn.Module, tuple[Tensor, ...]], Tensor]:
    def hook(_: nn.Module, arguments: tuple[Tensor, ...]) -> Tensor:
        codes, step = quantize_activation(arguments[0] * scale)
        return codes * step

    return hook


@pytest.fixture(scope="session")
def make_case(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Case]:
    def make(kind: str, tied: bool, *rules: dict[str, Any]) -> Case:
        folder = tmp_path_factory.mktemp(kind)
        model = build_model(kind, tied)
        model.save_pretrained(folder / "source")
        tokens = torch.randint(
            3, SMALL["vocab_size"], (10, 16), generator=torch.Generator().manual_seed(5)
        )
        tercet.compress(folder / "source", plan(*rules), folder / "packed", calibration=tokens)
        return Case(model, folder / "source", folder / "packed")

    return make


@pytest.fixture
def refusal(make_case: Callable[..., Case], tmp_path: Path) -> Callable[..., str]:
    """What a target says of a checkpoint by some rules, which it does not write."""

    def refuse(target: Target, *rules: dict[str, Any]) -> str:
        packed = tercet.open_packed(make_case("llama", True, *rules).packed)
        with pytest.raises(UnsupportedError) as caught:
            target.write(packed, tmp_path / "out")
        assert list(tmp_path.iterdir()) == []
        return str(caught.value)

    return refuse


@pytest.fixture(scope="session")
def mixed(make_case: Callable[..., Case]) -> Case:
    """A tied Llama with a packed embedding, three algorithms and one projection left plain."""
    return make_case(
        "llama",
        True,
        {"match": EMBEDDING, "format": "int8", "algorithm": "rtn"},
        {"match": "*.o_proj", "keep": True},
        {"match": "*.0.self_attn.*", "format": "int4-g32", "algorithm": "awq"},
        {"match": "*.0.mlp.*", "format": "nonary-g32", "algorithm": "hadamard"},
        {"match": "*.1.*", "format": "ternary-g32", "algorithm": "gptq"},
    )


@pytest.fixture(scope="session")
def ids() -> Tensor:
    return torch.randint(3, 96, (2, 13), generator=torch.Generator().manual_seed(3))
