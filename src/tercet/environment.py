"""Environment variables that Tercet reads: one getter each, and no other place reads them."""

import os
from pathlib import Path

from tercet.errors import UnsupportedError

CPU_ISAS = ("portable", "avx2", "avx512")


def cache_dir() -> Path:
    """TERCET_CACHE: the directory of compiled kernels (build/). Default: ~/.cache/tercet."""
    given = os.environ.get("TERCET_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "tercet"


def compiler() -> str | None:
    """CXX: the C++ compiler to use. Default: None, the first of g++ and clang++ on PATH."""
    return os.environ.get("CXX") or None


def cuda_home() -> Path | None:
    """CUDA_HOME: where the CUDA toolkit lies. Default: None, nvcc is looked for on PATH only."""
    given = os.environ.get("CUDA_HOME")
    return Path(given) if given else None


def cpu_isa() -> str | None:
    """TERCET_CPU_ISA: `portable`, `avx2` or `avx512` forces the CPU kernels to that path.

    Default: None, the best one that the machine has. UnsupportedError on any other word.
    """
    given = os.environ.get("TERCET_CPU_ISA") or None
    if given is not None and given not in CPU_ISAS:
        raise UnsupportedError(f"TERCET_CPU_ISA={given!r}: allowed are {', '.join(CPU_ISAS)}")
    return given
