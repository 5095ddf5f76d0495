"""import: quantized checkpoints of other programs become packed ones."""

from collections.abc import Callable
from pathlib import Path

from tercet.checkpoints import awq, bitnet, compressed_tensors, gptq
from tercet.checkpoints.gguf_import import import_gguf
from tercet.checkpoints.safetensors_directory import read_json
from tercet.errors import CheckpointError, UnsupportedError, unknown_name

_Reader = Callable[..., None]

READERS: dict[str, _Reader] = {
    awq.METHOD: awq.read_awq,
    bitnet.METHOD: bitnet.read_bitnet,
    compressed_tensors.METHOD: compressed_tensors.read_compressed_tensors,
    gptq.METHOD: gptq.read_gptq,
}
"""By `quant_method`: a function of the directory, `out` and `overwrite`."""


def import_checkpoint(path: str | Path, out: str | Path, *, overwrite: bool = False) -> None:
    """Writes the packed checkpoint `out` from another program's quantized one, without loss.

    Raises:
        CheckpointError: no checkpoint lies at `path`, it is damaged, or `out` is in the way.
        UnsupportedError: it is held in a way that Tercet cannot hold without loss.
    """
    path, out = Path(path), Path(out)
    if path.is_file() and path.suffix == ".gguf":
        import_gguf(path, out, overwrite=overwrite)
        return
    if not path.is_dir():
        raise CheckpointError(
            f"{path}: no such directory or GGUF file; give a directory with config.json in it, or "
            f"a file that ends in .gguf"
        )
    section = read_json(path / "config.json").get("quantization_config")
    if not isinstance(section, dict):
        raise CheckpointError(
            f"{path}: config.json has no quantization_config, so nothing is quantized: compress it "
            f"with tercet compress {path} --to FORMAT"
        )
    method = str(section.get("quant_method"))  # pyright: ignore[reportUnknownArgumentType]
    if method == "tercet":
        raise CheckpointError(f"{path}: is a packed checkpoint of Tercet already: use it as it is")
    if method not in READERS:
        raise UnsupportedError(unknown_name("quantization method", method, READERS))
    READERS[method](path, out, overwrite=overwrite)
