"""GPTQ's checkpoints (AutoGPTQ, GPTQModel), read without loss.

    qweight  int32 [K b / 32, N]          q of b bits, packed along K without holes, first lowest
    qzeros   int32 [groups, N b / 32]     zero points packed along N; "gptq" stores zero - 1, in b
                                          bits, "gptq_v2" the zero point itself
    scales   [groups, N]
    g_idx    int32 [K]                    the group of each column

and W[n, k] = (q[k, n] - zero[g, n]) scales[g, n] with g = g_idx[k]. Columns in the order of their
activation (desc_act) have no scheme: there is no group of neighbours to share a scale.
"""

from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.imports.compressed_tensors.tensors import unpack_words
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

METHOD = "gptq"
_BITS = (2, 3, 4, 8)
_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}


def import_gptq(path: Path, out: Path, *, overwrite: bool = False) -> None:
    """Writes the packed checkpoint `out`.

    Raises:
        UnsupportedError: another layout, columns in the order of activations, negative scales.
        CheckpointError: the files are damaged, or `out` is in the way.
    """
    config = read_json(path / "config.json")
    section: dict[str, Any] = config["quantization_config"]
    layout = str(section.get("checkpoint_format") or "gptq")
    if layout not in _ZERO_OFFSETS:
        raise UnsupportedError(
            f"{path}: checkpoint_format {layout!r}: {' and '.join(_ZERO_OFFSETS)} are read; "
            f"save it in one of these"
        )
    modules = ModuleFormat(
        method=METHOD,
        anchor="qweight",
        parts=("qweight", "qzeros", "scales", "g_idx"),
        convert=partial(_module, _ZERO_OFFSETS[layout]),
        count_weights=_weights,
        shared=("g_idx",),
    )
    convert_modules(modules, config, path, out, overwrite=overwrite)


def _module(offset: int, module: str, parts: dict[str, Tensor]) -> ConvertedModule:
    qweight, qzeros, scales = require_parts(parts, module, "qweight", "qzeros", "scales")
    groups, rows = scales.shape
    # some checkpoints mix widths: the shapes say which this is
    bits = qzeros.shape[1] * 32 // max(rows, 1)
    if bits not in _BITS or tuple(qzeros.shape) != (groups, rows * bits // 32):
        raise CheckpointError(
            f"{module}: qzeros {list(qzeros.shape)} beside scales {list(scales.shape)} are zero "
            f"points of none of {_BITS} bits: copy the files again"
        )
    columns = qweight.shape[0] * 32 // bits
    if qweight.shape[1] != rows or columns % max(groups, 1):
        raise CheckpointError(
            f"{module}: qweight {list(qweight.shape)} beside scales {list(scales.shape)}: "
            f"copy the files again"
        )
    group, middle = columns // groups, 1 << bits - 1
    _check_order(parts.get("g_idx"), columns, group, module)
    values = unpack_words(qweight.T.contiguous(), bits, columns).short() - middle
    zeros = unpack_words(qzeros, bits, rows).short() + offset & (1 << bits) - 1
    weight = pack_integers(
        values,
        scales.T.contiguous(),
        zeros.T - middle,
        group if groups > 1 else None,
        module,
    )
    return ConvertedModule(weight=weight)


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
