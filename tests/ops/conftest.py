"""What tests of CUDA kernels share: sources for Hopper, built for the CPU.

Threads are fibers, instructions are C++: emulated/ptx.cuh.
"""

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tercet.kernel.jit.cuda import Build, find_nvcc

_EMULATED = Path(__file__).parent / "emulated"
_SHARED = "extern __shared__ __align__(128) unsigned char memory[];"
_FLAGS = ("-std=c++17", "-shared", "-x", "c++", "-Xcompiler", "-fPIC,-w,-ffp-contract=off")


def _copy_sources(sources: Path, folder: Path, more: str) -> None:
    """The sources of a kernel, its shared memory the emulated one; ptx.cuh is the stand-in.

    Args:
        sources: their folder.
        folder: where they go.
        more: lines behind each .cu file.
    """
    for source in (*sources.glob("*.cuh"), *sources.glob("*.cu")):
        text = source.read_text()
        if source.name == "kernel.cuh":
            assert _SHARED in text
            text = text.replace(_SHARED, "unsigned char* const memory = emulated::memory();")
        (folder / source.name).write_text(text + (more if source.suffix == ".cu" else ""))
    shared = folder / "packed_weight" / "hopper"
    shared.mkdir(parents=True)
    shutil.copy(_EMULATED / "ptx.cuh", shared)


def _build(folder: Path, of: Build, name: str, flags: Sequence[str]) -> ctypes.CDLL:
    """The library of that name of copied sources, compiled by the flags beside the usual ones."""
    nvcc = find_nvcc()
    assert nvcc is not None
    library = folder / f"{name}.so"
    source = str(folder / of.source.name)
    command = [nvcc, *_FLAGS, *flags, *of.flags, f"-I{folder}", source, "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="session")
def copy_sources() -> Callable[[Path, Path, str], None]:
    return _copy_sources


@pytest.fixture(scope="session")
def build_emulated() -> Callable[[Path, Build, str, Sequence[str]], ctypes.CDLL]:
    return _build
