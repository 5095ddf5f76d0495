"""The estimate of memory follows from the structure of the model and the plan."""

import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tercet.compress import memory
from tercet.compress.allocator import return_freed_memory
from tercet.compress.pipeline import Progress, compress
from tercet.compress.plan import Plan

WIDTH, INNER, VOCABULARY = 64, 160, 4096
LAYER = 4 * WIDTH * WIDTH + 3 * WIDTH * INNER + 2 * WIDTH


class Planned(Exception):
    """Ends a run once its estimate is known."""


def estimate_of(
    tmp_path: Path,
    *,
    tied: bool = True,
    algorithm: str = "gptq",
    teacher: float = 0.5,
    sequences: int = 4,
    dtype: torch.dtype = torch.bfloat16,
) -> memory.Estimate:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
    )
    LlamaForCausalLM(config).to(dtype).save_pretrained(tmp_path / "model")
    rules = [
        {"match": "*embed_tokens", "format": "int8-channel", "algorithm": "rtn"},
        {"match": "*", "format": "int8-channel", "algorithm": algorithm},
    ]
    plan: Any = {"name": "x", "calibration": {"match_teacher": teacher}, "rules": rules}
    found: list[memory.Estimate] = []

    def planned(one: memory.Estimate, _: list[str]) -> None:
        found.append(one)
        raise Planned

    tokens = torch.randint(3, VOCABULARY, (sequences, 16))
    with pytest.raises(Planned):
        compress(
            tmp_path / "model",
            Plan.model_validate(plan),
            tmp_path / "out",
            calibration=tokens,
            device="cpu",
            progress=Progress(planned=planned),
        )
    return found[0]


def test_a_tied_embedding_takes_most_of_a_small_model(tmp_path: Path) -> None:
    found = estimate_of(tmp_path)
    floats = 4 * (VOCABULARY * WIDTH + WIDTH)
    packed = VOCABULARY * WIDTH + 2 * VOCABULARY
    assert found.unit_bytes == floats + packed
    # both streams' hidden states, and blocks of rows in work
    assert found.activation_bytes == 4 * 2 * 4 * 16 * WIDTH
    assert found.statistics_bytes == 2 * floats
    whole = 2 * (VOCABULARY * WIDTH + WIDTH + 3 * LAYER)
    assert (found.source_bytes, found.kept_bytes) == (whole, whole)
    parts = floats + packed + found.activation_bytes + found.statistics_bytes
    assert found.total_bytes == found.process_bytes + parts + whole


def test_a_head_of_its_own_takes_its_weights_and_what_they_aim_at(tmp_path: Path) -> None:
    found = estimate_of(tmp_path, tied=False)
    packed = VOCABULARY * WIDTH + 2 * VOCABULARY
    assert found.unit_bytes == 4 * (3 * VOCABULARY * WIDTH + WIDTH) + packed
    assert estimate_of(tmp_path, tied=False, teacher=0.0).unit_bytes < found.unit_bytes


def test_many_tokens_make_a_layer_take_most(tmp_path: Path) -> None:
    count = 4096
    found = estimate_of(tmp_path, sequences=count)
    # the streams, the residual and what `down_proj` reads; of the uncompressed model what q, k, v
    # and o, and gate and up, read, and what `down_proj` makes; one batch of the layer's outputs
    each = 2 * WIDTH + WIDTH + INNER + WIDTH + WIDTH
    inside = 4 * WIDTH + 2 * INNER + WIDTH
    assert found.activation_bytes == 4 * (count * 16 * each + 1024 * inside)
    packed = sum(r * c + 2 * r for r, c in [(64, 64)] * 4 + [(INNER, 64)] * 2 + [(64, INNER)])
    assert found.unit_bytes == 2 * 4 * LAYER + packed
    # the embedding is released by then
    assert found.source_bytes == 2 * 3 * LAYER


def test_a_large_source_is_kept_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_SMALL_SOURCE", 0)
    found = estimate_of(tmp_path, dtype=torch.float32)
    assert found.kept_bytes == found.unit_bytes // 2
    monkeypatch.setattr(memory, "free_bytes", lambda: 4000)
    assert estimate_of(tmp_path).kept_bytes == 1000


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_freed_memory_goes_back_to_the_system() -> None:
    def resident() -> int:
        return psutil.Process().memory_info().rss

    # from now on glibc takes blocks of less than this from its heap, and keeps them there
    torch.ones(7 << 20)
    held = [torch.ones(1 << 18) for _ in range(400)]
    kept = held[::2]
    del held
    before = resident()
    return_freed_memory()
    assert len(kept) == 200
    assert before - resident() > 150 << 20
