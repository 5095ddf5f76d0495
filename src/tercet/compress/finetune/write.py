"""What was fine-tuned, as a packed checkpoint: files and formats of the old one, values anew."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from tercet.checkpoints.packed.layout import Manifest, ModuleInfo
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.checkpoints.packed.write import PackedWriter, RunIdentity, library_versions
from tercet.compress.algorithm import Quantized
from tercet.compress.skeleton import Skeleton
from tercet.compress.unit_file import relative_error


def write_finetuned(
    checkpoint: PackedCheckpoint,
    manifest: Manifest,
    teacher: Skeleton,
    quantized: Mapping[str, Quantized],
    vectors: Mapping[str, Tensor],
    training: dict[str, Any],
    out: Path,
    *,
    overwrite: bool,
) -> None:
    """Writes every file, and moves the directory into place.

    Args:
        checkpoint: what training began with.
        manifest: of it.
        teacher: the uncompressed model, its weights in memory.
        quantized: the modules that were trained.
        vectors: the norms and biases that were, in their stored dtypes.
        training: how, for the manifest's plan.
        out: the directory to write.
        overwrite: replace what lies there.
    """
    files = sorted(set(checkpoint.file_of.values()))
    identity = RunIdentity(
        source=manifest.source,
        calibration=manifest.calibration,
        plan={**manifest.plan, "finetuning": training},
        versions=library_versions(),
        units=len(files),
        device=teacher.device.type,
    )
    writer = PackedWriter(out, identity, overwrite=overwrite)
    teacher.source.save_tokenizer(writer.partial)
    trained = {
        f"{name}.weight_{part}": tensor.cpu()
        for name, one in quantized.items()
        for part, tensor in one.packed.parts().items()
    } | {name: value.cpu() for name, value in vectors.items()}
    for unit, file in enumerate(files):
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


def _describe(
    name: str, manifest: Manifest, teacher: Skeleton, quantized: Mapping[str, Quantized]
) -> ModuleInfo:
    info = manifest.modules[name]
    if name not in quantized:
        return info
    weight = teacher.model.get_parameter(f"{name}.weight")
    return info.model_copy(update={"relative_error": relative_error(weight, quantized[name])})
