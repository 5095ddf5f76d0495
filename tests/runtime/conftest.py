import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tercet.checkpoints.packed.layout import PackedModule
from tercet.models import Decoder
from tercet.runtime import Generator

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'][0] }}:{{ message['content'] }}"
    "{% if not loop.last %}|{% endif %}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


def write_tokenizer(directory: Path) -> None:
    """One token a byte, in the alphabet's order, then <s> (256) and </s> (257)."""
    vocabulary = {letter: index for index, letter in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


class PlainSource:
    """A transformers model as a weight source, nothing packed."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.config: dict[str, Any] = model.config.to_dict()
        self.plain = model.state_dict()
        self.modules: dict[str, PackedModule] = {}

    def names(self) -> list[str]:
        return list(self.plain)

    def tensor(self, name: str) -> Tensor:
        return self.plain[name]

    def read_packed(self, module: str) -> Any:
        raise KeyError(module)

    def input_scale(self, module: str) -> Any:
        raise KeyError(module)


@pytest.fixture(scope="session")
def teacher() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=80,
        initializer_range=0.4,
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def session(teacher: LlamaForCausalLM, tmp_path: Path) -> Generator:
    write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 257}))
    return Generator(Decoder.from_checkpoint(PlainSource(teacher)), tmp_path)
