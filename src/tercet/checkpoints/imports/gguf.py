"""A GGUF file as a packed checkpoint, without loss.

Matrices in TQ1_0, TQ2_0, Q2_0, MXFP4, Q4_0, Q5_0 and Q8_0 keep their codes and scales; every other
tensor keeps its values: plain ones their dtype, other quantized ones (Q6_K of a head, say) in
float32.
"""

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from tercet.checkpoints.atomic import disk_errors
from tercet.checkpoints.gguf.codes import CODE_BLOCKS_BY_NUMBER
from tercet.checkpoints.gguf.header import damage_error
from tercet.checkpoints.gguf.notes import check_checksums, noted_formats
from tercet.checkpoints.gguf.packed import (
    Numbers,
    read_floats,
    read_numbers,
    to_noted_scheme,
    to_packed,
)
from tercet.checkpoints.imports.importer import Importer
from tercet.checkpoints.packed.layout import ModuleInfo, PackedModule, SourceInfo
from tercet.checkpoints.packed.write import PackedWriter, RunIdentity, library_versions
from tercet.checkpoints.sources.gguf_file import GgufFile, halves_from_pairs
from tercet.errors import CheckpointError, FormatError
from tercet.formats import PackedTensor, from_codes, parse_scheme


def import_gguf(path: str | Path, out: str | Path, *, overwrite: bool = False) -> Path:
    """Writes the packed checkpoint `out` of a GGUF file; returns its directory.

    A file that Tercet exported gives back the bytes of codes and scales that it was made of, where
    its formats have no zero points; those with zero points keep their values.

    Raises:
        CheckpointError: the file is damaged, of an unknown architecture, or holds no weight in a
            type whose codes can be kept; `out` exists.
    """
    source = GgufFile(Path(path))
    check_checksums(source.path, source.header)
    if not any(_is_packed(source, name) for name in source.names()):
        raise CheckpointError(
            f"{path}: no matrix is in {', '.join(b.name for b in CODE_BLOCKS_BY_NUMBER.values())}: "
            f"there are no codes to keep; compress it instead: tercet compress {path}"
        )
    units = [list(names) for names in _units(source)]
    identity = RunIdentity(
        source=SourceInfo(
            reference=source.reference,
            sha256=source.sha256(),
            size_bytes=source.size_bytes,
            parameters=source.parameter_count,
        ),
        calibration=None,
        plan={"name": "import-gguf"},
        versions=library_versions(),
        units=len(units),
    )
    writer = PackedWriter(Path(out), identity, overwrite=overwrite)
    with disk_errors(writer.partial, None):
        source.save_companions(writer.partial)
    noted = noted_formats(source.path, source.header)
    for unit, names in enumerate(units):
        _write_unit(source, writer, unit, names, noted)
    writer.finish(source.config)
    return Path(out)


def _units(source: GgufFile) -> Iterable[list[str]]:
    layers = [f"model.layers.{layer}." for layer in range(source.layers)]
    names = source.names()
    yield [name for name in names if not name.startswith("model.layers.")]
    for layer in layers:
        yield [name for name in names if name.startswith(layer)]


def _is_packed(source: GgufFile, name: str) -> bool:
    tensor = source.find_tensor(name)
    return tensor.kind.number in CODE_BLOCKS_BY_NUMBER and len(tensor.shape) == 2


def _write_unit(
    source: GgufFile, writer: PackedWriter, unit: int, names: list[str], noted: dict[str, str]
) -> None:
    tensors: dict[str, Tensor] = {}
    entries: dict[str, PackedModule] = {}
    infos: dict[str, ModuleInfo] = {}
    for name in names:
        if not _is_packed(source, name):
            tensors[name] = source.read(name)
            continue
        module = name.removesuffix(".weight")
        weight = read_packed(source, name, noted.get(module))
        entries[module] = PackedModule(format=weight.scheme.name, shape=weight.shape)
        infos[module] = ModuleInfo(
            format=weight.scheme.name,
            algorithm="import-gguf",
            options={"type": source.find_tensor(name).kind.name},
            relative_error=0.0,
        )
        for part, tensor in weight.parts().items():
            tensors[f"{module}.weight_{part}"] = tensor
    writer.write(unit, tensors, entries, infos)


def read_packed(source: GgufFile, name: str, noted: str | None = None) -> PackedTensor:
    """One matrix of the file with its codes and scales.

    Args:
        source: the file.
        name: Hugging Face's name of the tensor.
        noted: the scheme that it was exported from, where the file says so.
    """
    tensor, heads = source.find_tensor(name), source.paired_heads(name)
    if CODE_BLOCKS_BY_NUMBER[tensor.kind.number].element is not None:
        codes, scale = read_floats(source.path, name, tensor)
        if heads is not None:
            codes, scale = halves_from_pairs(codes, heads), halves_from_pairs(scale, heads)
        return from_codes(codes, parse_scheme("mxfp4"), scale)
    found = read_numbers(source.path, name, tensor)
    if heads is not None:
        found = Numbers(
            numbers=halves_from_pairs(found.numbers, heads),
            scale=halves_from_pairs(found.scale, heads),
            negative=halves_from_pairs(found.negative, heads),
        )
    try:
        scheme = parse_scheme(noted) if noted is not None else None
        if scheme is not None and scheme.scaling.zero is None:
            return to_noted_scheme(found, scheme)
        return to_packed(found, tensor.kind.name)
    except FormatError as error:
        raise damage_error(
            source.path, f"tensor {name!r} in {tensor.kind.name}: {error}"
        ) from error


def _is_gguf(path: Path) -> bool:
    return path.is_file() and path.suffix == ".gguf"


IMPORTER = Importer(name="gguf", matches=_is_gguf, convert=import_gguf)
