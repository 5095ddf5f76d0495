"""A Hugging Face directory: config.json, tokenizer files, and safetensors whole or in shards."""

import json
import shutil
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from tercet.checkpoints.hashed_file import ReadableFile
from tercet.checkpoints.sources.model_source import ModelSource
from tercet.checkpoints.sources.safetensors_header import StoredTensor, read_header
from tercet.errors import CheckpointError

_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_ADAPTER = "adapter_config.json"

TOKENIZER_FILES: tuple[str, ...] = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
)
COMPANIONS: tuple[str, ...] = (*TOKENIZER_FILES, "generation_config.json")
"""What lies beside weights and configuration, and is needed to generate text."""


class SafetensorsDirectory(ModelSource):
    """A model in Hugging Face's layout.

    Args:
        directory: holds config.json and model.safetensors, or its index and every shard.
        reference: what the user called it; the directory by default.

    Errors:
        CheckpointError for a file that is missing, damaged or of another kind: pickled weights,
        weights that are quantized already.
    """

    def __init__(self, directory: Path, reference: str | None = None) -> None:
        self.directory = directory
        self.reference = reference if reference is not None else str(directory)
        _refuse_adapter(directory)
        self._config = read_json(directory / "config.json")
        _refuse_quantized(self._config, self.reference)
        self.files, self._tensors = open_weights(directory)

    @property
    def config(self) -> dict[str, Any]:
        return self._config

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._find_tensor(name).shape

    def dtype(self, name: str) -> torch.dtype:
        return self._find_tensor(name).dtype

    def place(self, name: str) -> tuple[Path, int]:
        stored = self._find_tensor(name)
        return stored.path, stored.begin

    def read_from(self, file: ReadableFile, name: str) -> Tensor:
        return self._find_tensor(name).read_from(file)

    def save_companions(self, directory: str | Path) -> None:
        for name in COMPANIONS:
            if (self.directory / name).is_file():
                shutil.copyfile(self.directory / name, Path(directory) / name)

    def _find_tensor(self, name: str) -> StoredTensor:
        if name not in self._tensors:
            raise self._missing(name)
        return self._tensors[name]


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; CheckpointError if it is missing or is none."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path} is missing: a model directory holds config.json and safetensors files, as "
            "save_pretrained writes them"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON ({error}): copy the file again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a JSON object: copy the file again")
    return cast(dict[str, Any], content)


def _refuse_adapter(directory: Path) -> None:
    weights = any((directory / name).is_file() for name in (_WHOLE, _INDEX))
    if (directory / _ADAPTER).is_file() and not weights:
        base = read_json(directory / _ADAPTER).get("base_model_name_or_path")
        raise CheckpointError(
            f"{directory} is an adapter of {base!r}, with no weights of its own: merge both with "
            f"peft's merge_and_unload(), save_pretrained() the result and pass that directory"
        )


def _refuse_quantized(config: dict[str, Any], reference: str) -> None:
    quantization: dict[str, Any] = config.get("quantization_config") or {}
    method = quantization.get("quant_method")
    if method is None and isinstance(config.get("quantization"), dict):
        method = "mlx"
    if method == "tercet":
        raise CheckpointError(
            f"{reference} is already compressed by Tercet: pass the model it was made from"
        )
    if method is not None:
        raise CheckpointError(
            f"{reference} is already quantized by {method!r}: pass the model it was made from"
        )


def open_weights(directory: Path) -> tuple[tuple[Path, ...], dict[str, StoredTensor]]:
    """The weight files of a directory, and where each tensor lies; no weight is read.

    Of a whole file and an index the file is read, as transformers does: save_pretrained into the
    directory of a model in shards leaves the index there.
    """
    if (directory / _WHOLE).is_file():
        return (directory / _WHOLE,), read_header(directory / _WHOLE)
    if (directory / _INDEX).is_file():
        return _open_shards(directory)
    raise _no_weights(directory)


def _open_shards(directory: Path) -> tuple[tuple[Path, ...], dict[str, StoredTensor]]:
    index: Any = read_json(directory / _INDEX).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise CheckpointError(f"{directory / _INDEX} has no weight_map: copy the file again")
    if not all(isinstance(shard, str) for shard in cast(dict[str, Any], index).values()):
        raise CheckpointError(f"{directory / _INDEX} names no files: copy the file again")
    weight_map = cast(dict[str, str], index)
    headers: dict[str, dict[str, StoredTensor]] = {}
    for shard in sorted(set(weight_map.values())):
        if not (directory / shard).is_file():
            raise CheckpointError(
                f"{directory / shard} is missing, though {_INDEX} lists it: copy every shard"
            )
        headers[shard] = read_header(directory / shard)
    for name, shard in weight_map.items():
        if name not in headers[shard]:
            raise CheckpointError(
                f"{directory / shard} has no tensor {name!r}, though {_INDEX} places it there: "
                "the index and the shards are of different models, copy them again"
            )
    files = tuple(directory / shard for shard in headers)
    return files, {name: headers[shard][name] for name, shard in weight_map.items()}


def _no_weights(directory: Path) -> CheckpointError:
    if any(directory.glob("*.bin")) or any(directory.glob("*.pt*")):
        return CheckpointError(
            f"{directory} holds pickled PyTorch weights, which can run code when opened and cannot "
            "be read tensor by tensor: convert them where you trust them, with transformers' "
            "AutoModel.from_pretrained(DIR).save_pretrained(NEW_DIR)"
        )
    if found := sorted(path.name for path in directory.glob("*.gguf")):
        return CheckpointError(
            f"{directory} holds no safetensors but GGUF: pass one file, such as "
            f"{directory / found[0]}"
        )
    if found := sorted(path.name for path in directory.glob("*.safetensors")):
        return CheckpointError(
            f"{directory} holds {found[0]}, but no {_WHOLE} and no {_INDEX}: rename it to {_WHOLE} "
            f"if it is the whole model, or copy the index that belongs to it"
        )
    return CheckpointError(
        f"{directory} holds no {_WHOLE} and no {_INDEX}: pass a directory that save_pretrained "
        "wrote, or a GGUF file"
    )
