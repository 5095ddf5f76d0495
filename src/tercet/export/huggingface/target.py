"""The packed checkpoint itself as a target: transformers loads it after `import tercet`."""

from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile

from torch import Tensor

from tercet.checkpoints.atomic import atomic_directory
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.export import transformers_client
from tercet.export.target import Holding
from tercet.export.unpacked import compare_directory


class HuggingFace:
    """Every format, every input transform: the files are Tercet's own."""

    name = "huggingface"
    client = "transformers"
    extra = "huggingface"

    def holdings(self, checkpoint: PackedCheckpoint) -> tuple[Holding, ...]:
        return tuple(
            Holding(
                module=name,
                kind=entry.format,
                bits_per_weight=entry.scheme.bits_per_weight(entry.shape),
                activation_block=None if entry.activation is None else entry.shape[1],
            )
            for name, entry in checkpoint.modules.items()
        )

    def write(self, checkpoint: PackedCheckpoint, out: Path) -> None:
        with atomic_directory(out) as target:
            for path in checkpoint.directory.iterdir():
                if path.is_file():
                    copyfile(path, target / path.name)

    def write_twin(self, checkpoint: PackedCheckpoint, out: Path) -> None:
        transformers_client.write_twin(checkpoint, out)

    def dequantize(self, out: Path) -> Iterator[tuple[str, Tensor]]:
        model = transformers_client.load(out)
        from tercet.export.huggingface.packed_buffers import PackedBuffers

        for name, module in model.named_modules():
            if isinstance(module, PackedBuffers):
                yield name, module.to_packed().dequantize()

    def differences(self, checkpoint: PackedCheckpoint, out: Path) -> Iterator[str]:
        return compare_directory(checkpoint, out)

    def logits(self, out: Path, tokens: list[int]) -> Tensor:
        return transformers_client.logits(out, tokens)

    def greedy(self, out: Path, tokens: list[int], count: int) -> list[int]:
        return transformers_client.greedy(out, tokens, count)


TARGET = HuggingFace()
