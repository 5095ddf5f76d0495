"""Peak memory of compressing a drawn model beside its estimate, one record a run.

    python benchmarks/compress/memory.py qwen2-0.5b int4 --out benchmarks/compress/memory.jsonl

The model of a published shape is drawn in bfloat16 into a temporary directory, and compressed in a
process of its own by `tercet compress`. `--layers` cuts it short: the peak is that of a unit, and
all layers are alike. Calibration tokens are drawn, too.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tercet.records import Environment, Record, append

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2-0.5b": (
        "qwen2",
        {
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
            "tie_word_embeddings": True,
        },
    ),
    "smollm2-135m": (
        "llama",
        {
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 49152,
            "tie_word_embeddings": True,
        },
    ),
    "olmo2-untied": (
        "olmo2",
        {
            "hidden_size": 1024,
            "intermediate_size": 2816,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "vocab_size": 100352,
            "tie_word_embeddings": False,
        },
    ),
    "gemma3-270m": (
        "gemma3_text",
        {
            "hidden_size": 640,
            "intermediate_size": 2048,
            "num_hidden_layers": 18,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "sliding_window": 512,
            "vocab_size": 262144,
        },
    ),
}


def draw(folder: Path, name: str, layers: int | None, tokens: tuple[int, int]) -> None:
    """Writes FOLDER/model and FOLDER/tokens.safetensors."""
    kind, sizes = SHAPES[name]
    if layers is not None:
        sizes = {**sizes, "num_hidden_layers": layers}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, max_position_embeddings=4096, **sizes)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder / "model")
    ids = torch.randint(3, sizes["vocab_size"], tokens)
    save_file({"input_ids": ids}, folder / "tokens.safetensors")


def measure(name: str, plan: str, layers: int | None, tokens: tuple[int, int]) -> Record:
    """One run."""
    with TemporaryDirectory() as folder:
        draw(Path(folder), name, layers, tokens)
        command = [str(Path(sys.executable).with_name("tercet")), "compress", f"{folder}/model"]
        command += ["--to", plan, "--out", f"{folder}/out", "--json"]
        command += ["--calibration", f"{folder}/tokens.safetensors"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return Record(
        kind="compression_memory",
        subject=name,
        settings={
            "plan": plan,
            "layers": layers if layers is not None else SHAPES[name][1]["num_hidden_layers"],
            "sequences": tokens[0],
            "length": tokens[1],
        },
        metrics={
            "estimate_bytes": found["estimate_bytes"],
            "peak_bytes": found["peak_bytes"],
            "packed_bytes": found["size"]["disk_bytes"],
        },
        environment=Environment.here(),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("plan")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--sequences", type=int, default=24)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    record = measure(given.shape, given.plan, given.layers, (given.sequences, given.length))
    append(given.out, [record])
    print(json.dumps(record.model_dump(), indent=1))
