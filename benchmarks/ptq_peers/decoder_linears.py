"""Which weights are quantized, and how their dequantized values travel between programs.

Every peer quantizes the same set: all `nn.Linear` of the decoder layers, neither the embedding nor
the head. A peer leaves behind one directory with

- `weights.safetensors`: the dequantized weights, float32 `[out_features, in_features]`, by the
  names of the teacher's parameters;
- `quantization.json`: method, options, bits per weight, seconds, library versions.
"""

import json
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

WEIGHTS_FILE = "weights.safetensors"
DESCRIPTION_FILE = "quantization.json"
LAYER_PREFIX = "model.layers."


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """What a peer did: one entry of a comparison before it is evaluated.

    `bits_per_weight` counts codes, scales and zero points of the quantized weights at their stored
    widths; `quantize_seconds` is the wall time of the library's own quantization call.
    """

    method: str
    options: dict[str, str | int | float | bool]
    bits_per_weight: float
    quantize_seconds: float
    threads: int
    calibration_hash: str | None
    versions: dict[str, str]


def decoder_linears(model: nn.Module) -> dict[str, nn.Linear]:
    """Linears of the decoder layers by module name, in the model's order."""
    return {
        name: module
        for name, module in model.named_modules()
        if name.startswith(LAYER_PREFIX) and isinstance(module, nn.Linear)
    }


def library_versions(*distributions: str) -> dict[str, str]:
    """Versions of Python and of the named installed distributions."""
    return {"python": platform.python_version()} | {name: version(name) for name in distributions}


def save_quantized(directory: Path, weights: dict[str, Tensor], done: Quantization) -> None:
    """Write `weights` (module name -> `[out, in]`) and their description; refuses non-finite ones.

    Raises:
        ValueError: a weight holds NaN or infinity, so its perplexity would be meaningless.
    """
    broken = [name for name, weight in weights.items() if not torch.isfinite(weight).all()]
    if broken:
        raise ValueError(f"{len(broken)} weights are not finite, the first is {broken[0]}")
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {f"{name}.weight": w.detach().float().contiguous() for name, w in weights.items()}
    save_file(tensors, directory / WEIGHTS_FILE)
    (directory / DESCRIPTION_FILE).write_text(json.dumps(asdict(done), indent=2) + "\n")


def load_quantized(directory: Path, student: nn.Module) -> Quantization:
    """Put the weights of `directory` into `student`, in place; every decoder linear must be there.

    Raises:
        ValueError: the names or shapes differ from the student's decoder linears.
    """
    linears = decoder_linears(student)
    tensors = load_file(directory / WEIGHTS_FILE)
    expected = {f"{name}.weight": tuple(linear.weight.shape) for name, linear in linears.items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if expected != found:
        differing = sorted(set(expected.items()) ^ set(found.items()))
        raise ValueError(f"{len(differing)} weights differ in name or shape: {differing[:4]}")
    with torch.no_grad():
        for name, linear in linears.items():
            linear.weight.copy_(tensors[f"{name}.weight"])
    return Quantization(**json.loads((directory / DESCRIPTION_FILE).read_text()))
