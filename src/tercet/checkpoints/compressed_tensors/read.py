"""A compressed-tensors checkpoint into a packed one: the same codes, the same scales.

What Tercet exported comes back byte for byte. What another program made gets, module by module,
the densest element whose levels hold every value that occurs: 2-bit integers without a -2 become
ternary, 4-bit ones from -4 to 4 nonary.
"""

import hashlib
import json
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor

from tercet.checkpoints.atomic import atomic_directory
from tercet.checkpoints.compressed_tensors.config import Activations, Group, Section, read_section
from tercet.checkpoints.compressed_tensors.tensors import restore, values
from tercet.checkpoints.layout import ModuleInfo, PackedModule, QuantizationConfig, SourceInfo
from tercet.checkpoints.model_source import TIED_HEADS
from tercet.checkpoints.origin import (
    Origin,
    copy_companions,
    dequantized_parts,
    recall,
    write_origin,
)
from tercet.checkpoints.packed_writer import (
    PackedWriter,
    RunIdentity,
    check_free,
    library_versions,
)
from tercet.checkpoints.safetensors_directory import open_weights, read_json
from tercet.checkpoints.safetensors_header import StoredTensor
from tercet.errors import CheckpointError, UnsupportedError
from tercet.formats import ELEMENTS, Granularity, Scaling, Scheme, storage
from tercet.formats.scaling import SCALE_DTYPES
from tercet.formats.scheme import DENSEST_STORAGE

_PARTS = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point")
_DENSEST_FIRST = ("ternary", "int2", "int3", "nonary", "int4", "int8")


def read_compressed_tensors(directory: Path, out: Path, *, overwrite: bool = False) -> None:
    """Writes the packed checkpoint `out`.

    Raises:
        UnsupportedError: a module is held in a way that no scheme has.
        CheckpointError: the files are damaged, or `out` is in the way.
    """
    config = read_json(directory / "config.json")
    section = read_section(config, str(directory))
    _, stored = open_weights(directory)
    origin = recall(directory)
    check_free(out, overwrite=overwrite, resume=False)
    if origin is not None:
        with atomic_directory(out, replace=out.exists()) as target:
            write_origin(
                origin, _Exported(directory, section, stored, origin).read, target, directory
            )
        return
    _import_foreign(directory, out, config, section, stored, overwrite)


class _Exported:
    """Tensors of the packed checkpoint that an export was made from."""

    def __init__(
        self, directory: Path, section: Section, stored: dict[str, StoredTensor], origin: Origin
    ) -> None:
        self.directory, self.section, self.stored = directory, section, stored
        config = _parse_origin(origin)
        self.modules = config.modules
        self.owner = {name: m for m, entry in self.modules.items() for name in entry.layout(m)}

    def read(self, names: list[str]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name in names:
            module = self.owner.get(name)
            if module is None:
                found[name] = _stored(self.stored, name).read()
            elif name not in found:
                parts = self._module(module)
                found.update({part: parts[part] for part in names if part in parts})
        return found

    def _module(self, module: str) -> dict[str, Tensor]:
        if f"{module}.weight_scale" not in self.stored:
            values = _stored(self.stored, f"{module}.weight").read()
            return dequantized_parts(self.directory, module, self.modules[module], values)
        group = self.section.group(module)
        bits = group.weights.num_bits if group is not None and group.weights is not None else 8
        scheme = self.modules[module].scheme
        packed = restore(_read_parts(self.stored, module), scheme, bits, module)
        return {f"{module}.weight_{part}": tensor for part, tensor in packed.parts().items()}


def _parse_origin(origin: Origin) -> QuantizationConfig:
    return QuantizationConfig.model_validate(
        json.loads(origin.texts["config.json"])["quantization_config"]
    )


def _stored(stored: dict[str, StoredTensor], name: str) -> StoredTensor:
    if name not in stored:
        raise CheckpointError(f"the checkpoint holds no tensor {name!r}: copy it again")
    return stored[name]


def _read_parts(stored: dict[str, StoredTensor], module: str) -> dict[str, Tensor]:
    names = {part: f"{module}.{part}" for part in ("weight", *_PARTS)}
    found = {part: stored[name].read() for part, name in names.items() if name in stored}
    if "weight_scale" not in found or not {"weight", "weight_packed"} & set(found):
        raise CheckpointError(f"{module}: weight or weight_scale is missing: copy the files again")
    if "weight_packed" in found and "weight_shape" not in found:
        raise CheckpointError(f"{module}: weight_shape is missing: copy the files again")
    return found


def _import_foreign(
    directory: Path,
    out: Path,
    config: dict[str, Any],
    section: Section,
    stored: dict[str, StoredTensor],
    overwrite: bool,
) -> None:
    _refuse_extras(section)
    modules = {name.rpartition(".")[0] for name in stored if name.endswith(".weight_scale")}
    files = sorted({tensor.path for tensor in stored.values()})
    tied = _tied_names(config, modules)
    writer = PackedWriter(out, _identity(directory, files, stored), overwrite=overwrite)
    for unit, path in enumerate(files):
        names = [name for name, tensor in stored.items() if tensor.path == path]
        tensors: dict[str, Tensor] = {}
        entries: dict[str, PackedModule] = {}
        notes: dict[str, ModuleInfo] = {}
        for name in names:
            module, _, part = name.rpartition(".")
            if name in tied:
                continue
            if module not in modules or part == "bias":
                tensors[name] = stored[name].read()
            elif part == "weight_scale":
                parts, entries[module], notes[module] = _module(section, stored, module)
                tensors.update(parts)
            elif part not in ("weight", *_PARTS):
                raise UnsupportedError(f"{name}: static scales and orders are not read by Tercet")
        writer.write(unit, tensors, entries, notes)
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    copy_companions(directory, writer.partial)
    writer.finish(plain)


def _module(
    section: Section, stored: dict[str, StoredTensor], module: str
) -> tuple[dict[str, Tensor], PackedModule, ModuleInfo]:
    group = section.group(module)
    if group is None or group.weights is None:
        raise CheckpointError(f"{module}: has a weight_scale, but no group of config.json names it")
    parts = _read_parts(stored, module)
    scheme = _scheme(group, parts, module)
    packed = restore(parts, scheme, group.weights.num_bits, module)
    packed.validate(module)
    entry = PackedModule(
        format=scheme.name, shape=packed.shape, activation=_activation(group, module)
    )
    note = ModuleInfo(format=scheme.name, algorithm="imported", options={}, relative_error=0.0)
    return (
        {f"{module}.weight_{part}": tensor for part, tensor in packed.parts().items()},
        entry,
        note,
    )


def _scheme(group: Group, parts: dict[str, Tensor], module: str) -> Scheme:
    """The densest scheme that holds every value of the module."""
    weights = group.weights
    assert weights is not None
    dtype = next((k for k, v in SCALE_DTYPES.items() if v == parts["weight_scale"].dtype), None)
    if dtype is None:
        raise UnsupportedError(f"{module}: scales in {parts['weight_scale'].dtype}")
    name = "fp8_e4m3" if weights.type == "float" else _densest(values(parts, weights.num_bits))
    if weights.type == "float" and weights.num_bits != 8:
        raise UnsupportedError(f"{module}: {weights.num_bits}-bit floats are not read, 8-bit are")
    rows, columns = weights.block_structure or (None, weights.group_size)
    grouped = weights.strategy in ("group", "block")
    scaling = Scaling(
        granularity=Granularity(weights.strategy),
        group_size=columns if grouped else None,
        block_rows=rows if weights.strategy == "block" else None,
        dtype=dtype,
        zero=None if weights.symmetric else "int8",
    )
    return Scheme(element=ELEMENTS[name], scaling=scaling, storage=storage(DENSEST_STORAGE[name]))


def _densest(found: Tensor) -> str:
    low, high = (int(found.min()), int(found.max())) if found.numel() else (0, 0)
    holds = (ELEMENTS[name] for name in _DENSEST_FIRST)
    return next(
        element.name for element in holds if element.lowest <= low and high <= element.highest
    )


def _activation(group: Group, module: str) -> Any:
    given = group.input_activations
    if given is None:
        return None
    known = Activations(num_bits=8, type="int", symmetric=True, strategy="token", dynamic=True)
    if given != known:
        raise UnsupportedError(
            f"{module}: its inputs are quantized as {given.model_dump()}; Tercet knows dynamic "
            f"int8 with one scale a token"
        )
    return "int8_token"


def _refuse_extras(section: Section) -> None:
    if section.kv_cache_scheme or section.transform_config:
        raise UnsupportedError(
            "the checkpoint quantizes its key-value cache or rotates its inputs; Tercet imports "
            "checkpoints whose linear layers alone are quantized"
        )
    if any(group.output_activations for group in section.config_groups.values()):
        raise UnsupportedError("the checkpoint quantizes outputs of layers, which Tercet does not")


def _tied_names(config: dict[str, Any], modules: Iterable[str]) -> set[str]:
    """Tensors of a head that config.json ties to an embedding which is stored as well."""
    if not config.get("tie_word_embeddings", False):
        return set()
    heads = {head.removesuffix(".weight") for head, _ in TIED_HEADS}
    return {f"{m}.{p}" for m in modules if m in heads for p in ("weight", *_PARTS)}


def _identity(directory: Path, files: list[Path], stored: dict[str, StoredTensor]) -> RunIdentity:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return RunIdentity(
        source=SourceInfo(
            reference=str(directory),
            sha256=digest.hexdigest(),
            size_bytes=sum(path.stat().st_size for path in files),
            parameters=sum(_weights(name, tensor) for name, tensor in stored.items()),
        ),
        calibration=None,
        plan={"name": "import of compressed-tensors"},
        versions=library_versions(),
        units=len(files),
    )


def _weights(name: str, tensor: StoredTensor) -> int:
    """How many weights of the model a tensor stands for."""
    if name.endswith(".weight_shape"):
        return int(tensor.read().prod())
    return 0 if name.endswith(_PARTS) else prod(tensor.shape)
