"""Environment variables that Tercet reads: one getter each, and no other place reads them."""

import os
from pathlib import Path

from tercet.errors import UnsupportedError

CPU_ISAS = ("portable", "avx2", "avx512")
FP8_SUMS = ("short", "float32")


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


def fp8_sums() -> str:
    """TERCET_FP8_SUMS: `float32` has products of fp8 x summed in float32, and slower.

    Default: `short`: where results are bfloat16, sums of 64 columns are fp8 tensor cores' own, and
    may lose 0.8 % of what is summed (linear_packed's README). UnsupportedError on any other word.
    """
    given = os.environ.get("TERCET_FP8_SUMS") or FP8_SUMS[0]
    if given not in FP8_SUMS:
        raise UnsupportedError(f"TERCET_FP8_SUMS={given!r}: allowed are {', '.join(FP8_SUMS)}")
    return given
