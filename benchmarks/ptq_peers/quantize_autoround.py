"""AutoRound: teacher and calibration tokens -> dequantized weights.

python quantize_autoround.py TEACHER_DIR IDS.safetensors WEIGHTS_DIR --bits 2 [--iters 200]
    [--device cpu]

Symmetric, group 64; 200 iterations a layer are the library's default, on a CPU a matter of hours.
"""

import argparse
import time
from pathlib import Path

import torch
from auto_round import AutoRound
from calibration import load_calibration, token_hash
from decoder_linears import Quantization, decoder_linears, library_versions, save_quantized
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

GROUP = 64
SCALE_BITS = 16
BATCH = 8


def tune(teacher: Path, ids: Tensor, bits: int, iters: int, device: str) -> nn.Module:
    """The tuned model with dequantized weights, in float32 throughout."""
    rows = [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in ids]
    tuner = AutoRound(
        AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32),
        tokenizer=AutoTokenizer.from_pretrained(teacher),
        scheme=f"W{bits}A16G{GROUP}",
        sym=True,
        iters=iters,
        nsamples=len(ids),
        seqlen=ids.shape[1],
        batch_size=BATCH,
        dataset=DataLoader(rows, batch_size=BATCH),  # pyright: ignore[reportArgumentType]
        device_map=device,
        amp=False,
        enable_torch_compile=False,
    )
    model, _ = tuner.quantize()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("calibration", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--bits", type=int, required=True)
    parser.add_argument("--iters", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    ids = load_calibration(arguments.calibration)
    start = time.perf_counter()
    model = tune(arguments.teacher, ids, arguments.bits, arguments.iters, arguments.device)
    seconds = time.perf_counter() - start
    done = Quantization(
        method=f"autoround_w{arguments.bits}_g{GROUP}",
        options={"iters": arguments.iters, "symmetric": True},
        bits_per_weight=arguments.bits + SCALE_BITS / GROUP,
        quantize_seconds=round(seconds, 1),
        threads=arguments.threads,
        calibration_hash=token_hash(ids),
        versions=library_versions("torch", "transformers", "auto-round"),
    )
    weights = {name: linear.weight.cpu() for name, linear in decoder_linears(model).items()}
    save_quantized(arguments.weights, weights, done)


if __name__ == "__main__":
    main()
