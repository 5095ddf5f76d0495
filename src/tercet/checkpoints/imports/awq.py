"""AWQ's checkpoints (AutoAWQ, version GEMM), read without loss.

    qweight  int32 [K, N / 8]        q of 4 bits; nibble i of word c is row 8 c + ORDER[i] of W
    qzeros   int32 [groups, N / 8]   zero points, packed alike
    scales   [groups, N]

and W[n, k] = (q[k, n] - zero[g, n]) scales[g, n]. The scales of AWQ's search are folded into the
weights and the layer before, so nothing happens to the input.

What Tercet exported comes back byte for byte.
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
    pack_integers,
    require_parts,
)
from tercet.checkpoints.imports.grouped_integers import GroupedIntegers, from_integers
from tercet.checkpoints.imports.importer import Importer, matches_method
from tercet.checkpoints.imports.restore_export import read_parts, restore_export
from tercet.checkpoints.packed.layout import PackedModule
from tercet.checkpoints.packed.origin import recall
from tercet.checkpoints.packed.output_directory import check_free
from tercet.checkpoints.sources.safetensors_directory import open_weights, read_json
from tercet.checkpoints.sources.safetensors_header import StoredTensor
from tercet.errors import CheckpointError, UnsupportedError
from tercet.formats import PackedTensor

METHOD = "awq"
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
BITS = 4
_PER_WORD = 32 // BITS
_PARTS = ("qweight", "qzeros", "scales")


def import_awq(path: Path, out: Path, *, overwrite: bool = False) -> None:
    """Writes the packed checkpoint `out`.

    Raises:
        UnsupportedError: another version or width, negative scales.
        CheckpointError: the files are damaged, or `out` is in the way.
    """
    config = read_json(path / "config.json")
    section: dict[str, Any] = config["quantization_config"]
    version = str(section.get("version") or "gemm").lower()
    bits = section.get("bits", section.get("w_bit", BITS))
    if version != "gemm" or bits != BITS:
        raise UnsupportedError(
            f"{path}: AWQ version {version!r} with {bits} bits: version 'gemm' with {BITS} "
            f"bits is read; save it so"
        )
    origin = recall(path)
    if origin is not None:
        check_free(out, overwrite=overwrite, resume=False)
        _, stored = open_weights(path)
        restore_export(path, out, origin, stored, partial(_restore, stored), anchor="scales")
        return
    modules = ModuleFormat(
        method=METHOD,
        anchor="qweight",
        parts=_PARTS,
        convert=_module,
        count_weights=_weights,
    )
    convert_modules(modules, config, path, out, overwrite=overwrite)


def store_awq(weight: GroupedIntegers) -> dict[str, Tensor]:
    """The tensors of a weight [N, K], N a multiple of 8, by the end of their names.

    Args:
        weight: values and zero points from -8 to 7.
    """
    middle = 1 << BITS - 1
    return {
        "qweight": _words(weight.values + middle),
        "qzeros": _words(weight.zero + middle),
        "scales": weight.scale.T.contiguous(),
    }


def _words(rows: Tensor) -> Tensor:
    """int16 values 0..15 [N, C] to int32 [C, N / 8]."""
    words = (rows.shape[1], rows.shape[0] // _PER_WORD, _PER_WORD)
    nibbles = rows.T.reshape(words)[..., list(ORDER)].to(torch.int32)
    shifts = torch.arange(0, 32, BITS, dtype=torch.int32)
    return (nibbles << shifts).sum(-1, dtype=torch.int32)


def _restore(stored: dict[str, StoredTensor], module: str, entry: PackedModule) -> PackedTensor:
    return from_integers(_read(module, read_parts(stored, module, _PARTS)), entry.scheme, module)


def _module(module: str, parts: dict[str, Tensor]) -> ConvertedModule:
    found = _read(module, parts)
    columns, groups = found.values.shape[1], found.scale.shape[1]
    group = columns // groups if groups > 1 else None
    return ConvertedModule(
        weight=pack_integers(found.values, found.scale, found.zero, group, module)
    )


def _read(module: str, parts: dict[str, Tensor]) -> GroupedIntegers:
    qweight, qzeros, scales = require_parts(parts, module, "qweight", "qzeros", "scales")
    groups, rows = scales.shape
    columns = qweight.shape[0]
    words = (groups, rows // _PER_WORD)
    if tuple(qzeros.shape) != words or qweight.shape[1] != words[1] or columns % max(groups, 1):
        raise CheckpointError(
            f"{module}: qweight {list(qweight.shape)}, qzeros {list(qzeros.shape)} and scales "
            f"{list(scales.shape)} are not of one weight: copy the files again"
        )
    middle = 1 << BITS - 1
    return GroupedIntegers(
        values=_rows(qweight) - middle,
        zero=_rows(qzeros) - middle,
        scale=scales.T.contiguous(),
    )


def _rows(words: Tensor) -> Tensor:
    """int32 [C, N / 8] to int16 values 0..15 [N, C]."""
    shifts = torch.arange(0, 32, BITS, dtype=torch.int32)
    nibbles = (words.unsqueeze(-1) >> shifts & 15).short()
    ordered = torch.empty_like(nibbles)
    ordered[..., list(ORDER)] = nibbles
    return ordered.flatten(1).T.contiguous()


def _weights(part: str, tensor: StoredTensor) -> int:
    return prod(tensor.shape) * _PER_WORD if part == "qweight" else 0


IMPORTER = Importer(name=METHOD, matches=matches_method(METHOD), convert=import_awq)
