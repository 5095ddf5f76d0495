"""A compressed-tensors checkpoint into a packed one: the same codes, the same scales.

What Tercet exported comes back byte for byte. What another program made gets, module by module,
the densest element whose levels hold every value that occurs: 2-bit integers without a -2 become
ternary, 4-bit ones from -4 to 4 nonary.
"""

from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.imports.compressed_tensors.config import (
    METHOD,
    Activations,
    Group,
    Section,
    Weights,
    read_section,
)
from tercet.checkpoints.imports.compressed_tensors.tensors import FP4_STRATEGIES, restore, values
from tercet.checkpoints.imports.convert_modules import (
    ConvertedModule,
    ModuleFormat,
    convert_modules,
    densest_element,
    scale_dtype,
)
from tercet.checkpoints.imports.importer import Importer, matches_method
from tercet.checkpoints.imports.restore_export import restore_export
from tercet.checkpoints.packed.layout import PackedModule
from tercet.checkpoints.packed.origin import recall
from tercet.checkpoints.packed.output_directory import check_free
from tercet.checkpoints.sources.safetensors_directory import open_weights, read_json
from tercet.checkpoints.sources.safetensors_header import StoredTensor
from tercet.errors import CheckpointError, UnsupportedError
from tercet.formats import (
    ELEMENTS,
    Granularity,
    PackedTensor,
    Scaling,
    Scheme,
    parse_scheme,
    storage,
)

_DYNAMIC = {
    "int8_token": Activations(type="int"),
    "fp8_token": Activations(type="float"),
}
"""8 bits, symmetric, one scale a token, found at run time."""
_PARTS = (
    "weight_packed",
    "weight_scale",
    "weight_shape",
    "weight_zero_point",
    "weight_global_scale",
)


def import_compressed_tensors(path: Path, out: Path, *, overwrite: bool = False) -> None:
    """Writes the packed checkpoint `out`.

    Raises:
        UnsupportedError: a module is held in a way that no scheme has.
        CheckpointError: the files are damaged, or `out` is in the way.
    """
    config = read_json(path / "config.json")
    section = read_section(config, str(path))
    _, stored = open_weights(path)
    origin = recall(path)
    check_free(out, overwrite=overwrite, resume=False)
    if origin is not None:
        restore_export(path, out, origin, stored, partial(_restore, section, stored))
        return
    _refuse_extras(section)
    convert_modules(_module_format(section), config, path, out, overwrite=overwrite)


def _restore(
    section: Section, stored: dict[str, StoredTensor], module: str, entry: PackedModule
) -> PackedTensor:
    group = section.group(module)
    bits = group.weights.num_bits if group is not None and group.weights is not None else 8
    return restore(_read_parts(stored, module), entry.scheme, bits, module)


def _read_parts(stored: dict[str, StoredTensor], module: str) -> dict[str, Tensor]:
    names = {part: f"{module}.{part}" for part in ("weight", *_PARTS)}
    found = {part: stored[name].read() for part, name in names.items() if name in stored}
    _check_parts(found, module)
    return found


def _check_parts(found: dict[str, Tensor], module: str) -> None:
    if "weight_scale" not in found or not {"weight", "weight_packed"} & set(found):
        raise CheckpointError(f"{module}: weight or weight_scale is missing: copy the files again")
    # two 4-bit floats a byte: the shape follows
    integers = "weight_packed" in found and found["weight_packed"].dtype != torch.uint8
    if integers and "weight_shape" not in found:
        raise CheckpointError(f"{module}: weight_shape is missing: copy the files again")


def _module_format(section: Section) -> ModuleFormat:
    def count_weights(part: str, tensor: StoredTensor) -> int:
        if part == "weight_shape":
            return int(tensor.read().prod())
        if part == "weight_packed" and tensor.dtype == torch.uint8:
            return 2 * prod(tensor.shape)
        return 0 if part in _PARTS else prod(tensor.shape)

    return ModuleFormat(
        method=METHOD,
        anchor="weight_scale",
        parts=("weight", *_PARTS),
        convert=partial(_module, section),
        count_weights=count_weights,
    )


def _module(section: Section, module: str, parts: dict[str, Tensor]) -> ConvertedModule:
    group = section.group(module)
    if group is None or group.weights is None:
        raise CheckpointError(f"{module}: has a weight_scale, but no group of config.json names it")
    _check_parts(parts, module)
    weight = restore(parts, _scheme(group, parts, module), group.weights.num_bits, module)
    return ConvertedModule(weight=weight, activation=_activation(group, module))


def _scheme(group: Group, parts: dict[str, Tensor], module: str) -> Scheme:
    """The densest scheme that holds every value of the module."""
    weights = group.weights
    assert weights is not None
    whole = weights.type == "int"
    if not whole and weights.num_bits != 8:
        return _float_scheme(weights, parts, module)
    name = densest_element(values(parts, weights.num_bits)) if whole else "fp8_e4m3"
    rows, columns = weights.block_structure or (None, weights.group_size)
    grouped = weights.strategy in ("group", "block")
    scaling = Scaling(
        granularity=Granularity(weights.strategy),
        group_size=columns if grouped else None,
        block_rows=rows if weights.strategy == "block" else None,
        dtype=scale_dtype(parts["weight_scale"], module),
        zero=None if weights.symmetric else "int8",
    )
    return Scheme(element=ELEMENTS[name], scaling=scaling, storage=storage(ELEMENTS[name].storage))


def _float_scheme(weights: Weights, parts: dict[str, Tensor], module: str) -> Scheme:
    """mxfp4 or nvfp4."""
    for name, strategy in FP4_STRATEGIES.items():
        scheme = parse_scheme(name)
        held = (weights.num_bits, weights.strategy, weights.group_size)
        if held == (4, strategy, scheme.scaling.group_size) and "weight_packed" in parts:
            return scheme
    raise UnsupportedError(
        f"{module}: floats of {weights.num_bits} bits by {weights.strategy} of "
        f"{weights.group_size} are not read; 8 bits are, and {' and '.join(FP4_STRATEGIES)}"
    )


def _activation(group: Group, module: str) -> Any:
    given = group.input_activations
    if given is None:
        return None
    for name, dynamic in _DYNAMIC.items():
        if given == dynamic:
            return name
    raise UnsupportedError(
        f"{module}: its inputs are quantized as {given.model_dump()}; Tercet knows dynamic int8 "
        f"and fp8 with one scale a token"
    )


def _refuse_extras(section: Section) -> None:
    if section.kv_cache_scheme or section.transform_config:
        raise UnsupportedError(
            "the checkpoint quantizes its key-value cache or rotates its inputs; Tercet imports "
            "checkpoints whose linear layers alone are quantized"
        )
    if any(group.output_activations for group in section.config_groups.values()):
        raise UnsupportedError("the checkpoint quantizes outputs of layers, which Tercet does not")


IMPORTER = Importer(name=METHOD, matches=matches_method(METHOD), convert=import_compressed_tensors)
