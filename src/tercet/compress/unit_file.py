"""Unit file: what of a quantized unit is stored, and the same read back."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from safetensors import torch as safetensors_torch
from torch import Tensor

from tercet.checkpoints.packed.layout import ModuleInfo, PackedModule
from tercet.compress.algorithm import Quantized
from tercet.compress.plan import Rule
from tercet.formats import PackedTensor
from tercet.models.input_transform import InputTransform


def stored_parts(
    quantized: Mapping[str, Quantized],
    rules: Mapping[str, Rule],
    weight: Callable[[str], Tensor],
) -> tuple[dict[str, Tensor], dict[str, PackedModule], dict[str, ModuleInfo]]:
    """The tensors by stored name; each module's entry; and how it came about.

    Args:
        quantized, rules: by module.
        weight: the original weight [N, K] of a module.
    """
    tensors: dict[str, Tensor] = {}
    entries: dict[str, PackedModule] = {}
    modules: dict[str, ModuleInfo] = {}
    for name, result in quantized.items():
        rule = rules[name]
        for part, tensor in result.packed.parts().items():
            tensors[f"{name}.weight_{part}"] = tensor.cpu()
        if result.input_scale is not None:
            tensors[f"{name}.input_scale"] = result.input_scale.to(torch.float16).cpu()
        entries[name] = PackedModule(
            format=result.packed.scheme.name,
            shape=result.packed.shape,
            activation=result.activation,  # pyright: ignore[reportArgumentType]
            hadamard=result.hadamard,
            input_scale=result.input_scale is not None,
        )
        modules[name] = ModuleInfo(
            format=result.packed.scheme.name,
            algorithm=rule.algorithm,
            options=rule.parsed_options().model_dump(),
            relative_error=relative_error(weight(name), result),
        )
    return tensors, entries, modules


def read_back(path: Path, entries: dict[str, PackedModule]) -> dict[str, Quantized]:
    """The modules of a unit, as they were quantized. FormatError where a tensor is damaged."""
    tensors = safetensors_torch.load_file(path)
    results: dict[str, Quantized] = {}
    for name, entry in entries.items():
        packed = PackedTensor(
            codes=tensors[f"{name}.weight_packed"],
            scale=tensors[f"{name}.weight_scale"],
            zero=tensors.get(f"{name}.weight_zero"),
            second=tensors.get(f"{name}.weight_second"),
            scheme=entry.scheme,
            shape=entry.shape,
        )
        packed.validate(name)
        scale = tensors.get(f"{name}.input_scale")
        results[name] = Quantized(
            packed=packed,
            input_scale=scale.float() if scale is not None else None,
            hadamard=entry.hadamard,
            activation=entry.activation,
        )
    return results


def read_vectors(path: Path, parameters: Iterable[str]) -> dict[str, Tensor]:
    """Of these parameters the vectors that a unit stores: norms and biases."""
    with cast(Any, safe_open)(str(path), "pt") as file:
        stored = set(file.keys())
        found = {name: file.get_tensor(name) for name in parameters if name in stored}
    return {name: value for name, value in found.items() if value.ndim == 1}


def relative_error(weight: Tensor, result: Quantized) -> float:
    """|W - Q|_F / |W|_F, Q taken back to the basis of W."""
    total = apart = 0.0
    for rows, restored in result.packed.dequantize_by_rows():
        if result.hadamard is not None:
            restored = InputTransform(hadamard=result.hadamard)(restored)
        if result.input_scale is not None:
            restored = restored * result.input_scale
        total += float(weight[rows].square().sum(dtype=torch.float64))
        apart += float((weight[rows] - restored).square_().sum(dtype=torch.float64))
    return (apart / total) ** 0.5 if total else 0.0
