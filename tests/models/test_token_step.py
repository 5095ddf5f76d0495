"""The steps that a GPU runs, against the decoder's own pass, on a CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tercet.models import Decoder, KeyValueCache
from tercet.models.decoder.gpu.token_graph import most_probable

KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 7},
    "qwen2": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen3": {"head_dim": 32},
    "granite": {
        "embedding_multiplier": 6.0,
        "attention_multiplier": 0.4,
        "residual_multiplier": 0.3,
        "logits_scaling": 5.0,
    },
    "gemma2": {"head_dim": 32, "sliding_window": 7, "query_pre_attn_scalar": 24},
    "gemma3_text": {
        "head_dim": 32,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "olmo2": {},
    "smollm3": {"no_rope_layers": [0, 1]},
    "phi3": {
        "sliding_window": None,
        "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.75},
    },
}


def run_step(decoder: Decoder, cache: KeyValueCache, ids: Tensor) -> Tensor:
    """As the captured graph: the lengths and the whole cache, whatever its capacity."""
    batch = ids.shape[0]
    cache.reserve(cache.length + 1)
    step = decoder.token_step(batch, cache.capacity)
    lengths = torch.full((batch,), cache.length + 1, dtype=torch.int32)
    scores = step(ids, lengths, *cache.all_positions(), cache.all_scales())
    cache.extend(1)
    return scores


def run_prompt(decoder: Decoder, cache: KeyValueCache, ids: Tensor) -> Tensor:
    """Scores [B, T, V] of new positions, as a GPU makes them."""
    cache.extend(ids.shape[1])
    step = decoder._prompts.step(cache, ids.shape[1])
    hidden = step(decoder._embed(ids.reshape(-1)), cache)
    return decoder._scores(hidden).view(*ids.shape, -1)


def compare(decoder: Decoder, ids: Tensor, relative: float) -> None:
    """Prompt in two parts by the prompt's step, then token by token by the token's."""
    expected = decoder.logits(ids)
    limit = relative * float(expected.abs().max())
    cache = decoder.cache(ids.shape[0])
    with torch.inference_mode():
        # a prompt that is run before grows the cache, and leaves behind what is written over
        run_prompt(decoder, cache, ids.flip(1))
        cache.truncate(0)
        for first, last in ((0, 8), (8, 10)):
            scores = run_prompt(decoder, cache, ids[:, first:last])
            assert_close(scores, expected[:, first:last], rtol=0, atol=limit)
        for place in range(10, ids.shape[1]):
            scores = run_step(decoder, cache, ids[:, place])
            assert_close(scores, expected[:, place], rtol=0, atol=limit)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", [False, True])
def test_plain_weights(
    build: Callable[..., Any], source_of: Any, ids: Tensor, kind: str, tied: bool
) -> None:
    model = build(kind, tie_word_embeddings=tied, **KINDS[kind])
    compare(Decoder.from_checkpoint(source_of(model)), ids, 1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("scheme", "how"),
    [
        ("ternary", {}),
        ("nonary", {"hadamard": 64}),
        ("int4-g32-asym", {"activation": "int8_token"}),
        ("ternary", {"activation": "fp8_token"}),
        ("int8-channel", {"activation": "int8_token", "input_scale": None}),
    ],
    ids=str,
)
def test_packed_weights(
    build: Callable[..., Any],
    source_of: Any,
    ids: Tensor,
    kind: str,
    scheme: str,
    how: dict[str, Any],
) -> None:
    source = source_of(build(kind, **KINDS[kind]))
    for name in [name for name in source.plain if name.endswith("_proj.weight")]:
        given = dict(how)
        if "input_scale" in how:
            given["input_scale"] = torch.linspace(0.5, 2.0, source.plain[name].shape[1])
        source.pack(name.removesuffix(".weight"), scheme, **given)
    # codes of activations may tip to the other side of a tie: one step of 127 and of 2^-4
    relative = {"int8_token": 5e-3, "fp8_token": 4e-2}.get(how.get("activation", ""), 1e-5)
    compare(Decoder.from_checkpoint(source), ids, relative)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("codes", "relative"), [("int8", 2e-3), ("fp8_e4m3", 1e-2), ("int4", 2e-2)]
)
def test_cached_codes(
    build: Callable[..., Any], source_of: Any, ids: Tensor, kind: str, codes: str, relative: float
) -> None:
    source = source_of(build(kind, **KINDS[kind]))
    # a key or value between two codes may get either
    compare(Decoder.from_checkpoint(source, kv_cache_dtype=codes), ids, relative)


def test_other_activations_than_silu(
    build: Callable[..., Any], source_of: Any, ids: Tensor
) -> None:
    source = source_of(build("llama", hidden_act="gelu_pytorch_tanh"))
    source.pack("model.layers.0.mlp.down_proj", "int4-g32")
    compare(Decoder.from_checkpoint(source), ids, 1e-5)


@pytest.mark.parametrize("count", [1, 77, 96, 4096, 128256])
def test_the_most_probable_of_any_vocabulary(count: int) -> None:
    scores = torch.randn(3, count, generator=torch.Generator().manual_seed(count))
    assert most_probable(scores).tolist() == scores.argmax(-1).tolist()
