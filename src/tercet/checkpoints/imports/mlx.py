"""MLX's checkpoints (mlx-lm): a packed weight as their tensors, and back, nothing rounded.

    weight   uint32 [N, K b / 32]  codes of b bits, the first in the lowest bits, without holes
    scales   [N, K / g]            g = 32, 64 or 128
    biases   [N, K / g]            W = code * scale + bias

and with the mode "mxfp4" codes of fp4 e2m1, scales that are exponents in uint8, no biases. Bits,
group and mode stand under `quantization` in config.json, for all modules or for one by its name.

What Tercet exported comes back byte for byte. What mlx-lm quantized itself has biases that are no
whole multiples of the scales, which no scheme holds: that is refused.
"""

from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.imports.compressed_tensors.tensors import pack_words, unpack_words
from tercet.checkpoints.imports.convert_modules import (
    ConvertedModule,
    ModuleFormat,
    convert_modules,
    pack_integers,
    require_parts,
)
from tercet.checkpoints.imports.grouped_integers import (
    GroupedIntegers,
    from_integers,
    to_integers,
)
from tercet.checkpoints.imports.importer import CONFIG_NAME, Importer
from tercet.checkpoints.imports.restore_export import read_parts, restore_export
from tercet.checkpoints.packed.layout import PackedModule
from tercet.checkpoints.packed.origin import recall
from tercet.checkpoints.packed.output_directory import check_free
from tercet.checkpoints.sources.safetensors_directory import open_weights, read_json
from tercet.checkpoints.sources.safetensors_header import StoredTensor
from tercet.errors import CheckpointError, UnsupportedError
from tercet.formats import PackedTensor, from_codes, parse_scheme

METHOD = "mlx"
SECTION = "quantization"
AFFINE, MXFP4 = "affine", "mxfp4"
BITS = {
    "ternary": 2,
    "int2": 2,
    "int3": 3,
    "nonary": 4,
    "int4": 4,
    "int5": 5,
    "int6": 6,
    "int8": 8,
}
"""Bits of a code of each element."""
_PARTS = ("weight", "scales", "biases")


def import_mlx(path: Path, out: Path, *, overwrite: bool = False) -> None:
    """Writes the packed checkpoint `out`.

    Raises:
        UnsupportedError: another mode, or biases that are no whole multiples of the scales.
        CheckpointError: the files are damaged, or `out` is in the way.
    """
    config = read_json(path / CONFIG_NAME)
    section = config.pop(SECTION)
    _, stored = open_weights(path)
    origin = recall(path)
    if origin is not None:
        check_free(out, overwrite=overwrite, resume=False)
        restore = partial(_restore, section, stored)
        restore_export(path, out, origin, stored, restore, anchor="scales")
        return
    layout = ModuleFormat(
        method=METHOD,
        anchor="scales",
        parts=_PARTS,
        convert=partial(_module, section),
        count_weights=partial(_count_weights, section),
    )
    convert_modules(layout, config, path, out, overwrite=overwrite)


def store_affine(weight: PackedTensor, group: int) -> dict[str, Tensor]:
    """The tensors of a weight of integer levels, by the end of their names.

    Args:
        weight: with scales per tensor, channel or group of a multiple of `group` columns.
        group: columns of one scale there; divides the columns.
    """
    lowest, bits = int(weight.scheme.element.lowest), BITS[weight.scheme.element.name]
    found = to_integers(weight, weight.shape[1] // group, weight.scale.dtype)
    scale, bias = with_biases(found.scale, found.zero, lowest)
    codes = (found.values - lowest).to(torch.uint8)
    return {"weight": pack_words(codes, bits).view(torch.uint32), "scales": scale, "biases": bias}


def with_biases(scale: Tensor, zero: Tensor | None, lowest: int) -> tuple[Tensor, Tensor]:
    """Scales and the biases of their groups; both float32 where the scales' dtype is too coarse.

    Args:
        scale: floating point.
        zero: zero points, whole numbers like scale; None for none.
        lowest: the level of code 0.
    """
    steps = lowest - (0 if zero is None else zero.double())
    exact = scale.double() * steps
    bias = exact.to(scale.dtype)
    if torch.equal(bias.double(), exact):
        return scale, bias
    return scale.float(), exact.float()


def store_mxfp4(weight: PackedTensor) -> dict[str, Tensor]:
    """The tensors of a weight in mxfp4."""
    words = pack_words(weight.unpack(), 4).view(torch.uint32)
    return {"weight": words, "scales": weight.scale.view(torch.uint8)}


def module_settings(section: dict[str, Any], module: str) -> tuple[int, int, str]:
    """(bits, group, mode) of a module.

    Raises:
        CheckpointError: the section does not say.
    """
    found: dict[str, Any] = section.get(module) or section
    bits, group = found.get("bits"), found.get("group_size")
    if not isinstance(bits, int) or not isinstance(group, int) or not 0 < bits <= 8 or group < 1:
        raise CheckpointError(
            f"{CONFIG_NAME}: {SECTION} gives bits {bits!r} and group_size {group!r} for {module}: "
            f"whole numbers belong there"
        )
    return bits, group, str(found.get("mode", AFFINE))


def _restore(
    section: dict[str, Any], stored: dict[str, StoredTensor], module: str, entry: PackedModule
) -> PackedTensor:
    parts = read_parts(stored, module, _PARTS)
    if entry.format == MXFP4:
        return _floats(section, module, parts)
    found = _integers(section, module, parts, int(entry.scheme.element.lowest))
    return from_integers(found, entry.scheme, module)


def _module(section: dict[str, Any], module: str, parts: dict[str, Tensor]) -> ConvertedModule:
    bits, group, mode = module_settings(section, module)
    if mode == MXFP4:
        return ConvertedModule(weight=_floats(section, module, parts))
    if mode != AFFINE:
        raise UnsupportedError(f"{module}: mode {mode!r} is not read; {AFFINE} and {MXFP4} are")
    found = _integers(section, module, parts, -(1 << bits - 1))
    return ConvertedModule(
        weight=pack_integers(found.values, found.scale, found.zero, group, module)
    )


def _floats(section: dict[str, Any], module: str, parts: dict[str, Tensor]) -> PackedTensor:
    codes, (scales,) = _codes(section, module, parts, "scales")
    return from_codes(codes, parse_scheme(MXFP4), scales.view(torch.float8_e8m0fnu))


def _integers(
    section: dict[str, Any], module: str, parts: dict[str, Tensor], lowest: int
) -> GroupedIntegers:
    """With code 0 standing for `lowest`; a negative scale turns the codes of its group round."""
    codes, (scales, biases) = _codes(section, module, parts, "scales", "biases")
    bits, group, _ = module_settings(section, module)
    last, negative = (1 << bits) - 1, scales < 0
    scale, bias = scales.abs(), biases.double()
    # W = (v - z) |s|: v = code + lowest and z = lowest - b / |s|, or v = last - code + lowest and
    # z = lowest + last - b / |s| where s < 0
    multiple = torch.where(scale > 0, bias / scale.double(), 0.0).round()
    zero = lowest + negative * last - multiple
    whole = bool((multiple * scale.double() == bias).all())
    if not whole or not bool(((zero >= -128) & (zero <= 127)).all()):
        raise UnsupportedError(
            f"{module}: its biases are no whole multiples of its scales, as mlx-lm's own "
            f"quantization leaves them, and no scheme holds that: compress the original model"
        )
    turned = negative.repeat_interleave(group, 1)
    values = torch.where(turned, last - codes.short(), codes.short()) + lowest
    return GroupedIntegers(values=values, zero=zero.short(), scale=scale)


def _codes(
    section: dict[str, Any], module: str, parts: dict[str, Tensor], *names: str
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """uint8 codes [N, K], and the parts of those names, each [N, K / g]."""
    words, *others = require_parts(parts, module, "weight", *names)
    bits, group, _ = module_settings(section, module)
    rows, columns = words.shape[0], words.shape[1] * 32 // bits
    if any(list(one.shape) != [rows, columns // group] for one in others) or columns % group:
        shapes = ", ".join(f"{n} {list(t.shape)}" for n, t in zip(names, others, strict=True))
        raise CheckpointError(
            f"{module}: weight {list(words.shape)} and {shapes} are not of one weight in {bits} "
            f"bits and groups of {group}: copy the files again"
        )
    return unpack_words(words.view(torch.int32), bits, columns), tuple(others)


def _count_weights(section: dict[str, Any], part: str, tensor: StoredTensor) -> int:
    if part != "weight":
        return 0
    if tensor.dtype != torch.uint32:
        return prod(tensor.shape)
    # a tensor's module is not told: where widths differ, this is by the width of most
    return prod(tensor.shape) * 32 // module_settings(section, "all modules")[0]


def _matches(path: Path) -> bool:
    if not (path / CONFIG_NAME).is_file():
        return False
    config = read_json(path / CONFIG_NAME)
    section, other = config.get(SECTION), config.get("quantization_config")
    named: Any = other.get("quant_method") if isinstance(other, dict) else None  # pyright: ignore[reportUnknownVariableType]
    return isinstance(section, dict) and "bits" in section and named is None


IMPORTER = Importer(name=METHOD, matches=_matches, convert=import_mlx)
