"""The lean decoder against transformers' own implementation of the same weights."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tercet.errors import CheckpointError, UnsupportedError
from tercet.models import Decoder

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GRANITE = {
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.4,
    "residual_multiplier": 0.3,
    "logits_scaling": 5.0,
}
# every trap at once: heads wider than hidden / H, a scale that is not that of heads, caps that bite
GEMMA2 = {
    "num_hidden_layers": 3,
    "head_dim": 32,
    "query_pre_attn_scalar": 24,
    "sliding_window": 5,
    "attn_logit_softcapping": 1.5,
    "final_logit_softcapping": 2.0,
}
GEMMA3 = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "query_pre_attn_scalar": 24,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 10000.0},
    },
}
# no two factors alike, and groups of more than one head
FALCON_H1 = {
    "mamba_d_ssm": 96,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.5,
    "key_multiplier": 0.3,
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.6,
    "mlp_multipliers": [0.7, 0.4],
    "ssm_in_multiplier": 1.25,
    "ssm_multipliers": [0.35, 0.25, 0.17, 0.5, 0.4],
    "ssm_out_multiplier": 0.3,
}
Make = Callable[..., Any]

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama no grouping": ("llama", {"num_key_value_heads": 4}),
    "llama wide heads": ("llama", {"head_dim": 32}),
    "llama gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "linear rope": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}},
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral window": ("mistral", {"sliding_window": 5}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "granite": ("granite", GRANITE),
    "granite tied": ("granite", {**GRANITE, "tie_word_embeddings": True}),
    "granite biases": ("granite", {**GRANITE, "attention_bias": True, "mlp_bias": True}),
    "granite without factors": ("granite", {}),
    "phi3": ("phi3", {"sliding_window": None}),
    "phi3 window": ("phi3", {"sliding_window": 5}),
    "phi3 rotates a part": (
        "phi3",
        {
            "sliding_window": None,
            "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.75},
        },
    ),
    "gemma2": ("gemma2", GEMMA2),
    "gemma2 without caps": (
        "gemma2",
        {**GEMMA2, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma2 untied, biases": (
        "gemma2",
        {**GEMMA2, "attention_bias": True, "tie_word_embeddings": False},
    ),
    # a key of gemma3 alone
    "gemma2 with a pattern": ("gemma2", {**GEMMA2, "sliding_window_pattern": 3}),
    "gemma3": ("gemma3_text", GEMMA3),
    "gemma3 as defaults have it": (
        "gemma3_text",
        {"num_hidden_layers": 7, "head_dim": 16, "sliding_window": 4},
    ),
    "gemma3 capped logits": ("gemma3_text", {**GEMMA3, "final_logit_softcapping": 2.0}),
    "olmo2": ("olmo2", {}),
    "olmo2 tied, biases": ("olmo2", {"attention_bias": True, "tie_word_embeddings": True}),
    "smollm3": ("smollm3", {"num_hidden_layers": 4}),
    "smollm3 untied, biases": (
        "smollm3",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    ),
    "smollm3 some layers": ("smollm3", {"num_hidden_layers": 3, "no_rope_layers": [0, 1, 0]}),
    "smollm3 interval, window": (
        "smollm3",
        {
            "num_hidden_layers": 3,
            "no_rope_layer_interval": 2,
            "use_sliding_window": True,
            "sliding_window": 5,
        },
    ),
    "smollm3 layers that slide, windows not switched on": (
        "smollm3",
        {
            "num_hidden_layers": 2,
            "layer_types": ["full_attention", "sliding_attention"],
            "use_sliding_window": False,
            "sliding_window": 5,
        },
    ),
    "swish": ("llama", {"hidden_act": "swish"}),
    "gelu_new": ("llama", {"hidden_act": "gelu_new"}),
    "smollm3 scaled rope": ("smollm3", {"no_rope_layers": [0, 1], "rope_parameters": LLAMA3_ROPE}),
    "falcon h1": ("falcon_h1", FALCON_H1),
    "falcon h1 norm behind the gate": (
        "falcon_h1",
        {**FALCON_H1, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "falcon h1 norm before the gate": ("falcon_h1", {**FALCON_H1, "mamba_rms_norm": True}),
    "falcon h1 biases, tied": (
        "falcon_h1",
        {
            **FALCON_H1,
            "attention_bias": True,
            "mlp_bias": True,
            "mamba_proj_bias": True,
            "projectors_bias": True,
            "mamba_conv_bias": False,
            "tie_word_embeddings": True,
        },
    ),
    "falcon h1 as wide as it is": (
        "falcon_h1",
        {"mamba_d_ssm": None, "mamba_n_heads": 4, "mamba_d_head": "auto", "mamba_d_conv": 2},
    ),
    "qwen3 biases": ("qwen3", {"head_dim": 32, "attention_bias": True}),
}


# of random Gemmas the logits are three times as large, and transformers' own are this far from
# float64; each of their traps left out is 100 times as far
LIMITS = {"gemma2": 6e-5, "gemma3_text": 6e-5}
Pair = tuple[Decoder, Tensor, float]


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def pair(request: pytest.FixtureRequest, ids: Tensor, build: Make, source_of: Make) -> Pair:
    """The decoder, transformers' logits, and how far from them the decoder's may be."""
    kind, options = request.param
    model = build(kind, **options)
    with torch.no_grad():
        expected = model(ids).logits
    return Decoder.from_checkpoint(source_of(model)), expected, LIMITS.get(kind, 2e-5)


def test_prefill_matches_transformers(pair: Pair, ids: Tensor) -> None:
    decoder, expected, limit = pair
    torch.testing.assert_close(decoder.logits(ids), expected, atol=limit, rtol=2e-5)
    torch.testing.assert_close(
        decoder.logits(ids, last_only=True), expected[:, -1:], atol=limit, rtol=2e-5
    )


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("cuts", [[1] * 19, [7, 1, 1, 6, 4], [18, 1]], ids=str)
def test_cached_steps_match_transformers(
    pair: Pair,
    ids: Tensor,
    cuts: list[int],
    compiled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not compiled:
        monkeypatch.setattr("tercet.models.decoder.decoder.native", lambda: None)
    decoder, expected, limit = pair
    cache, end = decoder.cache(batch=2), 0
    for part in ids.split(cuts, dim=1):
        end += part.shape[1]
        scores = decoder.extend(part, cache)
        torch.testing.assert_close(scores, expected[:, end - 1], atol=limit, rtol=2e-5)
    assert cache.length == 19


def test_cache_growth_keeps_what_it_holds(build: Make, source_of: Make) -> None:
    decoder = Decoder.from_checkpoint(source_of(build("llama")))
    ids = torch.randint(3, 96, (1, 400), generator=torch.Generator().manual_seed(0))
    cache = decoder.cache()
    decoder.extend(ids[:, :250], cache)
    before = cache.capacity
    for position in range(250, 400):
        scores = decoder.extend(ids[:, position : position + 1], cache)
    assert (before, cache.capacity) == (256, 512)
    torch.testing.assert_close(scores, decoder.logits(ids)[:, -1], atol=5e-5, rtol=5e-5)


def test_hub_style_rope_keys(build: Make, source_of: Make) -> None:
    model = build("llama", rope_parameters=LLAMA3_ROPE)
    config = model.config.to_dict()
    del config["rope_parameters"]
    config["rope_theta"] = LLAMA3_ROPE["rope_theta"]
    config["rope_scaling"] = {k: v for k, v in LLAMA3_ROPE.items() if k != "rope_theta"}
    ids = torch.arange(3, 90).unsqueeze(0)
    with torch.no_grad():
        expected = model(ids).logits
    found = Decoder.from_checkpoint(source_of(model, config)).logits(ids)
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=5e-5)


def test_hub_style_keys_of_gemma3(build: Make, source_of: Make) -> None:
    model = build("gemma3_text", **GEMMA3)
    config = model.config.to_dict()
    for key in ("rope_parameters", "layer_types"):
        del config[key]
    config |= {
        "rope_theta": 10000.0,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 2,
    }
    ids = torch.arange(3, 40).unsqueeze(0)
    with torch.no_grad():
        expected = model(ids).logits
    found = Decoder.from_checkpoint(source_of(model, config)).logits(ids)
    torch.testing.assert_close(found, expected, atol=6e-5, rtol=2e-5)


def test_capped_attention_in_blocks_of_queries(
    build: Make, source_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("gemma2", **GEMMA2)
    decoder, ids = Decoder.from_checkpoint(source_of(model)), torch.arange(3, 40).unsqueeze(0)
    whole = decoder.logits(ids)
    monkeypatch.setattr("tercet.models.decoder.attention._QUERIES_AT_ONCE", 5)
    torch.testing.assert_close(decoder.logits(ids), whole, atol=2e-5, rtol=2e-5)
    with torch.no_grad():
        torch.testing.assert_close(whole, model(ids).logits, atol=6e-5, rtol=2e-5)


@pytest.mark.parametrize("kind", ["gemma2", "qwen3", "falcon_h1"])
def test_bfloat16_is_close(kind: str, build: Make, source_of: Make) -> None:
    model = build(kind, head_dim=16)
    ids = torch.arange(3, 30).unsqueeze(0)
    exact = Decoder.from_checkpoint(source_of(model)).logits(ids)
    found = Decoder.from_checkpoint(source_of(model), torch.bfloat16).logits(ids)
    assert found.dtype == torch.bfloat16
    assert float((found.float() - exact).norm() / exact.norm()) < 0.03


def test_unknown_architecture_names_the_known_ones(build: Make, source_of: Make) -> None:
    config = {"model_type": "gpt_neox"}
    with pytest.raises(
        UnsupportedError,
        match=r"known: falcon_h1, gemma2, gemma3_text, granite, llama, mistral, olmo2, olmoe, "
        r"phi3, qwen2, qwen2_moe, qwen3, qwen3_moe, smollm3; .*transformers",
    ):
        Decoder.from_checkpoint(source_of(build("llama"), config))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"rope_parameters": {"rope_type": "yarn"}},
            UnsupportedError,
            "unknown rope type 'yarn'.*load such a model with transformers",
        ),
        # what a user adds to a config of transformers 5
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            UnsupportedError,
            "unknown rope type 'yarn'",
        ),
        (
            {"rope_parameters": {"rope_type": "linear"}},
            CheckpointError,
            "rope factor None: must be a number",
        ),
        (
            {
                "rope_parameters": {
                    "rope_type": "linear",
                    "factor": 2.0,
                    "partial_rotary_factor": 0.5,
                }
            },
            UnsupportedError,
            "a model of this architecture rotates whole heads",
        ),
        (
            {"hidden_act": "relu6"},
            UnsupportedError,
            "unknown activation 'relu6'.*load such a model with transformers",
        ),
        ({"hidden_size": "64"}, CheckpointError, "hidden_size '64': must be a whole number"),
        ({"num_hidden_layers": None}, CheckpointError, "num_hidden_layers None"),
        ({"num_key_value_heads": 3}, CheckpointError, "no multiple of num_key_value_heads 3"),
        (
            {"vocab_size": 95},
            CheckpointError,
            r"embed_tokens.weight: shape \[96, 64\], but config.json calls for \[95, 64\]",
        ),
        ({"attention_bias": True}, CheckpointError, "no tensor 'model.layers.0.self_attn.*bias'"),
        ({"use_bidirectional_attention": True}, UnsupportedError, "to earlier positions only"),
        ({"partial_rotary_factor": -1}, CheckpointError, "partial_rotary_factor -1: must be"),
        ({"num_hidden_layers": 1}, CheckpointError, "holds 9 tensors .*'model.layers.1"),
    ],
)
def test_wrong_config_is_refused(
    changes: dict[str, object], error: type[Exception], message: str, build: Make, source_of: Make
) -> None:
    model = build("llama")
    config = {**model.config.to_dict(), **changes}
    with pytest.raises(error, match=message):
        Decoder.from_checkpoint(source_of(model, config))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"mamba_n_heads": 5},
            CheckpointError,
            "mamba_n_heads 5: must be a multiple of .*groups 2",
        ),
        ({"mamba_d_head": 8}, CheckpointError, "mamba_d_ssm 96 that many times mamba_d_head 8"),
        ({"ssm_multipliers": [1.0]}, CheckpointError, "ssm_multipliers .*a list of 5 numbers"),
        ({"mlp_multipliers": [1.0, 0]}, CheckpointError, "mlp_multipliers 0: must be a number"),
        ({"time_step_limit": [0.1, 1.0]}, UnsupportedError, "bounds no time steps"),
        (
            {"mamba_d_state": 9},
            CheckpointError,
            r"conv1d.bias: shape \[128\], but .* \[132\]",
        ),
    ],
)
def test_wrong_state_spaces_are_refused(
    changes: dict[str, object], error: type[Exception], message: str, build: Make, source_of: Make
) -> None:
    model = build("falcon_h1", **FALCON_H1)
    config = {**model.config.to_dict(), **changes}
    with pytest.raises(error, match=message):
        Decoder.from_checkpoint(source_of(model, config))


def test_infinities_as_transformers_writes_them(build: Make, source_of: Make, ids: Tensor) -> None:
    model = build("falcon_h1", **FALCON_H1)
    config = json.loads(model.config.to_json_string(use_diff=False))
    assert config["time_step_limit"] == [0.0, {"__float__": "Infinity"}]
    with torch.no_grad():
        expected = model(ids).logits
    found = Decoder.from_checkpoint(source_of(model, config)).logits(ids)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


def test_long_time_steps_over_many_chunks(build: Make, source_of: Make) -> None:
    """Sums of hundreds beside differences near 0, over more positions than two chunks have."""
    model = build("falcon_h1", **FALCON_H1)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mamba.dt_bias.copy_(torch.linspace(-4.0, 40.0, 6))
    long = torch.randint(3, 96, (2, 300), generator=torch.Generator().manual_seed(5))
    decoder = Decoder.from_checkpoint(source_of(model))
    with torch.no_grad():
        expected = model(long).logits
    torch.testing.assert_close(decoder.logits(long), expected, atol=3e-5, rtol=3e-5)
    cache = decoder.cache(2)
    for part in long.split([130, 1, 64, 1, 63, 41], 1):
        scores = decoder.extend(part, cache)
    torch.testing.assert_close(scores, expected[:, -1], atol=3e-5, rtol=3e-5)


def test_caches_with_states(build: Make, source_of: Make, ids: Tensor) -> None:
    """Copied, repeated and put beside each other as keys and values are; taken back, all is new."""
    decoder = Decoder.from_checkpoint(source_of(build("falcon_h1", **FALCON_H1)))
    one, more = decoder.cache(), torch.randint(3, 96, (3, 4))
    decoder.fill(ids[:1], one)
    several, beside = one.repeat(3, 4), decoder.cache(3)
    beside.reserve(32)
    beside.advance(19)
    for sequence in range(3):
        beside.put(sequence, one)
    whole = torch.cat((ids[:1].expand(3, -1), more), 1)
    expected = decoder.logits(whole, last_only=True)[:, 0]
    for cache in (several, beside):
        torch.testing.assert_close(decoder.extend(more, cache), expected, atol=2e-5, rtol=2e-5)
    assert several.size_bytes > 3 * 2 * 2 * 2 * 16 * 256 * 4
    several.truncate(30)
    assert several.length == 23
    several.truncate(22)
    assert several.length == 0
    found = decoder.extend(whole, several)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("ids", [torch.zeros(1, 0).long(), torch.zeros(3).long(), torch.ones(1, 2)])
def test_ids_of_the_wrong_kind_are_refused(ids: Tensor, build: Make, source_of: Make) -> None:
    decoder = Decoder.from_checkpoint(source_of(build("llama")))
    with pytest.raises(UnsupportedError, match=r"must be whole numbers \[B, T\]"):
        decoder.logits(ids)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), "0.5", None, True])
def test_a_factor_that_is_none_is_refused(value: object, build: Make, source_of: Make) -> None:
    config = {**build("granite").config.to_dict(), "residual_multiplier": value}
    with pytest.raises(CheckpointError, match=r"residual_multiplier .*: must be a number above 0"):
        Decoder.from_checkpoint(source_of(build("granite"), config))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar 0: must be a number above 0"),
        ({"attn_logit_softcapping": -50.0}, "attn_logit_softcapping -50.0: must be a number"),
        ({"layer_types": ["sliding_attention"]}, "says None of layer 1"),
        ({"layer_types": ["chunked", "full_attention"]}, "says 'chunked' of layer 0"),
    ],
)
def test_wrong_settings_of_gemma_are_refused(
    changes: dict[str, object], message: str, build: Make, source_of: Make
) -> None:
    model = build("gemma2")
    config = {**model.config.to_dict(), **changes}
    with pytest.raises(CheckpointError, match=message):
        Decoder.from_checkpoint(source_of(model, config))


def test_a_pattern_that_no_model_has_is_refused(build: Make, source_of: Make) -> None:
    model = build("gemma3_text", head_dim=16)
    config = {**model.config.to_dict(), "layer_types": None, "sliding_window_pattern": 0}
    with pytest.raises(CheckpointError, match="sliding_window_pattern 0: must be"):
        Decoder.from_checkpoint(source_of(model, config))


@pytest.mark.parametrize("wrong", [-1, 96, 10**10])
def test_ids_beyond_a_plain_embedding_are_refused(wrong: int, build: Make, source_of: Make) -> None:
    decoder = Decoder.from_checkpoint(source_of(build("llama")))
    with pytest.raises(UnsupportedError, match=f"{wrong}.*(95|96)"):
        decoder.logits(torch.tensor([[1, wrong, 2]]))
