from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.falcon_h1 import FalconH1Config
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.granite import GraniteConfig
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.olmo2 import Olmo2Config
from transformers.models.phi3 import Phi3Config
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config
from transformers.models.smollm3 import SmolLM3Config

from tercet.checkpoints.packed.layout import PackedModule
from tercet.formats import PackedTensor, encode, fit, parse_scheme

CONFIGS = {
    "falcon_h1": FalconH1Config,
    "gemma2": Gemma2Config,
    "gemma3_text": Gemma3TextConfig,
    "granite": GraniteConfig,
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "olmo2": Olmo2Config,
    "phi3": Phi3Config,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "smollm3": SmolLM3Config,
}
SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def build_model(kind: str, **options: Any) -> PreTrainedModel:
    """A tiny random model; norms and biases are random too, so that none can be left out unseen."""
    torch.manual_seed(7)
    config = CONFIGS[kind](**{**SMALL, **options})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith(("bias", ".D", ".A_log")):
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    return model


class MemorySource:
    """The weights of a transformers model; `pack` quantizes one of them to a packed module."""

    def __init__(self, model: PreTrainedModel, config: dict[str, Any] | None = None) -> None:
        self.config = config if config is not None else model.config.to_dict()
        tied = model.config.tie_word_embeddings
        self.plain = {
            name: tensor.detach().clone()
            for name, tensor in model.state_dict().items()
            if not (tied and name == "lm_head.weight")
        }
        self.modules: dict[str, PackedModule] = {}
        self.scales: dict[str, Tensor] = {}
        self._packed: dict[str, PackedTensor] = {}

    def pack(self, module: str, scheme_name: str, **how: Any) -> Tensor:
        """Packs one module; returns the weights that it now stands for."""
        weight = self.plain.pop(f"{module}.weight")
        scheme = parse_scheme(scheme_name)
        scale, zero = fit(weight, scheme, "absmax")
        self._packed[module] = encode(weight, scheme, scale, zero)
        if "input_scale" in how:
            self.scales[module] = how.pop("input_scale")
            how["input_scale"] = True
        shape = (weight.shape[0], weight.shape[1])
        self.modules[module] = PackedModule(format=scheme_name, shape=shape, **how)
        return self._packed[module].dequantize(torch.float32)

    def names(self) -> list[str]:
        return list(self.plain)

    def tensor(self, name: str) -> Tensor:
        return self.plain[name]

    def read_packed(self, module: str) -> PackedTensor:
        return self._packed[module]

    def input_scale(self, module: str) -> Tensor:
        return self.scales[module]


@pytest.fixture(scope="session")
def build() -> Callable[..., PreTrainedModel]:
    return build_model


@pytest.fixture(scope="session")
def source_of() -> type[MemorySource]:
    return MemorySource


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(3, 96, (2, 19), generator=torch.Generator().manual_seed(3))
