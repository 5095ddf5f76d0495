from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from command_line import Outcome, runner
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, Qwen2Config

VOCABULARY = 128
PLAN = """
name: small
calibration: {sequences: 4, length: 16}
rules:
  - {match: "*embed_tokens", format: int8-g64, algorithm: rtn}
  - {match: "*.mlp.*", format: nonary-g64, algorithm: gptq}
  - {match: "*.self_attn.*", keep: true}
"""


def write_model(directory: Path) -> Path:
    """A random two-layer Qwen2 (biases, tied head) and a tokenizer of one token a word."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    words = {f"w{index}": index for index in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(PLAN)
    return path


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    ids = torch.randint(3, VOCABULARY, (4, 16), generator=torch.Generator().manual_seed(1))
    save_file({"input_ids": ids}, tmp_path / "calibration.safetensors")
    return tmp_path / "calibration.safetensors"


@pytest.fixture
def tercet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Runs the real entry point in this process."""
    return runner(monkeypatch, capsys)


@pytest.fixture
def compress(
    tercet: Callable[..., Outcome], model: Path, plan: Path, calibration: Path, tmp_path: Path
) -> Callable[..., Outcome]:
    """Runs `tercet compress` on the small model into tmp_path/out."""

    def run(*more: object, plan: Path = plan) -> Outcome:
        out = ["--out", tmp_path / "out", "--calibration", calibration]
        return tercet("compress", model, "--plan", plan, *out, *more)

    return run
