"""convert_modules: another program's quantized checkpoint becomes a packed one, module by module.

A ModuleFormat says which tensors belong to a quantized module and makes a PackedTensor of them;
every other tensor is copied as it is. Integers get the densest element whose levels hold every
value that occurs: those of 2 bits without a -2 become ternary, those of 4 bits from -4 to 4 nonary.
"""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.packed.layout import ModuleInfo, PackedModule, SourceInfo
from tercet.checkpoints.packed.origin import copy_companions
from tercet.checkpoints.packed.write import PackedWriter, RunIdentity, library_versions
from tercet.checkpoints.sources.model_source import TIED_HEADS
from tercet.checkpoints.sources.safetensors_directory import open_weights
from tercet.checkpoints.sources.safetensors_header import StoredTensor
from tercet.errors import CheckpointError, FormatError, TercetError, UnsupportedError
from tercet.formats import ELEMENTS, Granularity, PackedTensor, Scaling, Scheme, storage
from tercet.formats.encode import from_codes
from tercet.formats.scaling import SCALE_DTYPES

_PLAIN_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_DENSEST_FIRST = ("ternary", "int2", "int3", "nonary", "int4", "int8")


@dataclass(frozen=True, kw_only=True)
class ConvertedModule:
    """A module's weight without loss; `activation` as in PackedModule."""

    weight: PackedTensor
    activation: Any = None


@dataclass(frozen=True, kw_only=True)
class ModuleFormat:
    """How another program stores its quantized modules.

    Attributes:
        method: its `quant_method`.
        anchor: the part whose presence makes a module a quantized one: "qweight".
        parts: the ends of the names of a quantized module's tensors, its bias apart.
        shared: of these, the parts that every module has where one has them.
        convert: makes the weight of a module from its name and those of its parts that are there.
        count_weights: how many weights of the model a part [..] of that name and shape stands for.
    """

    method: str
    anchor: str
    parts: tuple[str, ...]
    convert: Callable[[str, dict[str, Tensor]], ConvertedModule]
    count_weights: Callable[[str, StoredTensor], int]
    shared: tuple[str, ...] = ()


def convert_modules(
    layout: ModuleFormat, config: dict[str, Any], directory: Path, out: Path, *, overwrite: bool
) -> None:
    """Writes the packed checkpoint `out`.

    Raises:
        UnsupportedError: a module is held in a way that no scheme has.
        CheckpointError: the files are damaged, or `out` is in the way.
    """
    _, stored = open_weights(directory)
    end = f".{layout.anchor}"
    modules = {name.removesuffix(end) for name in stored if name.endswith(end)}
    if not modules:
        raise CheckpointError(
            f"{directory}: config.json says {layout.method}, but no tensor ends in {end!r}: copy "
            f"the files again"
        )
    _demand_parts(layout, modules, stored)
    files = sorted({tensor.path for tensor in stored.values()})
    identity = _identity(layout, directory, files, stored)
    writer = PackedWriter(out, identity, overwrite=overwrite)
    try:
        for unit, path in enumerate(files):
            names = [name for name, tensor in stored.items() if tensor.path == path]
            _write_unit(layout, writer, unit, names, stored, modules, _tied(config, modules))
        copy_companions(directory, writer.partial)
    except TercetError:
        # there is nothing to go on with: the next attempt reads the same files
        shutil.rmtree(writer.partial)
        raise
    writer.finish({key: value for key, value in config.items() if key != "quantization_config"})


def _demand_parts(layout: ModuleFormat, modules: set[str], stored: dict[str, StoredTensor]) -> None:
    """CheckpointError where a part lies without its module's anchor, or without a shared part.

    A module whose anchor is missing would be copied as a plain one, raw codes for weights.
    """
    for name, tensor in stored.items():
        module, _, part = name.rpartition(".")
        if module in modules or part not in layout.parts:
            continue
        if part != "weight" or tensor.dtype not in _PLAIN_DTYPES:
            raise CheckpointError(
                f"{module}: {layout.anchor} is missing beside {part}: copy the files again"
            )
    for part in layout.shared:
        owners = {module for module in modules if f"{module}.{part}" in stored}
        if owners and owners != modules:
            first = min(modules - owners)
            raise CheckpointError(
                f"{first}: {part} is missing, which {len(owners)} other modules have: copy the "
                f"files again"
            )


def _write_unit(
    layout: ModuleFormat,
    writer: PackedWriter,
    unit: int,
    names: list[str],
    stored: dict[str, StoredTensor],
    modules: set[str],
    tied: set[str],
) -> None:
    tensors: dict[str, Tensor] = {}
    entries: dict[str, PackedModule] = {}
    notes: dict[str, ModuleInfo] = {}
    for name in names:
        module, _, part = name.rpartition(".")
        if module in tied and part != "bias":
            continue
        if module not in modules or part == "bias":
            tensors[name] = stored[name].read()
        elif part not in layout.parts:
            raise UnsupportedError(
                f"{name}: Tercet reads {', '.join(layout.parts)} of a {layout.method} module; "
                f"static scales and orders of columns are not read"
            )
        elif part == layout.anchor:
            found = _convert(layout, module, stored)
            weight = found.weight
            parts = {f"{module}.weight_{end}": tensor for end, tensor in weight.parts().items()}
            tensors.update(parts)
            entries[module] = PackedModule(
                format=weight.scheme.name, shape=weight.shape, activation=found.activation
            )
            notes[module] = ModuleInfo(
                format=weight.scheme.name, algorithm="imported", options={}, relative_error=0.0
            )
    writer.write(unit, tensors, entries, notes)


def _convert(layout: ModuleFormat, module: str, stored: dict[str, StoredTensor]) -> ConvertedModule:
    names = {part: f"{module}.{part}" for part in layout.parts}
    found = layout.convert(
        module, {p: stored[name].read() for p, name in names.items() if name in stored}
    )
    try:
        found.weight.validate(module)
    except FormatError as error:
        raise UnsupportedError(f"{error}: no scheme of Tercet holds that") from error
    return found


def require_parts(parts: dict[str, Tensor], module: str, *names: str) -> tuple[Tensor, ...]:
    """Those parts; CheckpointError names the first that is missing."""
    for name in names:
        if name not in parts:
            raise CheckpointError(f"{module}: {name} is missing: copy the files again")
    return tuple(parts[name] for name in names)


def densest_element(values: Tensor) -> str:
    """The name of the densest element with every one of these integers among its levels."""
    low, high = (int(values.min()), int(values.max())) if values.numel() else (0, 0)
    holds = (ELEMENTS[name] for name in _DENSEST_FIRST)
    return next(
        element.name for element in holds if element.lowest <= low and high <= element.highest
    )


def pack_integers(
    values: Tensor, scale: Tensor, zero: Tensor | None, group: int | None, module: str
) -> PackedTensor:
    """W = (values - zero) scale, as it is.

    Args:
        values: integers [N, K], -128 to 127.
        scale: [N, groups], floating point.
        zero: integers like scale, -128 to 127; None, or all 0, for a symmetric weight.
        group: columns of one scale; None for all of a row.
        module: what to call it in an error.
    """
    dtype = scale_dtype(scale, module)
    symmetric = zero is None or not bool(zero.any())
    scaling = Scaling(
        granularity=Granularity.CHANNEL if group is None else Granularity.GROUP,
        group_size=group,
        dtype=dtype,
        zero=None if symmetric else "int8",
    )
    shape = (values.shape[0], values.shape[1])
    if tuple(scale.shape) != scaling.scale_shape(shape):
        raise CheckpointError(
            f"{module}: {list(scale.shape)} scales for a weight {list(shape)} in groups of "
            f"{group}, {list(scaling.scale_shape(shape))} belong there: copy the files again"
        )
    name = densest_element(values)
    scheme = Scheme(
        element=ELEMENTS[name], scaling=scaling, storage=storage(ELEMENTS[name].storage)
    )
    codes = (values.short() - int(scheme.element.lowest)).byte()
    return from_codes(codes, scheme, scale, None if symmetric or zero is None else zero.char())


def scale_dtype(scale: Tensor, module: str) -> str:
    """Our name of the dtype of scales; UnsupportedError where schemes do not have it."""
    name = next((k for k, v in SCALE_DTYPES.items() if v == scale.dtype), None)
    if name is None:
        raise UnsupportedError(
            f"{module}: scales in {scale.dtype}, known: {', '.join(SCALE_DTYPES)}"
        )
    return name


def _tied(config: dict[str, Any], modules: set[str]) -> set[str]:
    """A head that config.json ties to an embedding which is stored as well."""
    if not config.get("tie_word_embeddings", False):
        return set()
    return modules & {head.removesuffix(".weight") for head, _ in TIED_HEADS}


def _identity(
    layout: ModuleFormat, directory: Path, files: list[Path], stored: dict[str, StoredTensor]
) -> RunIdentity:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)

    def weights(name: str, tensor: StoredTensor) -> int:
        part = name.rpartition(".")[2]
        return layout.count_weights(part, tensor) if part in layout.parts else prod(tensor.shape)

    return RunIdentity(
        source=SourceInfo(
            reference=str(directory),
            sha256=digest.hexdigest(),
            size_bytes=sum(path.stat().st_size for path in files),
            parameters=sum(weights(name, tensor) for name, tensor in stored.items()),
        ),
        calibration=None,
        plan={"name": f"import of {layout.method}"},
        versions=library_versions(),
        units=len(files),
    )
