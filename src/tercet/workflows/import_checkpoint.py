"""import: quantized checkpoints of other programs become packed ones."""

from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

from tercet.checkpoints.atomic import disk_errors
from tercet.checkpoints.imports.importer import (
    Importer,
    find_importer,
    importers,
    quantization_method,
)
from tercet.checkpoints.named_path import named_path, partial_directory
from tercet.checkpoints.packed.origin import ORIGIN_NAME
from tercet.checkpoints.packed.output_directory import claim_output, replace_directory
from tercet.checkpoints.packed.read import open_packed
from tercet.checkpoints.packed.stream import stream_weights
from tercet.checkpoints.seal import verified
from tercet.errors import CheckpointError, TercetError, UnsupportedError, unknown_name
from tercet.models import Decoder, supported_architecture


def import_checkpoint(path: str | Path, out: str | Path, *, overwrite: bool = False) -> None:
    """Convert another program's quantized checkpoint losslessly to the packed checkpoint `out`.

    Raises:
        CheckpointError: there is no checkpoint at `path`, the checkpoint is damaged or lacks a
            tensor, or `out` exists and `overwrite` is False.
        UnsupportedError: Tercet has no format that holds the checkpoint's weights exactly.
    """
    path = named_path(path)
    importer = find_importer(path)
    if importer is None:
        raise _unknown_checkpoint(path)
    with claim_output(out, overwrite=overwrite, sources=[path]) as target:
        _convert(importer, path, target)


def _convert(importer: Importer, path: Path, out: Path) -> None:
    """Nothing takes the name `out`, and nothing is left, before the model is known to be whole."""
    with (
        disk_errors(out, None),
        TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder,
    ):
        made = Path(folder) / out.name
        with verified(path, (path / ORIGIN_NAME).is_file()):
            importer.convert(path, made)
        _demand_whole(made)
        if partial_directory(out).exists():
            rmtree(partial_directory(out))
        replace_directory(made, out)


def _demand_whole(directory: Path) -> None:
    """CheckpointError where the model's configuration calls for a tensor that is not there.

    The lean decoder asks for all of them, so it is loaded once. Other architectures have nobody
    who knows their names without the model's own code.
    """
    checkpoint = open_packed(directory)
    if not supported_architecture(checkpoint.config):
        return
    with suppress(UnsupportedError), stream_weights(checkpoint) as weights:
        Decoder.from_checkpoint(weights)


def _unknown_checkpoint(path: Path) -> TercetError:
    """Return the error that says why no importer reads `path`."""
    names = [importer.name for importer in importers()]
    if not path.is_dir():
        return CheckpointError(
            f"{path}: no such directory or GGUF file; give a directory with config.json in it, or "
            f"a file that ends in .gguf; checkpoints of {', '.join(names)} are read"
        )
    method = quantization_method(path)
    if method is None:
        return CheckpointError(
            f"{path}: config.json has no quantization_config, so nothing is quantized: compress it "
            f"with tercet compress {path} --to FORMAT"
        )
    if method == "tercet":
        return CheckpointError(f"{path}: is a packed checkpoint of Tercet already: use it as it is")
    return UnsupportedError(unknown_name("quantization method", method, names))
