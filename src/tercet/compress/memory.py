"""Memory of a compression run: the estimate beforehand and the measured peak afterwards."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

import psutil

from tercet.compress.calibration.stream import batch_size
from tercet.compress.skeleton import Skeleton

_FLOAT_BYTES = 4
# weight, error, levels, scales and their transposes while one matrix is quantized
_COPIES_OF_LARGEST = 10
# a larger source is read a second time, layer by layer: it must not crowd out the work
_SHARE_FOR_SOURCE = 4
_GROUP = Path("/sys/fs/cgroup")
_CONTROL_GROUPS = (
    (_GROUP / "memory.max", _GROUP / "memory.current"),
    (_GROUP / "memory/memory.limit_in_bytes", _GROUP / "memory/memory.usage_in_bytes"),
)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Bytes that a run is expected to hold at its peak.

    Attributes:
        process_bytes: resident already (interpreter, libraries).
        unit_bytes: the largest layer, or all that lies outside the layers, in float32.
        activation_bytes: hidden states of all calibration sequences, and one batch inside a layer.
        statistics_bytes: Gram matrices of one layer and the work on its largest matrix.
        source_bytes: weights that are kept in memory after the check, so that they are read once.
    """

    process_bytes: int
    unit_bytes: int
    activation_bytes: int
    statistics_bytes: int
    source_bytes: int

    @property
    def total_bytes(self) -> int:
        """The sum of all parts."""
        work = self.unit_bytes + self.activation_bytes + self.statistics_bytes
        return self.process_bytes + work + self.source_bytes


def estimate(skeleton: Skeleton, tokens: tuple[int, int] | None, streams: int) -> Estimate:
    """The expected peak of compressing this model.

    Args:
        skeleton: the model.
        tokens: [sequences, length] of the calibration, or None without one.
        streams: 2 where the uncompressed model's hidden states are followed too, else 1.
    """
    layer = max(skeleton.layers, key=lambda one: sum(p.numel() for p in one.parameters()))
    matrices = [p.shape for p in layer.parameters() if p.ndim == 2]
    outside = sum(skeleton.model.get_parameter(name).numel() for name in skeleton.outside())
    layer_size = sum(p.numel() for p in layer.parameters())
    largest = max((rows * columns for rows, columns in matrices), default=0)
    grams = sum(columns * columns for columns in {columns for _, columns in matrices})
    activations = 0
    if tokens is not None:
        sequences, length = tokens
        width = min((min(shape) for shape in matrices), default=0)
        width = int(getattr(skeleton.model.config, "hidden_size", width))
        inside = sum(rows for rows, _ in matrices) + 4 * width
        activations = (
            streams * sequences * length * width
            + streams * min(batch_size(length), sequences) * length * inside
        )
    return Estimate(
        process_bytes=psutil.Process().memory_info().rss,
        unit_bytes=_FLOAT_BYTES * max(2 * layer_size, outside + layer_size),
        activation_bytes=_FLOAT_BYTES * activations,
        statistics_bytes=_FLOAT_BYTES * ((1 + streams) * grams + _COPIES_OF_LARGEST * largest),
        source_bytes=min(_source_bytes(skeleton), free_bytes() // _SHARE_FOR_SOURCE),
    )


def _source_bytes(skeleton: Skeleton) -> int:
    source = skeleton.source
    return sum(prod(source.shape(n)) * source.dtype(n).itemsize for n in source.names())


def free_bytes() -> int:
    """Memory that this process may still take: what is free here, and in its control group."""
    free = psutil.virtual_memory().available
    for limit, used in _CONTROL_GROUPS:
        if limit.is_file() and used.is_file() and limit.read_text().strip().isdigit():
            free = min(free, int(limit.read_text()) - int(used.read_text()))
    return max(free, 0)
