"""Budget: the bytes of a choice of formats, exactly as the packed checkpoint stores them."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch

from tercet.checkpoints.packed.file_size import file_size_bytes
from tercet.checkpoints.packed.layout import Layout, PackedModule
from tercet.compress.allocate.sensitivity_file import Sensitivity
from tercet.formats import parse_scheme

Formats = Mapping[str, str]
"""The format of each packed module, by name."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """What a choice of formats takes.

    Attributes:
        checkpoint_bytes: the weight files of the checkpoint, headers and what stays included.
        packed_bytes: codes, scales and zero points of the allocated modules.
        weights: how many weights those are.
    """

    checkpoint_bytes: int
    packed_bytes: int
    weights: int

    @property
    def bits_per_weight(self) -> float:
        """Bits per weight of the allocated modules."""
        return 8 * self.packed_bytes / self.weights


def allocated(sensitivity: Sensitivity) -> list[str]:
    """The modules that have a choice; all of them, where none has."""
    modules = sensitivity.identity.modules
    names = [name for name, module in modules.items() if len(module.formats) > 1]
    return names or list(modules)


def module_bytes(sensitivity: Sensitivity, name: str, form: str) -> int:
    """Codes, scales, zero points and the input's scales of one module in one format."""
    return sum(dtype.itemsize * prod(shape) for dtype, shape in _layout(sensitivity, name, form))


def measure_size(sensitivity: Sensitivity, formats: Formats) -> Size:
    """The size of the checkpoint that a plan with these formats gives."""
    identity = sensitivity.identity
    units: list[Layout] = [
        {name: (getattr(torch, dtype), tuple(shape)) for name, (dtype, shape) in kept.items()}
        for kept in identity.kept
    ]
    for name, form in formats.items():
        units[identity.modules[name].unit] |= _entry(sensitivity, name, form).layout(name)
    names = allocated(sensitivity)
    return Size(
        checkpoint_bytes=sum(map(file_size_bytes, units)),
        packed_bytes=sum(module_bytes(sensitivity, name, formats[name]) for name in names),
        weights=sum(prod(identity.modules[name].shape) for name in names),
    )


def _entry(sensitivity: Sensitivity, name: str, form: str) -> PackedModule:
    return PackedModule(
        format=parse_scheme(form).name,
        shape=sensitivity.identity.modules[name].shape,
        input_scale=sensitivity.lines[name, form].input_scale,
    )


def _layout(
    sensitivity: Sensitivity, name: str, form: str
) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    return list(_entry(sensitivity, name, form).layout(name).values())
