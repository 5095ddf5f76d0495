"""CUDA C++: a .cu file to a shared library for this machine's GPU, once, with nvcc.

The library is called through ctypes with pointers and torch's current stream, so it needs neither
torch's headers nor a binding layer.
"""

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch

from tercet import environment
from tercet.errors import BuildError

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
    library = environment.cache_dir() / "build" / f"{source.stem}-{_key(source, nvcc, target)}.so"
    if not library.exists():
        _compile(source, nvcc, target, library)
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise BuildError(f"{library} does not load: {error}; delete it to compile anew") from error


def stream() -> int:
    """The current CUDA stream, as a pointer."""
    return torch.cuda.current_stream().cuda_stream


def _key(source: Path, nvcc: str, target: str) -> str:
    digest = hashlib.sha256()
    for file in (source, *sorted(source.parent.glob("*.cuh")), *sorted(INCLUDE.glob("*.cuh"))):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    digest.update("\0".join((*FLAGS, _version(nvcc), target)).encode())
    return digest.hexdigest()[:32]


@cache
def _version(nvcc: str) -> str:
    return _run([nvcc, "--version"]).stdout


def _compile(source: Path, nvcc: str, target: str, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=library.parent, suffix=".tmp", delete=False) as file:
        unfinished = Path(file.name)
    command = [nvcc, *FLAGS, f"-arch={target}", f"-I{INCLUDE}", str(source), "-o", str(unfinished)]
    try:
        result = _run(command)
        if result.returncode:
            raise BuildError(
                f"{source.name} did not compile (exit status {result.returncode}): tried "
                f"`{shlex.join(command)}`:\n{result.stderr[-2000:]}"
            )
        os.replace(unfinished, library)
    finally:
        unfinished.unlink(missing_ok=True)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60 * _MINUTES, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"`{shlex.join(command)}` did not run: {error}") from error
