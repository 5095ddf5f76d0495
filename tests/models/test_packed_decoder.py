"""Decoders with packed weights against transformers computing with the dequantized ones."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tercet.errors import CheckpointError, UnsupportedError
from tercet.models import Decoder, InputTransform, PackedLinear, load_packed_linear

Make = Callable[..., Any]
PROJECTIONS = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    *("in_proj", "out_proj"),
)


def pack_layers(source: Any, model: Any, scheme: str, **how: Any) -> None:
    """Packs every projection; the model gets the dequantized weights and the same transforms."""
    for name, module in model.named_modules():
        if name.endswith(PROJECTIONS):
            own = {key: value(module) if callable(value) else value for key, value in how.items()}
            module.weight.data = source.pack(name, scheme, **own)
            transform = InputTransform(
                scale=own.get("input_scale"),
                hadamard=own.get("hadamard"),
                activation=own.get("activation"),
            )
            module.register_forward_pre_hook(partial(_apply, transform))


def _apply(transform: InputTransform, module: object, args: tuple[Tensor]) -> tuple[Tensor]:
    return (transform(args[0]),)


def compare(source: Any, model: Any, ids: Tensor, tolerance: float = 3e-5) -> None:
    decoder = Decoder.from_checkpoint(source)
    with torch.no_grad():
        expected = model(ids).logits
    torch.testing.assert_close(decoder.logits(ids), expected, atol=tolerance, rtol=tolerance)
    cache = decoder.cache(batch=ids.shape[0])
    for position in range(ids.shape[1]):
        scores = decoder.extend(ids[:, position : position + 1], cache)
    torch.testing.assert_close(scores, expected[:, -1], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("scheme", ["ternary", "nonary-g32", "int4-g32-asym", "int8", "nvfp4"])
@pytest.mark.parametrize(
    "kind", ["llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "olmo2", "falcon_h1"]
)
def test_packed_layers(scheme: str, kind: str, build: Make, source_of: Make, ids: Tensor) -> None:
    gemma = {"head_dim": 16, "sliding_window": 6} if kind.startswith("gemma") else {}
    model = build(kind, **gemma)
    source = source_of(model)
    pack_layers(source, model, scheme)
    # the logits of random Gemmas are three times as large
    compare(source, model, ids, 1e-4 if gemma else 3e-5)


@pytest.mark.parametrize("kind", ["qwen3", "gemma3_text"])
def test_all_layers_in_one_call_have_the_bits_of_one_after_the_other(
    kind: str, build: Make, source_of: Make, ids: Tensor
) -> None:
    # layers of gemma3 have two kinds of rotations and of windows
    model = build(kind, head_dim=16, **({"sliding_window": 6} if "gemma" in kind else {}))
    source = source_of(model)
    pack_layers(source, model, "nonary-g32")
    whole, single = Decoder.from_checkpoint(source), Decoder.from_checkpoint(source)
    assert whole.native_layers is not None
    vars(single)["native_layers"] = None
    caches = whole.cache(ids.shape[0]), single.cache(ids.shape[0])
    for position in range(ids.shape[1]):
        new = ids[:, position : position + 1]
        assert torch.equal(whole.extend(new, caches[0]), single.extend(new, caches[1]))
    assert torch.equal(caches[0].held, caches[1].held)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_packed_embedding_and_head(
    tied: bool, kind: str, build: Make, source_of: Make, ids: Tensor
) -> None:
    model = build(kind, tie_word_embeddings=tied, head_dim=16)
    source = source_of(model)
    model.model.embed_tokens.weight.data = source.pack("model.embed_tokens", "int8")
    if tied:
        model.tie_weights()
    else:
        model.lm_head.weight.data = source.pack("lm_head", "nonary-g32")
    compare(source, model, ids, 1e-4 if kind == "gemma2" else 3e-5)


@pytest.mark.parametrize(
    "how",
    [
        {"hadamard": 64},
        {"input_scale": lambda module: torch.rand(module.in_features) + 0.5},
        {"input_scale": lambda module: torch.linspace(0.5, 2, module.in_features), "hadamard": 32},
    ],
    ids=["rotated", "scaled apart", "scaled alike and rotated"],
)
@pytest.mark.parametrize("kind", ["llama", "gemma2", "olmo2"])
def test_input_transforms(how: Any, kind: str, build: Make, source_of: Make, ids: Tensor) -> None:
    model = build(kind, attention_bias=True, head_dim=16)
    source = source_of(model)
    pack_layers(source, model, "int8", **how)
    compare(source, model, ids, 1e-4 if kind == "gemma2" else 3e-5)


def test_quantized_activations(build: Make, source_of: Make, ids: Tensor) -> None:
    model = build("llama")
    source = source_of(model)
    pack_layers(source, model, "int8", activation="int8_token")
    # a value at a rounding boundary may fall to either side, so the bound is wider
    compare(source, model, ids, tolerance=0.02)


def test_mixed_formats_in_one_fused_group(build: Make, source_of: Make, ids: Tensor) -> None:
    model = build("qwen2")
    source = source_of(model)
    attention = model.model.layers[0].self_attn
    name = "model.layers.0.self_attn"
    attention.q_proj.weight.data = source.pack(f"{name}.q_proj", "ternary")
    attention.v_proj.weight.data = source.pack(f"{name}.v_proj", "int4-g32")
    compare(source, model, ids)


def test_rows_that_do_not_fuse(build: Make, source_of: Make, ids: Tensor) -> None:
    model = build("llama", intermediate_size=88, num_attention_heads=4, head_dim=12)
    source = source_of(model)
    pack_layers(source, model, "int4-g32")
    compare(source, model, ids)


def test_packed_linear_gradient(build: Make, source_of: Make) -> None:
    source = source_of(build("llama"))
    name = "model.layers.0.mlp.up_proj"
    dense = source.pack(name, "nonary-g32", hadamard=64)
    layer = load_packed_linear(source, name, bias=torch.ones(128))
    x = torch.randn(3, 64, requires_grad=True)
    other = x.detach().clone().requires_grad_()
    transform = InputTransform(hadamard=64)
    upstream = torch.randn(3, 128)
    layer(x).backward(upstream)
    (transform(other) @ dense.T + 1).backward(upstream)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, other.grad, atol=1e-5, rtol=1e-5)
    assert isinstance(layer, PackedLinear)
    assert layer.extra_repr().startswith("64 -> 128, bias=True")


def test_packed_shape_is_checked(build: Make, source_of: Make) -> None:
    source = source_of(build("llama"))
    source.pack("model.layers.1.mlp.down_proj", "ternary")
    source.config["intermediate_size"] = 64
    source.plain = {n: t[:64] if "gate" in n or "up" in n else t for n, t in source.plain.items()}
    source.plain["model.layers.0.mlp.down_proj.weight"] = torch.zeros(64, 64)
    with pytest.raises(CheckpointError, match=r"down_proj: shape \[64, 128\], but .* \[64, 64\]"):
        Decoder.from_checkpoint(source)


def test_transformed_embedding_is_refused(build: Make, source_of: Make) -> None:
    source = source_of(build("llama"))
    source.pack("model.embed_tokens", "int8", hadamard=64)
    with pytest.raises(UnsupportedError, match="an embedding has no input to transform"):
        Decoder.from_checkpoint(source)


def test_packed_head_beside_a_tie_is_refused(build: Make, source_of: Make) -> None:
    source = source_of(build("llama"))
    source.pack("lm_head", "int8")
    source.config["tie_word_embeddings"] = True
    with pytest.raises(CheckpointError, match=r"lm_head is packed, but config.json ties it"):
        Decoder.from_checkpoint(source)


def test_unused_packed_module_is_refused(build: Make, source_of: Make) -> None:
    source = source_of(build("llama"))
    source.plain["extra.weight"] = torch.zeros(32, 32)
    source.pack("extra", "int8")
    with pytest.raises(CheckpointError, match=r"holds 1 tensors .* first 'extra'"):
        Decoder.from_checkpoint(source)
