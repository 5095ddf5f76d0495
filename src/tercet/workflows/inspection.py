"""inspect: describes a packed checkpoint and verifies its files."""

from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

from tercet.checkpoints.packed.read import open_packed
from tercet.evaluate.size import measure_size


def inspect(directory: str | Path, *, verify: bool = False) -> dict[str, Any]:
    """Describe a packed checkpoint: its formats, sizes and source model, as JSON-compatible data.

    Args:
        directory: the packed checkpoint.
        verify: also read every tensor and check hashes, codes and scales.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
    """
    checkpoint = open_packed(directory)
    if verify:
        checkpoint.verify()
    size = measure_size(checkpoint)
    manifest = checkpoint.manifest
    made = manifest.modules if manifest else {}
    formats = Counter(module.format for module in checkpoint.modules.values())
    return {
        "directory": str(checkpoint.directory),
        "architecture": (checkpoint.config.get("architectures") or ["unknown"])[0],
        "size": size.metrics(),
        "formats": dict(formats),
        "modules": {
            name: {
                "format": module.format,
                "shape": list(module.shape),
                "bits_per_weight": module.scheme.bits_per_weight(module.shape),
                "algorithm": made[name].algorithm if name in made else None,
                "relative_error": made[name].relative_error if name in made else None,
            }
            for name, module in checkpoint.modules.items()
        },
        "kept": {
            "tensors": len(checkpoint.names()),
            "parameters": sum(prod(checkpoint.layout[name][1]) for name in checkpoint.names()),
        },
        "source": manifest.source.model_dump() if manifest else None,
        "calibration": manifest.calibration.model_dump()
        if manifest and manifest.calibration
        else None,
        "versions": manifest.versions if manifest else None,
        "verified": verify,
    }
