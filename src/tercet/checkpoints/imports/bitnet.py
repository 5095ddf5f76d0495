"""Hugging Face's bitnet checkpoints, read without loss.

    weight        uint8 [N / 4, K]   rows i, i + N/4, i + N/2, i + 3N/4 share a byte, the first in
                                     the lowest bits, each as value + 1
    weight_scale  [1]                multiplies the product ("autobitlinear") or divides it
                                     ("bitlinear")

Both round their input to int8 with one scale a token, as `int8_token` does. A divisor s becomes
the scale fl(1 / s) in float32: the values -1 / s, 0 and 1 / s in float32 are the same.
"""

from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.imports.convert_modules import (
    ConvertedModule,
    ModuleFormat,
    convert_modules,
    require_parts,
    scale_dtype,
)
from tercet.checkpoints.imports.importer import Importer, matches_method
from tercet.checkpoints.imports.restore_export import restore_export, stored_tensor
from tercet.checkpoints.packed.layout import PackedModule
from tercet.checkpoints.packed.origin import recall
from tercet.checkpoints.packed.output_directory import check_free
from tercet.checkpoints.sources.safetensors_directory import open_weights, read_json
from tercet.checkpoints.sources.safetensors_header import StoredTensor
from tercet.errors import CheckpointError, UnsupportedError
from tercet.formats import PackedTensor, from_codes, parse_scheme

METHOD = "bitnet"
_ROWS_A_BYTE = 4
_CLASSES = ("autobitlinear", "bitlinear")


def import_bitnet(path: Path, out: Path, *, overwrite: bool = False) -> None:
    """Writes the packed checkpoint `out`.

    Raises:
        UnsupportedError: weights that are quantized while loading, norms inside of the layers, a
            bias that the scale multiplies.
        CheckpointError: the files are damaged, or `out` is in the way.
    """
    config = read_json(path / "config.json")
    section: dict[str, Any] = config["quantization_config"]
    kind = str(section.get("linear_class") or "bitlinear")
    if kind not in _CLASSES:
        raise UnsupportedError(f"{path}: linear_class {kind!r}: known: {', '.join(_CLASSES)}")
    # autobitlinear quantizes master weights while it loads, unless told that they are packed
    if kind == "autobitlinear" and section.get("quantization_mode", "offline") != "offline":
        raise UnsupportedError(
            f"{path}: quantization_mode {section['quantization_mode']!r}: its weights are not "
            f"quantized yet: compress it with tercet compress {path} --to ternary-tensor"
        )
    if section.get("use_rms_norm"):
        raise UnsupportedError(
            f"{path}: use_rms_norm puts a norm inside of each linear layer, which Tercet's have not"
        )
    _, stored = open_weights(path)
    origin = recall(path)
    if origin is not None:
        check_free(out, overwrite=overwrite, resume=False)
        restore_export(path, out, origin, stored, partial(_restore, stored))
        return
    modules = ModuleFormat(
        method=METHOD,
        anchor="weight_scale",
        parts=("weight", "weight_scale"),
        convert=partial(_module, kind, set(stored)),
        count_weights=_weights,
    )
    convert_modules(modules, config, path, out, overwrite=overwrite)


def _module(kind: str, names: set[str], module: str, parts: dict[str, Tensor]) -> ConvertedModule:
    packed, scale = require_parts(parts, module, "weight", "weight_scale")
    if packed.dtype != torch.uint8 or packed.dim() != 2 or scale.numel() != 1:
        raise CheckpointError(
            f"{module}: weight {packed.dtype} {list(packed.shape)} with {scale.numel()} scales, "
            f"bytes [N / 4, K] with one scale belong there: copy the files again"
        )
    if kind == "autobitlinear" and f"{module}.bias" in names:
        raise UnsupportedError(
            f"{module}: it has a bias, which AutoBitLinear multiplies by the weight's scale"
        )
    codes = _sound(_codes(packed), module)
    scale = 1 / scale.float() if kind == "bitlinear" else scale
    dtype = scale_dtype(scale, module)
    scheme = parse_scheme("ternary-tensor" + ("" if dtype == "float16" else f"-{dtype}"))
    weight = from_codes(codes, scheme, scale.reshape(1, 1))
    return ConvertedModule(weight=weight, activation="int8_token")


def _restore(stored: dict[str, StoredTensor], module: str, entry: PackedModule) -> PackedTensor:
    packed = stored_tensor(stored, f"{module}.weight").read()
    scale = stored_tensor(stored, f"{module}.weight_scale").read()
    scale = scale.reshape(1, 1).to(entry.scheme.scaling.torch_dtype)
    return from_codes(_sound(_codes(packed), module), entry.scheme, scale)


def _sound(codes: Tensor, module: str) -> Tensor:
    if bool((codes > 2).any()):
        row, column = (int(i) for i in (codes > 2).nonzero()[0])
        raise CheckpointError(
            f"{module}: the weight at [{row}, {column}] is 2, which is not ternary: the file is "
            f"damaged, copy it again"
        )
    return codes


def _codes(packed: Tensor) -> Tensor:
    """Bytes [N / 4, K] to codes 0..3 [N, K]."""
    return torch.cat([packed >> shift & 3 for shift in range(0, 2 * _ROWS_A_BYTE, 2)])


def _weights(part: str, tensor: StoredTensor) -> int:
    packed = part == "weight" and tensor.dtype == torch.uint8
    return prod(tensor.shape) * (_ROWS_A_BYTE if packed else part == "weight")


IMPORTER = Importer(name=METHOD, matches=matches_method(METHOD), convert=import_bitnet)
