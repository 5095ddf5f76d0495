"""GPTQ of llm-compressor: teacher and calibration tokens -> dequantized weights.

python quantize_llmcompressor.py TEACHER_DIR IDS.safetensors WEIGHTS_DIR --bits 3
    [--observer memoryless_minmax|memoryless_mse|imatrix_mse] [--actorder static|none]

Symmetric, group 64, all linears but the head; every other option is the library's default. Scales
stay in float32: rounded to the 16 bits that are counted, the result could only be worse.
"""

import argparse
import time
from pathlib import Path

import torch
from calibration import load_calibration, token_hash
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from decoder_linears import Quantization, decoder_linears, library_versions, save_quantized
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

GROUP = 64
SCALE_BITS = 16
OBSERVERS = ("memoryless_minmax", "memoryless_mse", "imatrix_mse")


def modifier(bits: int, observer: str, actorder: str | None) -> GPTQModifier:
    """The library's GPTQ with its own defaults for block size (128) and damping (0.01)."""
    # strict: without importance data the imatrix observer would fall back to plain MSE in silence
    options = {"strict": True} if observer == "imatrix_mse" else {}
    weights = QuantizationArgs(
        num_bits=bits,
        symmetric=True,
        strategy="group",
        group_size=GROUP,
        observer=observer,
        observer_kwargs=options,
    )
    groups = {"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}
    return GPTQModifier(config_groups=groups, ignore=["lm_head"], actorder=actorder)


def batches(ids: Tensor) -> DataLoader[dict[str, Tensor]]:
    """One sequence a batch, in order, nothing masked."""
    rows = [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in ids]
    return DataLoader(rows, batch_size=1, shuffle=False)  # pyright: ignore[reportArgumentType]


def check_codes(name: str, linear: nn.Linear, bits: int) -> None:
    """Every weight is its group's scale times an integer of `bits` bits.

    Raises:
        ValueError: it is not, so the library did not store what it claims.
    """
    scales = linear.weight_scale.repeat_interleave(GROUP, dim=1)
    codes = linear.weight / scales
    off_grid = (codes - codes.round()).abs().max().item()
    low, high = codes.min().item(), codes.max().item()
    half = 2 ** (bits - 1)
    if off_grid > 1e-3 or round(low) < -half or round(high) > half - 1:
        raise ValueError(f"{name}: codes from {low} to {high}, off the grid by {off_grid}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("calibration", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--bits", type=int, required=True)
    parser.add_argument("--observer", choices=OBSERVERS, default=OBSERVERS[0])
    parser.add_argument("--actorder", choices=("static", "none"), default="static")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    ids = load_calibration(arguments.calibration)
    model = AutoModelForCausalLM.from_pretrained(arguments.teacher, dtype=torch.float32)
    actorder = None if arguments.actorder == "none" else arguments.actorder
    start = time.perf_counter()
    oneshot(
        model=model,
        dataset=batches(ids),
        recipe=modifier(arguments.bits, arguments.observer, actorder),
        num_calibration_samples=len(ids),
        max_seq_length=ids.shape[1],
        pipeline="sequential",
    )
    seconds = time.perf_counter() - start
    linears = decoder_linears(model)
    for name, linear in linears.items():
        check_codes(name, linear, arguments.bits)
    done = Quantization(
        method=f"llmcompressor_gptq_w{arguments.bits}_g{GROUP}",
        options={
            "observer": arguments.observer,
            "actorder": arguments.actorder,
            "symmetric": True,
        },
        bits_per_weight=arguments.bits + SCALE_BITS / GROUP,
        quantize_seconds=round(seconds, 1),
        threads=arguments.threads,
        calibration_hash=token_hash(ids),
        versions=library_versions("torch", "transformers", "llmcompressor", "compressed-tensors"),
    )
    save_quantized(arguments.weights, {n: linear.weight for n, linear in linears.items()}, done)


if __name__ == "__main__":
    main()
