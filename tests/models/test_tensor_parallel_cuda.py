"""Decoders cut over GPUs, with captured graphs and NCCL, against one process on a CPU."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rank_worker
import torch

RANKS = 2
GPUS = pytest.mark.skipif(torch.cuda.device_count() < RANKS, reason="needs two GPUs")
CASES: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "llama, plain": ("llama", None, {"head_dim": 32}),
    "llama, ternary": ("llama", "ternary-g64", {"head_dim": 32}),
    "qwen2, int4": ("qwen2", "int4-g64", {"hidden_size": 128}),
    "gemma2, nonary": ("gemma2", "nonary-g64", {"head_dim": 32, "attn_logit_softcapping": 3.0}),
    "one key-value head": ("llama", "int4-g64", {"num_key_value_heads": 1, "head_dim": 32}),
}


@pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=GPUS)])
def test_ranks_of_their_own(
    build: Callable[..., Any], source_of: Callable[..., Any], tmp_path: Path, kind: str
) -> None:
    sources = dict[str, Any]()
    for name, (model, scheme, options) in CASES.items():
        sources[name] = source = source_of(build(model, **options))
        for weight in [each for each in source.plain if each.endswith("_proj.weight") and scheme]:
            source.pack(weight.removesuffix(".weight"), scheme)
    rank_worker.save_sources(sources, tmp_path)
    command = [sys.executable, rank_worker.__file__, kind]
    processes = [
        subprocess.Popen([*command, str(rank), str(RANKS), str(tmp_path)]) for rank in range(RANKS)
    ]
    assert [process.wait() for process in processes] == [0] * RANKS
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS))
    for name, source in sources.items():
        one = rank_worker.run(source, torch.device("cpu"), None)
        limit = 1e-4 * float(one["logits"][0].abs().max())
        for mine, other in zip(first[name]["logits"], second[name]["logits"], strict=True):
            assert torch.equal(mine, other), name
            torch.testing.assert_close(mine, one["logits"][0], rtol=0, atol=limit)
        assert first[name]["greedy"] == second[name]["greedy"] == one["greedy"], name
        assert first[name]["drawn"] == second[name]["drawn"], name
        assert len(first[name]["drawn"]) == rank_worker.TOKENS
