"""What was fine-tuned, as a packed checkpoint: files and formats of the old one, values anew."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.packed.layout import Manifest, ModuleInfo
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.checkpoints.packed.write import PackedWriter, RunIdentity, library_versions
from tercet.compress.algorithm import Quantized
from tercet.compress.skeleton import Skeleton
from tercet.compress.unit_file import relative_error


def open_writer(
    checkpoint: PackedCheckpoint,
    manifest: Manifest,
    training: dict[str, Any],
    out: Path,
    device: torch.device,
    *,
    overwrite: bool,
    resume: bool,
) -> PackedWriter:
    """Begins to write, or goes on.

    Args:
        checkpoint: what training begins with.
        manifest: of it.
        training: how, for the new manifest's plan.
        out: the directory to write.
        device: that trains.
        overwrite: replace the checkpoint that lies there.
        resume: go on with an unfinished run of the same command.
    """
    begun_with = hashlib.sha256(manifest.model_dump_json().encode()).hexdigest()
    described = {**training, "begun_with_sha256": begun_with}
    if "finetuning" in manifest.plan:
        described["before"] = manifest.plan["finetuning"]
    identity = RunIdentity(
        source=manifest.source,
        calibration=manifest.calibration,
        plan={**manifest.plan, "finetuning": described},
        versions=library_versions(),
        units=len(_files(checkpoint)),
        device=device.type,
    )
    return PackedWriter(out, identity, overwrite=overwrite, resume=resume)


def write_finetuned(
    writer: PackedWriter,
    checkpoint: PackedCheckpoint,
    manifest: Manifest,
    teacher: Skeleton,
    quantized: Mapping[str, Quantized],
    vectors: Mapping[str, Tensor],
) -> None:
    """Writes every file, and moves the directory into place.

    Args:
        writer: of `open_writer`.
        checkpoint: what training began with.
        manifest: of it.
        teacher: the uncompressed model, its weights in memory.
        quantized: the modules that were trained.
        vectors: the norms and biases that were, in their stored dtypes.
    """
    teacher.source.save_companions(writer.partial)
    trained = {
        f"{name}.weight_{part}": tensor.cpu()
        for name, one in quantized.items()
        for part, tensor in one.packed.parts().items()
    } | {name: value.cpu() for name, value in vectors.items()}
    for unit, file in enumerate(_files(checkpoint)):
        names = [name for name, where in checkpoint.file_of.items() if where == file]
        modules = [
            name
            for name in checkpoint.modules
            if checkpoint.file_of[f"{name}.weight_packed"] == file
        ]
        writer.write(
            unit,
            {name: trained[name] if name in trained else checkpoint.tensor(name) for name in names},
            {name: checkpoint.modules[name] for name in modules},
            {name: _describe(name, manifest, teacher, quantized) for name in modules},
        )
    config = {key: value for key, value in checkpoint.config.items() if key != _SECTION}
    writer.finish(config)


_SECTION = "quantization_config"


def _files(checkpoint: PackedCheckpoint) -> list[str]:
    return sorted(set(checkpoint.file_of.values()))


def _describe(
    name: str, manifest: Manifest, teacher: Skeleton, quantized: Mapping[str, Quantized]
) -> ModuleInfo:
    info = manifest.modules[name]
    if name not in quantized:
        return info
    weight = teacher.model.get_parameter(f"{name}.weight")
    return info.model_copy(update={"relative_error": relative_error(weight, quantized[name])})
