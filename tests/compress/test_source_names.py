"""Which weights of the files a model is made of: heads of tasks, ties, names that are changed."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    BloomConfig,
    FalconConfig,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    IBertConfig,
    IBertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    NomicBertConfig,
    NomicBertModel,
)

import tercet
from tercet.errors import FormatError, UnsupportedError
from tercet.formats import parse_scheme

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "initializer_range": 0.1,
}
PLAN = tercet.Plan.model_validate(
    {
        "name": "test",
        "rules": [
            {"match": "*embed*", "format": "int8-g32", "algorithm": "rtn"},
            {"match": "*.layer*.*", "format": "int4-g32", "algorithm": "rtn"},
        ],
    }
)
IDS = torch.randint(96, (3, 15), generator=torch.Generator().manual_seed(2))


def save_drawn(model: Any, folder: Path) -> Path:
    """With every parameter drawn, the biases and heads too."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    model.eval().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "maker",
    [AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoModelForMaskedLM],
)
def test_the_head_of_a_task_is_kept(maker: Any, tmp_path: Path) -> None:
    config = BertConfig(**SIZES, num_labels=5)
    source = save_drawn(maker.from_config(config), tmp_path / "source")
    result = tercet.compress(source, PLAN, tmp_path / "packed")
    assert result.unused == []
    twin = maker.from_pretrained(source).eval()
    checkpoint = tercet.open_packed(tmp_path / "packed")
    assert checkpoint.config["architectures"] == [type(twin).__name__]
    with torch.no_grad():
        original = twin(input_ids=IDS).logits
        for name in checkpoint.modules:
            twin.get_submodule(name).weight.copy_(checkpoint.read_packed(name).dequantize())
        found = maker.from_pretrained(tmp_path / "packed").eval()(input_ids=IDS).logits
        expected = twin(input_ids=IDS).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert not torch.equal(found, original)


def change_file(folder: Path, **tensors: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), **tensors}, path, metadata={"format": "pt"})


def test_a_tied_head_that_differs_is_refused(tmp_path: Path) -> None:
    config = LlamaConfig(**SIZES, tie_word_embeddings=True)
    source = save_drawn(LlamaForCausalLM(config), tmp_path / "source")
    embedding = load_file(source / "model.safetensors")["model.embed_tokens.weight"]
    change_file(source, **{"lm_head.weight": embedding.clone()})
    assert tercet.compress(source, PLAN, tmp_path / "equal").unused == []
    change_file(source, **{"lm_head.weight": embedding * 1.01})
    message = r"lm_head.weight and model.embed_tokens.weight differ, but .* tie_word_embeddings to"
    with pytest.raises(tercet.CheckpointError, match=message):
        tercet.compress(source, PLAN, tmp_path / "packed")
    assert not list(tmp_path.glob("packed*"))


def test_what_the_model_does_not_use_is_named(tmp_path: Path) -> None:
    source = save_drawn(LlamaForCausalLM(LlamaConfig(**SIZES)), tmp_path / "source")
    change_file(
        source,
        **{"vision.weight": torch.ones(3), "model.layers.0.self_attn.rotary_emb.inv_freq": IDS},
    )
    assert tercet.compress(source, PLAN, tmp_path / "packed").unused == ["vision.weight"]


@pytest.mark.parametrize(
    ("config", "fused"),
    [
        (
            BloomConfig(vocab_size=96, hidden_size=64, n_layer=2, n_head=4),
            "transformer.h.1.self_attention.query_key_value",
        ),
        (
            FalconConfig(**{**SIZES, "num_hidden_layers": 2, "max_position_embeddings": 512}),
            "transformer.h.1.self_attention.query_key_value",
        ),
    ],
)
@pytest.mark.parametrize("to", ["int4", "nonary-g32"])
def test_layers_that_are_called_h(config: Any, fused: str, to: str, tmp_path: Path) -> None:
    source = save_drawn(AutoModelForCausalLM.from_config(config), tmp_path / "source")
    # two sequences at a time, and then one
    tokens = torch.randint(96, (3, 400), generator=torch.Generator().manual_seed(1))
    result = tercet.compress(source, to, tmp_path / "packed", calibration=tokens)
    assert result.unmatched == []
    assert result.modules[fused].format == {"int4": "int4-g64"}.get(to, to)
    twin = AutoModelForCausalLM.from_pretrained(source).eval()
    checkpoint = tercet.open_packed(tmp_path / "packed")
    with torch.no_grad():
        for name in checkpoint.modules:
            twin.get_submodule(name).weight.copy_(checkpoint.read_packed(name).dequantize())
        found = AutoModelForCausalLM.from_pretrained(tmp_path / "packed").eval()(IDS).logits
        torch.testing.assert_close(found, twin(IDS).logits, atol=1e-4, rtol=1e-4)


def test_a_name_that_transformers_changes(tmp_path: Path) -> None:
    source = save_drawn(GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES)), tmp_path / "source")
    path = source / "model.safetensors"
    stored = load_file(path)
    # as the files on the hub have it
    if "lm_head.weight" in stored:
        stored["embed_out.weight"] = stored.pop("lm_head.weight")
        save_file(stored, path, metadata={"format": "pt"})
    assert tercet.compress(source, PLAN, tmp_path / "packed").unused == []
    checkpoint = tercet.open_packed(tmp_path / "packed")
    assert torch.equal(
        checkpoint.tensor("lm_head.weight").float(), stored["embed_out.weight"].float()
    )


def test_a_model_that_makes_buffers_of_its_weights_is_refused(tmp_path: Path) -> None:
    config = IBertConfig(**SIZES)
    IBertForMaskedLM(config).save_pretrained(tmp_path / "source")
    with pytest.raises(UnsupportedError, match="IBertForMaskedLM makes buffers of its weights"):
        tercet.compress(tmp_path / "source", PLAN, tmp_path / "out")


def test_weights_that_transformers_makes_of_others_are_named(tmp_path: Path) -> None:
    """It is not the files that are wrong."""
    config = NomicBertConfig(**SIZES)
    NomicBertModel(config).save_pretrained(tmp_path / "source")
    with pytest.raises(UnsupportedError, match=r"transformers makes it of others .*NomicBertModel"):
        tercet.compress(tmp_path / "source", PLAN, tmp_path / "out")


@pytest.mark.parametrize("name", [None, 4, ["int4"]])
def test_a_format_that_is_no_name(name: object) -> None:
    with pytest.raises(FormatError, match="must be a name"):
        parse_scheme(cast(str, name))
