"""CUDA C++: a .cu file to a shared library for this machine's GPU, once, with nvcc.

The library is called through ctypes with pointers and torch's current stream, so it needs neither
torch's headers nor a binding layer.
"""

import ctypes
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tercet import environment
from tercet.errors import BuildError
from tercet.kernel.jit.cpp import INCLUDE, cached_path, load_or_build, version_of

FLAGS = ("-std=c++17", "-O3", "-shared", "-Xcompiler", "-fPIC", "--expt-relaxed-constexpr")
_MINUTES = 10
_torch: Any = torch._C  # pyright: ignore[reportPrivateUsage]
Defines = Mapping[str, str | int]


@dataclass(frozen=True)
class Build:
    """One library: a .cu file, and the macros that choose its types.

    Every module in CUDA C++ names its own in `BUILDS`, so that they can be compiled without a GPU.
    """

    source: Path
    defines: Defines = field(default_factory=dict[str, str | int])

    @property
    def name(self) -> str:
        """For reports: "hopper_decode/kernel.cu TERCET_X=int8_t"."""
        source = f"{self.source.parent.name}/{self.source.name}"
        return " ".join((source, *_assignments(self.defines)))

    @property
    def flags(self) -> tuple[str, ...]:
        """The macros as the compiler takes them."""
        return tuple(f"-D{each}" for each in _assignments(self.defines))

    def load(self) -> ctypes.CDLL:
        """The library for this machine's GPU. BuildError where it cannot be built."""
        return build_cuda(self.source, self.defines)


def find_nvcc() -> str | None:
    """The CUDA compiler's path (on PATH, or in CUDA_HOME); None where there is none."""
    home = environment.cuda_home()
    return shutil.which("nvcc") or (shutil.which("nvcc", path=home / "bin") if home else None)


def architecture(capability: tuple[int, int]) -> str:
    """nvcc's name of a compute capability, with the features of that very architecture."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def build_cuda(source: Path, defines: Defines | None = None) -> ctypes.CDLL:
    """The library of one .cu file for the current GPU, from the cache or compiled into it.

    Args:
        source: may include headers beside it, and those of this package by their path in it.
        defines: macros and their values; sources with other values are other libraries.

    Raises:
        BuildError: without nvcc or a GPU, or with the end of what nvcc said.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise BuildError(
            f"no nvcc for {source.name}: put CUDA's bin on PATH, or its folder in CUDA_HOME"
        )
    if not torch.cuda.is_available():
        raise BuildError(f"no GPU to compile {source.name} for: torch finds none")
    target, build = architecture(torch.cuda.get_device_capability()), Build(source, defines or {})
    values = (str(value) for _, value in sorted(build.defines.items()))
    name = "-".join((source.parent.name, source.stem, *values))
    library = cached_path(source, (*FLAGS, *build.flags, version_of(nvcc), target), name)
    # -arch alone also runs a pass without the architecture's own features (nvcc 13.0)
    code = f"-gencode=arch={target.replace('sm', 'compute')},code={target}"
    command = [nvcc, *FLAGS, *build.flags, code, f"-I{INCLUDE}"]
    return load_or_build(source, command, library, _MINUTES)


def _assignments(defines: Defines) -> list[str]:
    """NAME=VALUE of each macro, in one order whatever the mapping's."""
    return [f"{name}={value}" for name, value in sorted(defines.items())]


def stream() -> int:
    """The current CUDA stream, as a pointer."""
    # torch.cuda.current_stream() builds an object, a fifth of the host's time for a launch, and
    # torch.cuda.current_device() asks first whether CUDA has begun: a tensor is there already
    return _torch._cuda_getCurrentRawStream(_torch._cuda_getDevice())


def check_launch(status: int, name: str) -> None:
    """Raises RuntimeError where a library's launcher, of that name in the message, failed."""
    if status:
        raise RuntimeError(f"{name}: CUDA error {status} at launch")
