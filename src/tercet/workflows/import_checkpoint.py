"""import: quantized checkpoints of other programs become packed ones."""

from pathlib import Path

from tercet.checkpoints.imports.importer import find_importer, importers, quantization_method
from tercet.errors import CheckpointError, TercetError, UnsupportedError, unknown_name


def import_checkpoint(path: str | Path, out: str | Path, *, overwrite: bool = False) -> None:
    """Convert another program's quantized checkpoint losslessly to the packed checkpoint `out`.

    Raises:
        CheckpointError: there is no checkpoint at `path`, the checkpoint is damaged, or `out`
            exists and `overwrite` is False.
        UnsupportedError: Tercet has no format that holds the checkpoint's weights exactly.
    """
    path, out = Path(path), Path(out)
    importer = find_importer(path)
    if importer is None:
        raise _unknown_checkpoint(path)
    importer.convert(path, out, overwrite=overwrite)


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
