"""Requirement: what an implementation needs of a machine and of a call, judged in words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tercet.kernel.jit.cpp import find_compiler
from tercet.kernel.jit.cuda import find_nvcc

Sizes = Mapping[str, int]
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Context:
    """Where a call runs, and what it is: `options` in the words that requirements speak."""

    device: str
    dtype: torch.dtype
    sizes: Sizes = field(default_factory=dict[str, int])
    options: Options = field(default_factory=dict[str, Any])


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """What an implementation needs.

    Attributes:
        devices: device types it runs on; empty means any.
        dtypes: dtypes of the activations it takes.
        compiler: whether a C++ compiler has to be present.
        nvcc: whether the CUDA compiler has to be present.
        capability: the least CUDA compute capability, (major, minor).
        architecture: the only CUDA compute capability that it runs on, for kernels with
            instructions of one architecture (wgmma is (9, 0)'s alone).
        multiples: axis -> what its size must be a multiple of.
        ranges: axis -> the least and the largest size.
        options: option -> the values it takes, in the words of the op's `traits`.
    """

    devices: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...]
    compiler: bool = False
    nvcc: bool = False
    capability: tuple[int, int] | None = None
    architecture: tuple[int, int] | None = None
    multiples: Mapping[str, int] = field(default_factory=dict[str, int])
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])

    def unmet(self, context: Context) -> str | None:
        """The first thing that is missing, in words; None when the implementation may run."""
        if self.devices and context.device not in self.devices:
            return f"runs on {' or '.join(self.devices)}, the tensors are on {context.device}"
        if context.dtype not in self.dtypes:
            allowed = ", ".join(str(dtype) for dtype in self.dtypes)
            return f"takes {allowed}, the input is {context.dtype}"
        if self.compiler and find_compiler() is None:
            return "no C++ compiler was found: run `apt install g++` or set CXX"
        if self.nvcc and find_nvcc() is None:
            return "no nvcc was found: put CUDA's bin on PATH, or its folder in CUDA_HOME"
        if self.capability is not None or self.architecture is not None:
            capability = gpu_capability()
            if capability is not None and (missing := self.unmet_by(capability)):
                return missing
        return self.unfit(context.sizes, context.options)

    def unmet_by(self, capability: tuple[int, int] | None) -> str | None:
        """What a GPU of that compute capability (None: it has none) misses, in words; or None."""
        found = f"this GPU has {'none' if capability is None else _dotted(capability)}"
        if self.architecture is not None and capability != self.architecture:
            return f"needs compute capability {_dotted(self.architecture)} exactly, {found}"
        if self.capability is None or (capability is not None and capability >= self.capability):
            return None
        return f"needs compute capability {_dotted(self.capability)} or newer, {found}"

    def unfit(self, sizes: Sizes, options: Options | None = None) -> str | None:
        """Which size or option it cannot take, in words; those not given are not judged."""
        for axis, multiple in self.multiples.items():
            if sizes.get(axis, 0) % multiple:
                return f"needs {axis} to be a multiple of {multiple}, it is {sizes[axis]}"
        for axis, (least, most) in self.ranges.items():
            if not least <= sizes.get(axis, least) <= most:
                return f"takes {axis} from {least} to {most}, it is {sizes[axis]}"
        for name, allowed in self.options.items():
            if options is not None and name in options and options[name] not in allowed:
                words = " or ".join(map(str, allowed))
                return f"takes {name} {words}, it is {options[name]}"
        return None


def gpu_capability() -> tuple[int, int] | None:
    """The compute capability of the current GPU; None without one.

    Asking starts CUDA in this process, with a context of some 300 MB on the GPU, and a forked child
    of a process that has one cannot ask: so calls on a CPU must not.
    """
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
