"""Tercet's own algorithms -> dequantized weights.

python quantize_tercet.py TEACHER_DIR CALIBRATION_IDS WEIGHTS_DIR --format int3-g64 \
    [--algorithm gptq] [--option refine=3 ...]
"""

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from calibration import load_calibration, token_hash
from decoder_linears import Quantization, library_versions, save_quantized
from torch import Tensor

from tercet import Plan, compress, open_packed
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.evaluate.size import measure_size
from tercet.models.input_transform import InputTransform


def effective_weight(checkpoint: PackedCheckpoint, name: str) -> Tensor:
    """Weight `[out, in]` that acts on the untransformed input as the packed layer does."""
    module = checkpoint.modules[name]
    weight = InputTransform(hadamard=module.hadamard)(checkpoint.read_packed(name).dequantize())
    return weight * checkpoint.input_scale(name) if module.input_scale else weight


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("ids", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--format", required=True)
    parser.add_argument("--algorithm", default="gptq")
    parser.add_argument("--option", action="append", default=[])
    parser.add_argument("--match-teacher", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    options = {key: json.loads(value) for key, value in (o.split("=") for o in arguments.option)}
    rule = {
        "match": "*.layers.*",
        "format": arguments.format,
        "algorithm": arguments.algorithm,
        "options": options,
    }
    calibration = {"match_teacher": arguments.match_teacher}
    plan = Plan.model_validate({"name": "comparison", "rules": [rule], "calibration": calibration})
    ids = load_calibration(arguments.ids)
    with TemporaryDirectory() as folder:
        start = time.perf_counter()
        done = compress(str(arguments.teacher), plan, Path(folder) / "packed", calibration=ids)
        seconds = time.perf_counter() - start
        checkpoint = open_packed(done.directory)
        weights = {name: effective_weight(checkpoint, name) for name in checkpoint.modules}
        bits = measure_size(checkpoint).body_bits_per_weight
    quantization = Quantization(
        method=f"tercet_{arguments.algorithm}_{arguments.format}",
        options={**plan.rules[0].parsed_options().model_dump(), **calibration},
        bits_per_weight=bits,
        quantize_seconds=round(seconds, 1),
        threads=arguments.threads,
        calibration_hash=token_hash(ids),
        versions=library_versions("torch", "transformers"),
    )
    save_quantized(arguments.weights, weights, quantization)


if __name__ == "__main__":
    main()
