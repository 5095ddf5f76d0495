"""Mixtures of experts in the lean decoder, against transformers on the same packed checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.olmoe import OlmoeConfig
from transformers.models.qwen2_moe import Qwen2MoeConfig
from transformers.models.qwen3_moe import Qwen3MoeConfig

from tercet.checkpoints.packed.read import open_packed
from tercet.checkpoints.packed.stream import stream_weights
from tercet.compress.pipeline import compress
from tercet.compress.plan import Plan
from tercet.errors import CheckpointError, UnsupportedError
from tercet.models import Decoder
from tercet.models.architectures import find_architecture
from tercet.models.decoder.config import read_config
from tercet.workflows.evaluation import student

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
QWEN2: dict[str, Any] = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}
QWEN3: dict[str, Any] = {"moe_intermediate_size": 32, "head_dim": 16}
CASES: dict[str, Any] = {
    "qwen2_moe": Qwen2MoeConfig(**SIZES, **QWEN2),
    "qwen2_moe, normalized, some layers dense": Qwen2MoeConfig(
        **SIZES, **QWEN2, norm_topk_prob=True, mlp_only_layers=[1], tie_word_embeddings=True
    ),
    "qwen2_moe, window": Qwen2MoeConfig(
        **SIZES, **QWEN2, use_sliding_window=True, sliding_window=5, max_window_layers=2
    ),
    "qwen3_moe": Qwen3MoeConfig(**SIZES, **QWEN3, norm_topk_prob=True),
    "qwen3_moe, every other layer, biases": Qwen3MoeConfig(
        **SIZES, **QWEN3, decoder_sparse_step=2, attention_bias=True
    ),
    "qwen3_moe, window": Qwen3MoeConfig(
        **SIZES, **QWEN3, use_sliding_window=True, sliding_window=5
    ),
    "olmoe": OlmoeConfig(**SIZES),
    "olmoe, one expert a token": OlmoeConfig(**{**SIZES, "num_experts_per_tok": 1}),
}
FORMS = {
    "plain": {"format": "int4-g32", "algorithm": "rtn"},
    "trits": {"format": "ternary-g32", "algorithm": "rtn"},
    "rotated": {"format": "int8-g32", "algorithm": "hadamard"},
}


def pack(config: Any, folder: Path, *rules: dict[str, Any]) -> Path:
    torch.manual_seed(11)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    model.save_pretrained(folder / "source")
    plan = Plan.model_validate({"name": "tried", "rules": list(rules)})
    tokens = torch.randint(3, 96, (8, 16), generator=torch.Generator().manual_seed(1))
    compress(folder / "source", plan, folder / "packed", calibration=tokens, device="cpu")
    return folder / "packed"


def opened(directory: Path, device: str = "cpu") -> Decoder:
    with stream_weights(open_packed(directory)) as weights:
        return Decoder.from_checkpoint(weights, torch.float32, device)


def expected(directory: Path, ids: Tensor) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        return model(input_ids=ids).logits


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(3, 96, (2, 19), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_as_in_transformers(case: str, form: str, tmp_path: Path, ids: Tensor) -> None:
    packed = pack(CASES[case], tmp_path, {"match": "*layers*", **FORMS[form]})
    decoder, wanted = opened(packed), expected(packed, ids)
    torch.testing.assert_close(decoder.logits(ids), wanted, atol=1e-4, rtol=1e-4)
    cache, found = decoder.cache(batch=2), list[Tensor]()
    for cut in ids.split([9, 1, 1, 1, 1, 6], 1):
        found.append(decoder.extend(cut, cache))
    ends = torch.tensor([9, 10, 11, 12, 13, 19]) - 1
    torch.testing.assert_close(torch.stack(found, 1), wanted[:, ends], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("case", ["qwen2_moe", "qwen3_moe", "olmoe"])
def test_the_step_of_a_gpu(case: str, tmp_path: Path, ids: Tensor) -> None:
    packed = pack(CASES[case], tmp_path, {"match": "*layers*", **FORMS["plain"]})
    decoder, wanted = opened(packed), expected(packed, ids)
    cache = decoder.cache(2)
    with torch.inference_mode():
        decoder.extend(ids[:, :12], cache)
        for place in range(12, 19):
            cache.reserve(cache.length + 1)
            step = decoder.token_step(2, cache.capacity)
            lengths = torch.full((2,), cache.length + 1, dtype=torch.int32)
            found = step(ids[:, place], lengths, *cache.all_positions())
            cache.extend(1)
            torch.testing.assert_close(found, wanted[:, place], atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("case", ["qwen2_moe", "qwen3_moe", "olmoe"])
def test_on_a_gpu(case: str, tmp_path: Path, ids: Tensor) -> None:
    packed = pack(CASES[case], tmp_path, {"match": "*layers*", **FORMS["plain"]})
    decoder, wanted = opened(packed, "cuda"), expected(packed, ids)
    # from the second time on a captured graph
    for _ in range(3):
        torch.testing.assert_close(decoder.logits(ids).cpu(), wanted, atol=1e-4, rtol=1e-4)
    cache = decoder.cache(2)
    decoder.extend(ids[:, :12], cache)
    # a single token is a captured graph
    for place in range(12, 19):
        found = decoder.extend(ids[:, place : place + 1], cache).cpu()
        torch.testing.assert_close(found, wanted[:, place], atol=1e-4, rtol=1e-4)


def test_experts_that_are_not_packed_alike_are_left_to_transformers(
    tmp_path: Path, ids: Tensor
) -> None:
    rules = {"match": "*layers*", **FORMS["plain"]}
    kept = pack(
        CASES["qwen3_moe"], tmp_path / "kept", {"match": "*.experts.3.*", "keep": True}, rules
    )
    with pytest.raises(UnsupportedError, match=r"experts\.3\.gate_proj is not packed"):
        opened(kept)
    mixed = {"match": "*.experts.3.*", "format": "int8-g32", "algorithm": "rtn"}
    other = pack(CASES["qwen3_moe"], tmp_path / "other", mixed, rules)
    with pytest.raises(UnsupportedError, match="experts of a layer are multiplied as one"):
        opened(other)
    for packed in (kept, other):
        found = student(str(packed), torch.device("cpu"))(ids)
        torch.testing.assert_close(found, expected(packed, ids), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 7}, "num_experts_per_tok 7 is more than the 6 experts"),
        ({"num_experts": 0}, "num_experts 0: must be a whole number above 0"),
        ({"mlp_only_layers": 3}, "mlp_only_layers 3: must be a list of layers"),
    ],
)
def test_a_wrong_config_is_named(changes: dict[str, object], message: str) -> None:
    config = {**SIZES, **QWEN3, "model_type": "qwen3_moe", **changes}
    with pytest.raises(CheckpointError, match=message):
        read_config(find_architecture(config), config)


def test_clipped_projections_are_refused() -> None:
    config = {**SIZES, "model_type": "olmoe", "clip_qkv": 8.0}
    with pytest.raises(UnsupportedError, match="clip_qkv: the decoder does not clip"):
        read_config(find_architecture(config), config)
