"""HQQ (data-free): teacher -> dequantized weights.

python quantize_hqq.py TEACHER_DIR WEIGHTS_DIR --bits 4 [--axis 1] [--solver default]
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from decoder_linears import Quantization, decoder_linears, library_versions, save_quantized
from hqq.core.optimize import optimize_weights_proximal_legacy, optimize_weights_proximal_slow
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear, Quantizer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

GROUP = 64
SCALE_AND_ZERO_BITS = 16 + 16
SOLVERS: dict[str, Callable[..., tuple[Tensor, Tensor, Tensor]]] = {
    "default": optimize_weights_proximal_legacy,
    "slow": optimize_weights_proximal_slow,
}


def quantize(linear: nn.Linear, bits: int, axis: int) -> Tensor:
    """Dequantized weight `[out, in]` of the library's own layer with its default configuration.

    Scales and zero points stay in float32 (the library's half precision would only cost quality).
    """
    config = BaseQuantizeConfig(nbits=bits, group_size=GROUP, axis=axis)
    layer = HQQLinear(linear, config, compute_dtype=torch.float32, device="cpu", del_orig=False)
    return layer.dequantize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--bits", type=int, required=True)
    parser.add_argument("--axis", type=int, default=1)
    parser.add_argument("--solver", choices=sorted(SOLVERS), default="default")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    Quantizer.optimize_weights = SOLVERS[arguments.solver]

    model = AutoModelForCausalLM.from_pretrained(arguments.teacher, dtype=torch.float32)
    start = time.perf_counter()
    weights = {
        name: quantize(linear, arguments.bits, arguments.axis)
        for name, linear in decoder_linears(model).items()
    }
    seconds = time.perf_counter() - start
    done = Quantization(
        method=f"hqq_w{arguments.bits}_g{GROUP}",
        options={"axis": arguments.axis, "solver": arguments.solver, "symmetric": False},
        bits_per_weight=arguments.bits + SCALE_AND_ZERO_BITS / GROUP,
        quantize_seconds=round(seconds, 1),
        threads=arguments.threads,
        calibration_hash=None,
        versions=library_versions("torch", "transformers", "hqq"),
    )
    save_quantized(arguments.weights, weights, done)


if __name__ == "__main__":
    main()
