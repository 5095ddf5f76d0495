"""restore_export: an export of Tercet's becomes the packed checkpoint it was made from again."""

import json
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from tercet.checkpoints.atomic import atomic_directory
from tercet.checkpoints.packed.layout import PackedModule, QuantizationConfig
from tercet.checkpoints.packed.origin import Origin, dequantized_parts, write_origin
from tercet.checkpoints.sources.safetensors_header import StoredTensor
from tercet.errors import CheckpointError
from tercet.formats import PackedTensor

Restore = Callable[[str, PackedModule], PackedTensor]
"""The weight of a module that the export holds packed."""


def restore_export(
    directory: Path,
    out: Path,
    origin: Origin,
    stored: dict[str, StoredTensor],
    restore: Restore,
    anchor: str = "weight_scale",
) -> None:
    """Writes the packed checkpoint `out` again, byte for byte, and checks it against its manifest.

    Args:
        directory: the export; modules without a tensor `anchor` there are held dequantized.
        out: the directory to write; replaced where it is there.
        origin: what the export remembers.
        stored: its tensors.
        restore: reads one packed module.
        anchor: the end of the name of a tensor that every packed module has there.

    Raises:
        CheckpointError: the export was changed since, or is not whole.
    """
    section = json.loads(origin.texts["config.json"])["quantization_config"]
    modules = QuantizationConfig.model_validate(section).modules
    owner = {name: m for m, entry in modules.items() for name in entry.layout(m)}

    def module_parts(module: str) -> dict[str, Tensor]:
        entry = modules[module]
        if f"{module}.{anchor}" not in stored:
            values = stored_tensor(stored, f"{module}.weight").read()
            return dequantized_parts(directory, module, entry, values)
        parts = restore(module, entry).parts()
        return {f"{module}.weight_{part}": tensor for part, tensor in parts.items()}

    def read(names: list[str]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name in names:
            module = owner.get(name)
            if module is None:
                found[name] = stored_tensor(stored, name).read()
            elif name not in found:
                parts = module_parts(module)
                found.update({part: parts[part] for part in names if part in parts})
        return found

    with atomic_directory(out, replace=out.exists()) as target:
        write_origin(origin, read, target, directory)


def stored_tensor(stored: dict[str, StoredTensor], name: str) -> StoredTensor:
    """Where that tensor lies; CheckpointError where it is missing."""
    if name not in stored:
        raise CheckpointError(f"the checkpoint holds no tensor {name!r}: copy it again")
    return stored[name]


def read_parts(
    stored: dict[str, StoredTensor], module: str, parts: tuple[str, ...]
) -> dict[str, Tensor]:
    """Those of a module's tensors that are there, by the end of their names."""
    names = {part: f"{module}.{part}" for part in parts}
    return {part: stored[name].read() for part, name in names.items() if name in stored}
