"""AWQ's checkpoints (AutoAWQ, version GEMM), read without loss.

    qweight  int32 [K, N / 8]        q of 4 bits; nibble i of word c is row 8 c + ORDER[i] of W
    qzeros   int32 [groups, N / 8]   zero points, packed alike
    scales   [groups, N]

and W[n, k] = (q[k, n] - zero[g, n]) scales[g, n]. The scales of AWQ's search are folded into the
weights and the layer before, so nothing happens to the input.
"""

from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.imports.convert_modules import (
    ConvertedModule,
    ModuleFormat,
    convert_modules,
    pack_integers,
    require_parts,
)
from tercet.checkpoints.imports.importer import Importer, matches_method
from tercet.checkpoints.sources.safetensors_directory import read_json
from tercet.checkpoints.sources.safetensors_header import StoredTensor
from tercet.errors import CheckpointError, UnsupportedError

METHOD = "awq"
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_BITS = 4
_PER_WORD = 32 // _BITS


def import_awq(path: Path, out: Path, *, overwrite: bool = False) -> None:
    """Writes the packed checkpoint `out`.

    Raises:
        UnsupportedError: another version or width, negative scales.
        CheckpointError: the files are damaged, or `out` is in the way.
    """
    config = read_json(path / "config.json")
    section: dict[str, Any] = config["quantization_config"]
    version = str(section.get("version") or "gemm").lower()
    bits = section.get("bits", section.get("w_bit", _BITS))
    if version != "gemm" or bits != _BITS:
        raise UnsupportedError(
            f"{path}: AWQ version {version!r} with {bits} bits: version 'gemm' with {_BITS} "
            f"bits is read; save it so"
        )
    modules = ModuleFormat(
        method=METHOD,
        anchor="qweight",
        parts=("qweight", "qzeros", "scales"),
        convert=_module,
        count_weights=_weights,
    )
    convert_modules(modules, config, path, out, overwrite=overwrite)


def _module(module: str, parts: dict[str, Tensor]) -> ConvertedModule:
    qweight, qzeros, scales = require_parts(parts, module, "qweight", "qzeros", "scales")
    groups, rows = scales.shape
    columns = qweight.shape[0]
    words = (groups, rows // _PER_WORD)
    if tuple(qzeros.shape) != words or qweight.shape[1] != words[1] or columns % max(groups, 1):
        raise CheckpointError(
            f"{module}: qweight {list(qweight.shape)}, qzeros {list(qzeros.shape)} and scales "
            f"{list(scales.shape)} are not of one weight: copy the files again"
        )
    middle = 1 << _BITS - 1
    weight = pack_integers(
        _rows(qweight) - middle,
        scales.T.contiguous(),
        _rows(qzeros) - middle,
        columns // groups if groups > 1 else None,
        module,
    )
    return ConvertedModule(weight=weight)


def _rows(words: Tensor) -> Tensor:
    """int32 [C, N / 8] to int16 values 0..15 [N, C]."""
    shifts = torch.arange(0, 32, _BITS, dtype=torch.int32)
    nibbles = (words.unsqueeze(-1) >> shifts & 15).short()
    ordered = torch.empty_like(nibbles)
    ordered[..., list(ORDER)] = nibbles
    return ordered.flatten(1).T.contiguous()


def _weights(part: str, tensor: StoredTensor) -> int:
    return prod(tensor.shape) * _PER_WORD if part == "qweight" else 0


IMPORTER = Importer(name=METHOD, matches=matches_method(METHOD), convert=import_awq)
