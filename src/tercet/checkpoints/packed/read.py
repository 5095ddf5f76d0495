"""Reading a packed checkpoint, with every name, shape, dtype, scale and header checked.

transformers fills what it does not find with random numbers and takes mismatched shapes of
quantized tensors without a word; here a checkpoint is whole or it is refused.
"""

import hashlib
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tercet.checkpoints.named_path import named_path
from tercet.checkpoints.packed.layout import (
    INDEX_NAME,
    MANIFEST_NAME,
    QUANT_METHOD,
    FileInfo,
    Layout,
    Manifest,
    PackedModule,
    QuantizationConfig,
)
from tercet.checkpoints.seal import check_directory, verified
from tercet.errors import CheckpointError, FormatError
from tercet.formats import PackedTensor

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_Model = TypeVar("_Model", bound=BaseModel)
_HEADER_LIMIT_BYTES = 100 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class PackedCheckpoint:
    """An open packed checkpoint; each tensor is read from disk when a method asks for it.

    Attributes:
        directory: the checkpoint's directory.
        config: the content of config.json, including quantization_config.
        quantization: the parsed quantization_config.
        manifest: origin and hashes of the weights; None if another program wrote the files.
        layout: dtype and shape of every stored tensor, by name.
        file_of: name of the file that holds each tensor, by tensor name.
    """

    directory: Path
    config: dict[str, Any]
    quantization: QuantizationConfig
    manifest: Manifest | None
    layout: Layout
    file_of: dict[str, str]

    @property
    def modules(self) -> dict[str, PackedModule]:
        """The packed modules by name."""
        return self.quantization.modules

    @property
    def size_bytes(self) -> int:
        """Total size of the weight files on disk, in bytes."""
        return sum((self.directory / file).stat().st_size for file in set(self.file_of.values()))

    @property
    def parameters(self) -> int:
        """Number of parameters of the uncompressed model; tied parameters count once."""
        packed = sum(prod(module.shape) for module in self.modules.values())
        return packed + sum(prod(self.layout[name][1]) for name in self.names())

    def names(self) -> list[str]:
        """Names of the tensors outside of packed modules: norms, biases, uncompressed weights."""
        packed = self.quantization.layout()
        return [name for name in self.layout if name not in packed]

    def tensor(self, name: str) -> Tensor:
        """Read one stored tensor into memory of its own."""
        if name not in self.file_of:
            raise CheckpointError(f"{self.directory}: holds no tensor {name!r}")
        with cast(Any, safe_open)(str(self.directory / self.file_of[name]), "pt") as file:
            return file.get_tensor(name).clone()

    def read_packed(self, module: str) -> PackedTensor:
        """Read and validate the weight of a packed module."""
        weight = assemble(self.modules[module], module, self.tensor)
        with self.name_damage():
            weight.validate(module)
        return weight

    @contextmanager
    def name_damage(self) -> Generator[None]:
        """Turns a FormatError of one of its weights into a CheckpointError that says what to do."""
        try:
            yield
        except FormatError as error:
            raise CheckpointError(f"{self.directory}: {error}: {_REFETCH}") from error

    def input_scale(self, module: str) -> Tensor:
        """Read the vector [K] that multiplies the module's input."""
        scale = self.tensor(f"{module}.input_scale").float()
        with self.name_damage():
            if not bool(scale.isfinite().all()):
                raise FormatError(f"{module}.input_scale is not finite")
        return scale

    def verify(self) -> None:
        """Check every file against its hash and every packed weight against its invariants.

        The hashes of the manifest are checked beside those of the seal: the two must agree.
        """
        with verified(self.directory):
            pass
        for name, info in (self.manifest.files if self.manifest else {}).items():
            with (self.directory / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != info.sha256:
                raise CheckpointError(
                    f"{self.directory / name}: sha256 {found}, the manifest says {info.sha256}: "
                    + _REFETCH
                )
        for module in self.modules:
            self.read_packed(module)


_REFETCH = "the checkpoint is damaged; copy it again or compress again with --overwrite"


def assemble(entry: PackedModule, module: str, read: Callable[[str], Tensor]) -> PackedTensor:
    """The weight of a packed module from its tensors, as `read` gives each by its name."""
    parts = {
        name.removeprefix(f"{module}.weight_"): read(name)
        for name in entry.layout(module)
        if name.startswith(f"{module}.weight_")
    }
    return PackedTensor(
        codes=parts["packed"],
        scale=parts["scale"],
        zero=parts.get("zero"),
        second=parts.get("second"),
        scheme=entry.scheme,
        shape=entry.shape,
    )


def is_packed(directory: Path) -> bool:
    """Whether the directory's config.json says that it is a packed checkpoint of Tercet."""
    try:
        config: Any = json.loads((directory / "config.json").read_text())
        return config["quantization_config"]["quant_method"] == QUANT_METHOD
    except (OSError, ValueError, KeyError, TypeError):
        return False


def open_packed(directory: str | Path) -> PackedCheckpoint:
    """Open a packed checkpoint and check its files' headers; no weights are read.

    Raises:
        CheckpointError: a file is missing, damaged or of another version; the message says what to
            do.
    """
    directory = named_path(directory)
    check_directory(directory)
    config = _read_json(directory / "config.json")
    section: dict[str, Any] | None = config.get("quantization_config")
    if not isinstance(section, dict) or section.get("quant_method") != QUANT_METHOD:
        raise CheckpointError(
            f"{directory}: config.json has no quantization_config of method {QUANT_METHOD!r}: "
            f"this is not a packed checkpoint; make one of a model with `tercet compress "
            f"{directory}`, of another program's packed one with `tercet import {directory}`"
        )
    quantization = _parse(QuantizationConfig, section, directory / "config.json")
    manifest = _manifest(directory)
    layout: Layout = {}
    file_of: dict[str, str] = {}
    for file, info in _files(directory, manifest).items():
        for name, spec in read_header(directory / file, info).items():
            layout[name], file_of[name] = spec, file
    index = directory / INDEX_NAME
    if index.exists() and _read_json(index).get("weight_map") != file_of:
        raise CheckpointError(f"{index}: does not match the files: {_REFETCH}")
    _compare(directory, quantization, layout)
    if manifest is not None:
        _compare_manifest(directory, quantization, manifest)
    return PackedCheckpoint(
        directory=directory,
        config=config,
        quantization=quantization,
        manifest=manifest,
        layout=layout,
        file_of=file_of,
    )


def _manifest(directory: Path) -> Manifest | None:
    path = directory / MANIFEST_NAME
    return _parse(Manifest, _read_json(path), path) if path.exists() else None


def _files(directory: Path, manifest: Manifest | None) -> dict[str, FileInfo | None]:
    """The weight files; without a manifest (transformers' save_pretrained) those of the index."""
    if manifest is not None:
        return dict(manifest.files)
    if (directory / INDEX_NAME).exists():
        names = set(_read_json(directory / INDEX_NAME).get("weight_map", {}).values())
        return dict.fromkeys(sorted(names))
    return {"model.safetensors": None}


def read_header(path: Path, info: FileInfo | None = None) -> Layout:
    """dtype and shape of each tensor of a safetensors file, checked against its recorded hash."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            raw = file.read(min(length, _HEADER_LIMIT_BYTES))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}: {_REFETCH}") from error
    if info is not None:
        if size != info.size_bytes:
            raise CheckpointError(
                f"{path}: {size} bytes, the manifest says {info.size_bytes}: {_REFETCH}"
            )
        if hashlib.sha256(raw).hexdigest() != info.header_sha256 or len(raw) != length:
            raise CheckpointError(f"{path}: the header does not match its hash: {_REFETCH}")
    try:
        with cast(Any, safe_open)(str(path), "pt") as file:
            names: set[str] = set(file.keys())
        entries = {name: entry for name, entry in json.loads(raw).items() if name in names}
        return {
            name: (_DTYPES[entry["dtype"]], tuple(entry["shape"]))
            for name, entry in entries.items()
        }
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: not a safetensors file ({error}): {_REFETCH}") from error


def _compare(directory: Path, quantization: QuantizationConfig, layout: Layout) -> None:
    try:
        expected = quantization.layout()
    except FormatError as error:
        raise CheckpointError(f"{directory}: config.json: {error}: {_REFETCH}") from error
    for name, (dtype, shape) in expected.items():
        if name not in layout:
            raise CheckpointError(f"{directory}: tensor {name!r} is missing: {_REFETCH}")
        if layout[name] != (dtype, shape):
            found_dtype, found_shape = layout[name]
            raise CheckpointError(
                f"{directory}: {name}: config.json calls for {dtype} {list(shape)}, the file has "
                f"{found_dtype} {list(found_shape)}: {_REFETCH}"
            )


def _compare_manifest(
    directory: Path, quantization: QuantizationConfig, manifest: Manifest
) -> None:
    # formats may share a layout (int4 and fp4_e2m1), so the shapes alone do not tell them apart
    told = {name: info.format for name, info in manifest.modules.items()}
    found = {name: module.format for name, module in quantization.modules.items()}
    for name in sorted({*told, *found}):
        if told.get(name) != found.get(name):
            raise CheckpointError(
                f"{directory}: {name}: config.json says format {found.get(name)}, the manifest "
                f"{told.get(name)}: {_REFETCH}"
            )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing; {_REFETCH}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error}): {_REFETCH}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: not a JSON object: {_REFETCH}")
    return cast(dict[str, Any], content)


def _parse(model: type[_Model], data: dict[str, Any], path: Path) -> _Model:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(
            f"{path}: {where}: {first['msg']} (found {first['input']!r}); "
            f"written by another version of Tercet, or damaged"
        ) from error
