"""Sizes, everything counted: bytes on disk, bytes in memory, ratios that name their baseline."""

import re
from dataclasses import dataclass
from math import prod

from tercet.checkpoints.packed.read import PackedCheckpoint

# embedding and head lie in no numbered layer, whatever they are called
_NUMBERED = re.compile(r"\.\d+\.")
_BF16_BYTES, _FP32_BYTES = 2, 4


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of a packed checkpoint against the same model uncompressed.

    Attributes:
        disk_bytes: all weight files, headers included.
        directory_bytes: every file of the checkpoint, tokenizer and manifest included.
        parameters: of the model, tied ones once.
        body_bits_per_weight: of the layers' packed linears, scales and zero points included.
        bits_per_weight: disk_bytes over all parameters: embeddings, norms, scales and metadata.
    """

    disk_bytes: int
    directory_bytes: int
    parameters: int
    body_bits_per_weight: float
    bits_per_weight: float

    @property
    def ratio_to_bf16(self) -> float:
        """How many times smaller than the same parameters at two bytes each."""
        return self.parameters * _BF16_BYTES / self.disk_bytes

    @property
    def ratio_to_fp32(self) -> float:
        """How many times smaller than the same parameters at four bytes each."""
        return self.parameters * _FP32_BYTES / self.disk_bytes

    def metrics(self) -> dict[str, float]:
        """The values by name."""
        return {
            "disk_bytes": self.disk_bytes,
            "directory_bytes": self.directory_bytes,
            "parameters": self.parameters,
            "body_bits_per_weight": self.body_bits_per_weight,
            "bits_per_weight": self.bits_per_weight,
            "ratio_to_bf16": self.ratio_to_bf16,
            "ratio_to_fp32": self.ratio_to_fp32,
        }


def measure_size(checkpoint: PackedCheckpoint) -> Size:
    """Counts the files of a packed checkpoint."""
    body = [
        (module.scheme.size_bytes(module.shape), prod(module.shape))
        for name, module in checkpoint.modules.items()
        if _NUMBERED.search(name)
    ]
    weights = sum(count for _, count in body)
    parameters = checkpoint.parameters
    files = [path for path in checkpoint.directory.rglob("*") if path.is_file()]
    return Size(
        disk_bytes=checkpoint.size_bytes,
        directory_bytes=sum(path.stat().st_size for path in files),
        parameters=parameters,
        body_bits_per_weight=8 * sum(size for size, _ in body) / weights if weights else 0.0,
        bits_per_weight=8 * checkpoint.size_bytes / parameters,
    )
