"""Fused norms and gates compute what transformers' own modules compute, or leave them alone."""

from typing import Any

import pytest
import torch
import transformers

from tercet.compress.qat.fused_modules import FusedGatedMLP, FusedRMSNorm, fuse_modules

SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "vocab_size": 97,
    "max_position_embeddings": 64,
}


def model_of(kind: str, **more: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **more)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():  # norms as a trained model has them: none is made of ones
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.rand_like(parameter) - 0.5)
    return model


@pytest.mark.parametrize(
    ("kind", "norms", "gates"), [("Llama", 5, 2), ("Qwen3", 9, 2), ("Mistral", 5, 2)]
)
def test_outputs_and_gradients_are_the_models_own(kind: str, norms: int, gates: int) -> None:
    plain, fused = model_of(kind), model_of(kind)
    assert fuse_modules(fused) == norms + gates
    found = [type(module) for module in fused.modules()]
    assert (found.count(FusedRMSNorm), found.count(FusedGatedMLP)) == (norms, gates)
    names = dict(plain.named_parameters())
    assert [name for name, _ in fused.named_parameters()] == list(names)
    ids = torch.randint(97, (2, 17), generator=torch.Generator().manual_seed(1))
    for model in (plain, fused):
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    for name, parameter in fused.named_parameters():
        expected = names[name].grad
        limit = 1e-5 * expected.abs().max()
        assert ((parameter.grad - expected).abs() <= limit).all(), name


def test_parameters_keep_their_identity() -> None:
    model = model_of("Llama")
    before = {name: id(parameter) for name, parameter in model.named_parameters()}
    fuse_modules(model)
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == before


def test_a_norm_whose_weights_lie_around_zero_stays() -> None:
    """Gemma multiplies by 1 + weight, and its gate is a GELU."""
    model = model_of("Gemma")
    assert fuse_modules(model) == 0


def test_a_gate_of_another_activation_stays() -> None:
    model = model_of("Llama", hidden_act="gelu")
    assert fuse_modules(model) == 5
    assert not any(isinstance(module, FusedGatedMLP) for module in model.modules())


def test_an_epsilon_that_is_not_the_modules_own_is_seen() -> None:
    model = model_of("Llama")
    norm = model.model.norm
    norm.eps, norm.variance_epsilon = norm.variance_epsilon, norm.variance_epsilon
    forward = norm.forward
    norm.forward = lambda x: forward(x) * 1.001
    assert fuse_modules(model) == 6
    assert model.model.norm is norm
