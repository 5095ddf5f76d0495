"""GPTQ's checkpoints (AutoGPTQ, GPTQModel), read without loss.

    qweight  int32 [K b / 32, N]          q of b bits, packed along K without holes, first lowest
    qzeros   int32 [groups, N b / 32]     zero points packed along N; "gptq" stores zero - 1, in b
                                          bits, "gptq_v2" the zero point itself
    scales   [groups, N]
    g_idx    int32 [K]                    the group of each column

and W[n, k] = (q[k, n] - zero[g, n]) scales[g, n] with g = g_idx[k]. Columns in the order of their
activation (desc_act) have no scheme: there is no group of neighbours to share a scale.

What Tercet exported comes back byte for byte.
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

METHOD = "gptq"
BITS = (2, 3, 4, 8)
ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}
"""What each layout stores its zero points less by."""

_PARTS = ("qweight", "qzeros", "scales", "g_idx")


def import_gptq(path: Path, out: Path, *, overwrite: bool = False) -> None:
    """Writes the packed checkpoint `out`.

    Raises:
        UnsupportedError: another layout, columns in the order of activations, negative scales.
        CheckpointError: the files are damaged, or `out` is in the way.
    """
    config = read_json(path / "config.json")
    section: dict[str, Any] = config["quantization_config"]
    layout = str(section.get("checkpoint_format") or "gptq")
    if layout not in ZERO_OFFSETS:
        raise UnsupportedError(
            f"{path}: checkpoint_format {layout!r}: {' and '.join(ZERO_OFFSETS)} are read; "
            f"save it in one of these"
        )
    offset = ZERO_OFFSETS[layout]
    origin = recall(path)
    if origin is not None:
        check_free(out, overwrite=overwrite, resume=False)
        _, stored = open_weights(path)
        restore = partial(_restore, offset, stored)
        restore_export(path, out, origin, stored, restore, anchor="scales")
        return
    modules = ModuleFormat(
        method=METHOD,
        anchor="qweight",
        parts=_PARTS,
        convert=partial(_module, offset, int(section.get("group_size") or -1)),
        count_weights=_weights,
        shared=("g_idx",),
    )
    convert_modules(modules, config, path, out, overwrite=overwrite)


def store_gptq(weight: GroupedIntegers, bits: int, layout: str) -> dict[str, Tensor]:
    """The tensors of a weight [N, K], by the end of their names.

    Args:
        weight: values and zero points of `bits` bits as two's complement integers; K bits and
            N bits are multiples of 32.
        bits: one of BITS.
        layout: one of ZERO_OFFSETS.
    """
    middle, most = 1 << bits - 1, (1 << bits) - 1
    columns, groups = weight.values.shape[1], weight.scale.shape[1]
    zeros = weight.zero.T + middle - ZERO_OFFSETS[layout] & most
    return {
        "qweight": pack_words((weight.values + middle).to(torch.uint8), bits).T.contiguous(),
        "qzeros": pack_words(zeros.to(torch.uint8).contiguous(), bits),
        "scales": weight.scale.T.contiguous(),
        "g_idx": (torch.arange(columns) // (columns // max(groups, 1))).to(torch.int32),
    }


def _restore(
    offset: int, stored: dict[str, StoredTensor], module: str, entry: PackedModule
) -> PackedTensor:
    found = _read(offset, module, read_parts(stored, module, _PARTS))
    return from_integers(found, entry.scheme, module)


def _module(offset: int, size: int, module: str, parts: dict[str, Tensor]) -> ConvertedModule:
    found = _read(offset, module, parts)
    columns, groups = found.values.shape[1], found.scale.shape[1]
    if size > 0 and columns % size and -(-columns // size) == groups > 1:
        raise UnsupportedError(
            f"{module}: {columns} columns in groups of {size}, the last one shorter: only groups "
            f"of one size are read: quantize with a group_size that divides {columns}"
        )
    group = columns // groups if groups > 1 else None
    return ConvertedModule(
        weight=pack_integers(found.values, found.scale, found.zero, group, module)
    )


def _read(offset: int, module: str, parts: dict[str, Tensor]) -> GroupedIntegers:
    qweight, qzeros, scales = require_parts(parts, module, "qweight", "qzeros", "scales")
    groups, rows = scales.shape
    # some checkpoints mix widths: the shapes say which this is
    bits = qzeros.shape[1] * 32 // max(rows, 1)
    if bits not in BITS or tuple(qzeros.shape) != (groups, rows * bits // 32):
        raise CheckpointError(
            f"{module}: qzeros {list(qzeros.shape)} beside scales {list(scales.shape)} are zero "
            f"points of none of {BITS} bits: copy the files again"
        )
    columns = qweight.shape[0] * 32 // bits
    if qweight.shape[1] != rows or columns % max(groups, 1):
        raise CheckpointError(
            f"{module}: qweight {list(qweight.shape)} beside scales {list(scales.shape)}: "
            f"copy the files again"
        )
    middle = 1 << bits - 1
    _check_order(parts.get("g_idx"), columns, columns // groups, module)
    zeros = unpack_words(qzeros, bits, rows).short() + offset & (1 << bits) - 1
    return GroupedIntegers(
        values=unpack_words(qweight.T.contiguous(), bits, columns).short() - middle,
        zero=zeros.T - middle,
        scale=scales.T.contiguous(),
    )


def _check_order(order: Tensor | None, columns: int, group: int, module: str) -> None:
    if order is None or torch.equal(order.long(), torch.arange(columns) // group):
        return
    first = int((order.long() != torch.arange(columns) // group).nonzero()[0])
    raise UnsupportedError(
        f"{module}: column {first} is in group {int(order[first])}, its neighbours in groups of "
        f"{group} are not: the columns were quantized in the order of their activation (desc_act), "
        f"for which there is no scheme: quantize with desc_act false, or with static groups"
    )


def _weights(part: str, tensor: StoredTensor) -> int:
    # the width is not known from one tensor: counted as 4 bits, which nearly all have
    return prod(tensor.shape) * 8 if part == "qweight" else 0


IMPORTER = Importer(name=METHOD, matches=matches_method(METHOD), convert=import_gptq)
