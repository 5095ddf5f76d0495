import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, Qwen2Config

from tercet.cli.main import main

VOCABULARY = 128
PLAN = """
name: small
calibration: {sequences: 4, length: 16}
rules:
  - {match: "*embed_tokens", format: int8-g64, algorithm: rtn}
  - {match: "*.mlp.*", format: nonary-g64, algorithm: gptq}
  - {match: "*.self_attn.*", keep: true}
"""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line on standard error that a refusal prints."""
        assert self.code == 2, (self.code, self.out, self.err)
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1
        assert self.err.endswith(lines[0] + "\n")
        assert "Traceback" not in self.err
        return lines[0]


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

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["tercet", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1 if end.code else 0
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def compress(
    tercet: Callable[..., Outcome], model: Path, plan: Path, calibration: Path, tmp_path: Path
) -> Callable[..., Outcome]:
    """Runs `tercet compress` on the small model into tmp_path/out."""

    def run(*more: object, plan: Path = plan) -> Outcome:
        out = ["--out", tmp_path / "out", "--calibration", calibration]
        return tercet("compress", model, "--plan", plan, *out, *more)

    return run
