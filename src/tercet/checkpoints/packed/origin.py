"""What an export remembers of its packed checkpoint, so that import gives back the same bytes.

`tercet_origin.json` lies beside the exported files, and `tercet_origin.tensors` (safetensors under
a name that no engine looks for) where values alone do not say what the codes were.
"""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors.torch import save
from torch import Tensor

from tercet.checkpoints.packed.layout import INDEX_NAME, MANIFEST_NAME, PackedModule
from tercet.checkpoints.packed.read import PackedCheckpoint, open_packed
from tercet.checkpoints.seal import SEAL_NAME, seal
from tercet.checkpoints.sources.safetensors_header import read_header
from tercet.errors import CheckpointError
from tercet.formats import Scheme, encode

ORIGIN_NAME = "tercet_origin.json"
ORIGIN_TENSORS = "tercet_origin.tensors"
_TEXTS = ("config.json", INDEX_NAME, MANIFEST_NAME)


class Origin(BaseModel):
    """The packed checkpoint that was exported, less its weights.

    Attributes:
        texts: config.json, index and manifest, each word for word, as far as they were there.
        file_of: the file that held each tensor.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = 1
    texts: dict[str, str]
    file_of: dict[str, str]


def remember(checkpoint: PackedCheckpoint, target: Path, dequantized: Iterable[str] = ()) -> None:
    """Writes the origin of an export into its directory.

    Args:
        checkpoint: what was exported.
        target: the directory of the export.
        dequantized: modules of which the export holds the float32 values only. Their scales go
            into a file of their own, and their codes where the values do not tell them (the code
            of a weight whose scale is 0).
    """
    kept: dict[str, Tensor] = {}
    for module in dequantized:
        weight = checkpoint.read_packed(module)
        again = _codes(weight.dequantize(), weight.scheme, weight.scale, weight.zero)
        told = again is not None and torch.equal(again, weight.codes)
        parts = {k: v for k, v in weight.parts().items() if k != "packed" or not told}
        kept.update({f"{module}.weight_{part}": tensor for part, tensor in parts.items()})
    if kept:
        (target / ORIGIN_TENSORS).write_bytes(save(kept))
    texts = {name: checkpoint.directory / name for name in _TEXTS}
    origin = Origin(
        texts={name: path.read_text() for name, path in texts.items() if path.exists()},
        file_of=checkpoint.file_of,
    )
    (target / ORIGIN_NAME).write_text(origin.model_dump_json(indent=1))


def _codes(values: Tensor, scheme: Scheme, scale: Tensor, zero: Tensor | None) -> Tensor | None:
    """Codes in storage form of float32 values under stored scales; None with a second level."""
    if scheme.scaling.second_level or scheme.scaling.dtype == "e8m0":
        return None
    return encode(values, scheme, scale.float(), None if zero is None else zero.float()).codes


def dequantized_parts(
    directory: Path, module: str, entry: PackedModule, values: Tensor
) -> dict[str, Tensor]:
    """The tensors of a module of which the export holds float32 values [N, K], by name."""
    path = directory / ORIGIN_TENSORS
    stored = read_header(path) if path.is_file() else {}
    if f"{module}.weight_scale" not in stored:
        raise CheckpointError(
            f"{path}: holds no scales of {module}, which the export has dequantized: copy it "
            f"again, or remove {ORIGIN_NAME} to import the directory as a foreign checkpoint"
        )
    names = [name for name in entry.layout(module) if name in stored]
    found = {name: stored[name].read() for name in names}
    if f"{module}.weight_packed" not in found:
        scale, zero = found[f"{module}.weight_scale"], found.get(f"{module}.weight_zero")
        codes = _codes(values, entry.scheme, scale, zero)
        assert codes is not None
        found[f"{module}.weight_packed"] = codes
    return found


def recall(directory: Path) -> Origin | None:
    """The origin of an exported directory; None where another program made it."""
    path = directory / ORIGIN_NAME
    if not path.is_file():
        return None
    try:
        return Origin.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise CheckpointError(
            f"{path}: damaged ({error.errors()[0]['msg']}): copy it again, or remove it to import "
            f"the directory as a foreign checkpoint"
        ) from error


def copy_companions(source: Path, target: Path) -> None:
    """Copies what lies beside weights and configuration: tokenizer, templates, licences."""
    ours = {*_TEXTS, ORIGIN_NAME, ORIGIN_TENSORS, SEAL_NAME}
    for path in source.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and path.name not in ours:
            shutil.copyfile(path, target / path.name)


def write_origin(
    origin: Origin, read: Callable[[list[str]], dict[str, Tensor]], target: Path, source: Path
) -> None:
    """Writes the remembered checkpoint again and checks it against its manifest.

    Args:
        origin: what it was.
        read: gives tensors of the packed checkpoint by name, one file's at a time.
        target: an empty directory.
        source: where the export lies; companions are copied from there.

    Raises:
        CheckpointError: the export was changed since.
    """
    for file in sorted(set(origin.file_of.values())):
        held = sorted(name for name, place in origin.file_of.items() if place == file)
        (target / file).write_bytes(save(read(held)))
    for name, text in origin.texts.items():
        (target / name).write_text(text)
    copy_companions(source, target)
    seal(target)
    try:
        open_packed(target).verify()
    except CheckpointError as error:
        raise CheckpointError(
            f"{source}: its weights are not those that were exported ({error}); remove "
            f"{ORIGIN_NAME} to import it as a foreign checkpoint"
        ) from error
