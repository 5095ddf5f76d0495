"""Sizes of a checkpoint whose every byte is known."""

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import tercet
from tercet.evaluate.size import Size, measure_size


def test_ratios_name_their_baseline() -> None:
    size = Size(
        disk_bytes=250,
        directory_bytes=300,
        parameters=1000,
        body_bits_per_weight=2.0,
        bits_per_weight=2.0,
    )
    assert size.ratio_to_bf16 == 8
    assert size.ratio_to_fp32 == 16
    assert size.metrics()["directory_bytes"] == 300


def test_everything_is_counted(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "source")
    rules = [
        {"match": "model.embed_tokens", "format": "int8-channel", "algorithm": "rtn"},
        {"match": "*.mlp.*", "format": "int4-g64", "algorithm": "rtn"},
    ]
    plan = tercet.Plan.model_validate({"name": "test", "rules": rules})
    tercet.compress(tmp_path / "source", plan, tmp_path / "packed")
    size = measure_size(tercet.open_packed(tmp_path / "packed"))
    attention, mlp, embedding, norms = 4 * 64 * 64, 3 * 64 * 128, 40 * 64, 3 * 64
    assert size.parameters == attention + mlp + embedding + norms
    assert size.body_bits_per_weight == pytest.approx(4 + 16 / 64)
    files = [path for path in (tmp_path / "packed").iterdir() if path.is_file()]
    weights = sum(path.stat().st_size for path in files if path.suffix == ".safetensors")
    assert size.disk_bytes == weights
    payload = 4 * (attention + norms) + mlp // 2 + mlp // 64 * 2 + embedding + 40 * 2
    assert payload < size.disk_bytes < payload + 8192
    assert size.directory_bytes == sum(path.stat().st_size for path in files)
    assert size.bits_per_weight == pytest.approx(8 * weights / size.parameters)


def test_the_body_is_the_layers_whatever_embedding_and_head_are_called(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = GPT2Config(n_embd=64, n_layer=1, n_head=2, n_inner=128, vocab_size=40, n_positions=16)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "source")
    rules = [
        {"match": "*wte", "format": "int8-channel", "algorithm": "rtn"},
        {"match": "*.h.*", "format": "int4-g64", "algorithm": "rtn"},
    ]
    plan = tercet.Plan.model_validate({"name": "test", "rules": rules})
    tercet.compress(tmp_path / "source", plan, tmp_path / "packed")
    size = measure_size(tercet.open_packed(tmp_path / "packed"))
    assert size.body_bits_per_weight == pytest.approx(4 + 16 / 64)
