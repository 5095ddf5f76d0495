"""Which decoders the graphs of ONNX and OpenVINO know, by config.json alone."""

import pytest

from tercet.export.decoder_weights import architecture_reason

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_known(kind: str) -> None:
    assert architecture_reason({**SIZES, "model_type": kind}) is None


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "granite"}, "no factors on embedding, scores, residuals or logits"),
        ({"model_type": "phi3"}, "no queries, keys and values, or gate and up, in one matrix"),
        (
            {"model_type": "phi3", "partial_rotary_factor": 0.5},
            "no rotation of only a part of each head",
        ),
        ({"model_type": "gemma2"}, "no caps on scores or logits"),
        ({"model_type": "gemma3_text", "num_hidden_layers": 6}, "no rotation by layers"),
        ({"model_type": "gemma3_text"}, "no norms but those before attention and network"),
        ({"model_type": "olmo2"}, "no norms but those before attention and network"),
        ({"model_type": "smollm3", "num_hidden_layers": 4}, "no rotation by layers"),
        ({"model_type": "qwen3_moe", "num_experts": 8}, "no mixture of experts"),
        ({"model_type": "gpt_neox"}, "unknown decoder architecture 'gpt_neox'"),
    ],
)
def test_what_a_graph_cannot_say_is_refused(config: dict[str, object], reason: str) -> None:
    found = architecture_reason({**SIZES, **config})
    assert found is not None
    assert reason in found
