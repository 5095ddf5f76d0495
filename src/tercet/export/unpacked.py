"""What of an export is not packed: whether norms, biases and settings arrived as they were.

A target that can say so is `Comparable`. Two numbers are the same where all bits in float32 are.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.checkpoints.sources.safetensors_directory import open_weights, read_json
from tercet.models import find_architecture, read_config
from tercet.models.decoder.rope import read_rotations

# how the weights are held over there, which is no setting of the model
_ABOUT_WEIGHTS = ("dtype", "torch_dtype", "quantization_config")


@runtime_checkable
class Comparable(Protocol):
    """A target whose unpacked tensors and settings can be read back."""

    def differences(self, checkpoint: PackedCheckpoint, out: Path) -> Iterator[str]:
        """A line for each unpacked tensor or setting that is not as in the checkpoint."""
        ...


def compare_tensors(
    checkpoint: PackedCheckpoint,
    names: Iterable[str],
    read: Mapping[str, Callable[[], Tensor]],
    held: Callable[[str, Tensor], Tensor] = lambda _, values: values,
) -> Iterator[str]:
    """A line for each of the checkpoint's unpacked tensors that `read` lacks or gives otherwise.

    Args:
        checkpoint: with the tensors.
        names: of those to compare.
        read: gives what is found, by name.
        held: (name, float32 values) -> what the target can hold of them, by its definition.
    """
    for name in names:
        if name not in read:
            yield f"{name} is missing"
            continue
        expected, found = held(name, checkpoint.tensor(name).float()), read[name]().float()
        if expected.shape != found.shape:
            yield f"{name} has shape {list(found.shape)}, not {list(expected.shape)}"
            continue
        wrong = expected.contiguous().view(torch.int32) != found.contiguous().view(torch.int32)
        if bool(wrong.any()):
            yield f"{name} differs in {int(wrong.sum())} of {wrong.numel()} values"


def compare_directory(checkpoint: PackedCheckpoint, out: Path) -> Iterator[str]:
    """Of a directory with safetensors under the checkpoint's names and a config.json."""
    _, stored = open_weights(out)
    yield from compare_tensors(
        checkpoint, checkpoint.names(), {name: stored[name].read for name in stored}
    )
    found = read_json(out / "config.json")
    for key, value in checkpoint.config.items():
        if key not in _ABOUT_WEIGHTS and found.get(key) != value:
            yield f"config.json: {key} is {found.get(key)!r}, not {value!r}"


def compare_decoders(expected: dict[str, Any], found: dict[str, Any]) -> Iterator[str]:
    """A line for each size, epsilon or rotary frequency of a decoder that differs.

    Args:
        expected, found: contents of config.json; a number may have passed through float32.
    """
    kinds = [find_architecture(one) for one in (expected, found)]
    ours, theirs = map(read_config, kinds, (expected, found))
    for key, value in asdict(ours).items():
        other = asdict(theirs)[key]
        same = _round(other) == _round(value) if isinstance(value, float) else other == value
        if not same:
            yield f"{key} is {other!r}, not {value!r}"
    first, second = (
        read_rotations(kind, one, ours.layers, ours.head_dim)
        for kind, one in zip(kinds, (expected, found), strict=True)
    )
    # each is computed anew, of a base or of divisors that passed through float32
    if first.of_layer != second.of_layer or not all(
        torch.allclose(other, one, rtol=1e-6, atol=0.0)
        for one, other in zip(first.kinds, second.kinds, strict=True)
    ):
        yield "rotary frequencies differ"


def _round(number: float) -> float:
    return float(torch.tensor(number, dtype=torch.float32))
