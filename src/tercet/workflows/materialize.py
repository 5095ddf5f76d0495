"""A model source as a plain Hugging Face directory, for programs that read nothing else."""

import json
from pathlib import Path

from safetensors import torch as safetensors_torch

from tercet.checkpoints.atomic import atomic_directory
from tercet.checkpoints.sources.open import ModelSource


def materialize(source: ModelSource, directory: Path) -> Path:
    """Writes the source's weights in float32, its configuration and its tokenizer.

    The whole model is in memory once. A directory that exists is taken as it is.
    """
    if directory.exists():
        return directory
    with atomic_directory(directory) as target:
        tensors = {name: source.read(name).float().contiguous() for name in source.names()}
        safetensors_torch.save_file(tensors, str(target / "model.safetensors"), {"format": "pt"})
        config = {**source.config, "dtype": "float32"}
        (target / "config.json").write_text(json.dumps(config, indent=1))
        source.save_companions(target)
    return directory
