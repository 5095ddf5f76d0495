"""CUDA C++: a .cu file to a shared library for this machine's GPU, once, with nvcc.

The library is called through ctypes with pointers and torch's current stream, so it needs neither
torch's headers nor a binding layer.
"""

import ctypes
import shutil
from pathlib import Path

import torch

from tercet import environment
from tercet.errors import BuildError
from tercet.kernel.compile import cached_path, load_or_build, version_of

INCLUDE = Path(__file__).parent / "device"
FLAGS = ("-std=c++17", "-O3", "-shared", "-Xcompiler", "-fPIC", "--expt-relaxed-constexpr")
_MINUTES = 10


def find_nvcc() -> str | None:
    """The CUDA compiler's path (on PATH, or in CUDA_HOME); None where there is none."""
    home = environment.cuda_home()
    return shutil.which("nvcc") or (shutil.which("nvcc", path=home / "bin") if home else None)


def architecture(capability: tuple[int, int]) -> str:
    """nvcc's name of a compute capability, with the features of that very architecture."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def build_cuda(source: Path, capability: tuple[int, int] | None = None) -> ctypes.CDLL:
    """The library of one .cu file, from the cache or freshly compiled into it.

    Args:
        source: may include headers beside it and those of kernel/device.
        capability: of the GPU to compile for; None is the current one.

    Raises:
        BuildError: without nvcc, or with the end of what it said.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise BuildError(
            f"no nvcc for {source.name}: put CUDA's bin on PATH, or its folder in CUDA_HOME"
        )
    target = architecture(capability or torch.cuda.get_device_capability())
    headers = (*sorted(source.parent.glob("*.cuh")), *sorted(INCLUDE.glob("*.cuh")))
    library = cached_path(source, headers, (*FLAGS, version_of(nvcc), target))
    # -arch alone also runs a pass without the architecture's own features (nvcc 13.0)
    code = f"-gencode=arch={target.replace('sm', 'compute')},code={target}"
    command = [nvcc, *FLAGS, code, f"-I{INCLUDE}"]
    return load_or_build(source, command, library, _MINUTES)


def stream() -> int:
    """The current CUDA stream, as a pointer."""
    # torch.cuda.current_stream() builds an object, a fifth of the host's time for a launch
    device = torch.cuda.current_device()
    return torch._C._cuda_getCurrentRawStream(device)  # pyright: ignore[reportPrivateUsage]


def launched(status: int, name: str) -> None:
    """Raises RuntimeError where a library's launcher, of that name in the message, failed."""
    if status:
        raise RuntimeError(f"{name}: CUDA error {status} at launch")
