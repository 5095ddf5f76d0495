from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tercet.compress.allocate.measure import Scope, measure_sensitivity
from tercet.compress.allocate.rows import Windows
from tercet.compress.allocate.sensitivity_file import Sensitivity
from tercet.compress.plan import Plan

FORMATS = ("ternary-g64", "int3-g64", "int4-g64-asym")
WINDOWS = Windows(count=2, length=24)


def write_model(directory: Path, *, tied: bool = False, seed: int = 0) -> Path:
    """A random Llama of two layers whose output depends on all of its linears."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        initializer_range=0.15,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="package")
def tied_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tied"), tied=True)


@pytest.fixture(scope="package")
def tokens() -> Tensor:
    return torch.randint(3, 96, (12, 32), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="package")
def plan() -> Plan:
    rules = [
        {"match": "*embed_tokens", "format": "int8-g64", "algorithm": "rtn"},
        {"match": "lm_head", "format": "int8-g64"},
        {"match": "*.layers.*", "format": "int3-g64"},
    ]
    calibration = {"sequences": 8, "length": 32, "match_teacher": 0.5}
    return Plan.model_validate({"name": "base", "calibration": calibration, "rules": rules})


@pytest.fixture(scope="package")
def measured(
    model: Path, tokens: Tensor, plan: Plan, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Sensitivity]:
    out = tmp_path_factory.mktemp("measured") / "s.jsonl"
    scope = Scope(formats=FORMATS)
    return out, measure_sensitivity(
        model, scope, out, plan=plan, calibration=tokens, windows=WINDOWS, device="cpu"
    )
