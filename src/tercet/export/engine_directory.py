"""A directory that an engine loads: safetensors and config.json under Hugging Face's names."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from tercet.checkpoints.atomic import atomic_directory
from tercet.checkpoints.imports.importer import CONFIG_NAME
from tercet.checkpoints.packed.layout import INDEX_NAME
from tercet.checkpoints.packed.origin import copy_companions, remember
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.checkpoints.seal import seal


def write_directory(
    checkpoint: PackedCheckpoint,
    out: Path,
    config: dict[str, Any],
    store: Callable[[str], dict[str, Tensor]],
    *,
    dequantized: Iterable[str] = (),
    framework: str = "pt",
) -> None:
    """Writes the directory `out`, whole or not at all, with the checkpoint's files by name.

    Args:
        checkpoint: what is exported.
        out: is not there yet.
        config: content of config.json.
        store: the tensors of a packed module, by the end of their names.
        dequantized: modules of which the export holds the float32 values only.
        framework: as the files name the one that wrote them.

    Raises:
        CheckpointError: `out` exists, or the disk is full.
    """
    with atomic_directory(out) as target:
        weight_map: dict[str, str] = {}
        for file in sorted(set(checkpoint.file_of.values())):
            tensors = _file(checkpoint, file, store)
            (target / file).write_bytes(save(tensors, {"format": framework}))
            weight_map.update(dict.fromkeys(tensors, file))
        if (checkpoint.directory / INDEX_NAME).exists():
            total = sum((target / file).stat().st_size for file in set(weight_map.values()))
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            write_json(target / INDEX_NAME, index)
        write_json(target / CONFIG_NAME, config)
        copy_companions(checkpoint.directory, target)
        remember(checkpoint, target, dequantized)
        seal(target)


def _file(
    checkpoint: PackedCheckpoint, file: str, store: Callable[[str], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """The tensors of one file of the export: those of the checkpoint's file of that name."""
    names = {name for name, home in checkpoint.file_of.items() if home == file}
    tensors = {name: checkpoint.tensor(name) for name in checkpoint.names() if name in names}
    for module in checkpoint.modules:
        if f"{module}.weight_packed" in names:
            tensors.update({f"{module}.{part}": found for part, found in store(module).items()})
    return {name: tensor.contiguous() for name, tensor in sorted(tensors.items())}


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Content as JSON, keys in order."""
    path.write_text(json.dumps(content, indent=1, sort_keys=True))
