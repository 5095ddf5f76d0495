"""Environment variables that Tercet reads: one getter each, and no other place reads them.

Other places only pass the whole environment on to a process that they start, with changes.
"""

import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tercet.errors import UnsupportedError

_CONTROL_GROUP = Path("/sys/fs/cgroup")


def isas_of(machine: str) -> tuple[str, ...]:
    """What CPU kernels are compiled for on a machine (`uname -m`), best instruction set last."""
    if machine.lower() in ("aarch64", "arm64"):
        return "portable", "neon", "dotprod"
    return "portable", "avx2", "avx512", "avx512vnni"


CPU_ISAS = isas_of(platform.machine())
CPU_ACTIVATIONS = ("float32", "int16", "int8")
FP8_SUMS = ("short", "float32")
SPINS = 1000


def usable_cores() -> int:
    """The cores that this process may run on; all, where the system does not say (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_folders(variables: Mapping[str, str]) -> None:
    """Names other folders to this process: TERCET_CACHE, TRITON_CACHE_DIR, TMPDIR."""
    os.environ.update(variables)
    tempfile.tempdir = None  # Python looks for it anew


def cache_dir() -> Path:
    """TERCET_CACHE: the directory of compiled kernels (build/). Default: ~/.cache/tercet."""
    given = os.environ.get("TERCET_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "tercet"


def triton_cache_dir() -> Path:
    """TRITON_CACHE_DIR: where Triton keeps compiled kernels. Default: ~/.triton/cache."""
    given = os.environ.get("TRITON_CACHE_DIR")
    return Path(given) if given else Path.home() / ".triton" / "cache"


def compiler() -> str | None:
    """CXX: the C++ compiler to use. Default: None, the first of g++ and clang++ on PATH."""
    return os.environ.get("CXX") or None


def cuda_home() -> Path | None:
    """CUDA_HOME: where the CUDA toolkit lies. Default: None, nvcc is looked for on PATH only."""
    given = os.environ.get("CUDA_HOME")
    return Path(given) if given else None


def gpus_hidden() -> bool:
    """CUDA_VISIBLE_DEVICES: whether it is set and empty, which hides every GPU. Default: False."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") == ""


def cpu_isa() -> str | None:
    """TERCET_CPU_ISA: one of CPU_ISAS forces the CPU kernels to that path.

    Default: None, the best one that the machine has. UnsupportedError on any other word.
    """
    given = os.environ.get("TERCET_CPU_ISA") or None
    if given is not None and given not in CPU_ISAS:
        raise UnsupportedError(f"TERCET_CPU_ISA={given!r}: allowed are {', '.join(CPU_ISAS)}")
    return given


def set_thread_defaults() -> None:
    """OMP_NUM_THREADS, GOMP_SPINCOUNT: OpenMP's, set where the user has set none of them.

    libgomp, which torch brings, reads them when it is loaded: call this before torch is imported.
    A thread that waits for another spins before it sleeps, by default 300,000 turns, some 10 ms.
    Beside other jobs the thread that it waits for often has no core, and the spinning one takes
    that core away. SPINS turns are long enough to meet a thread that runs. A synthetic GPTQ on two
    cores at a load of 13 took 22 s (4.2 s of CPU) by default, 5.4 s (0.9 s) with 10,000 turns,
    3.5 s (0.7 s) with 1,000, and 3.2 s (0.7 s) with none, as under OMP_WAIT_POLICY=passive. None
    is not chosen: then each short operation has to wake a thread, on an idle machine as well.
    libgomp counts the cores that this process may run on, but not its control group's quota, so
    OMP_NUM_THREADS is set where the quota is smaller.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))
    quota = _cpu_quota(_CONTROL_GROUP)
    if quota is not None and quota < usable_cores():
        os.environ.setdefault("OMP_NUM_THREADS", str(quota))


def _cpu_quota(group: Path) -> int | None:
    """Whole cores that a control group grants, at least 1; None where it has no limit."""
    two, one = group / "cpu.max", group / "cpu" / "cpu.cfs_quota_us"
    if two.is_file():
        quota, period = two.read_text().split()
    elif one.is_file():
        quota, period = one.read_text(), one.with_name("cpu.cfs_period_us").read_text()
    else:
        return None
    if not quota.strip().isdigit():
        return None
    return max(1, int(quota) // int(period))


def rank() -> int:
    """RANK: which of torchrun's processes this one is. Default: 0, the only one."""
    return _whole("RANK", 0) if world_size() > 1 else 0


def local_rank() -> int:
    """LOCAL_RANK: which of torchrun's processes on this machine this one is. Default: 0."""
    return _whole("LOCAL_RANK", 0)


def world_size() -> int:
    """WORLD_SIZE: how many processes torchrun started. Default: 1, without torchrun."""
    return _whole("WORLD_SIZE", 1)


def check_launched() -> None:
    """UnsupportedError where WORLD_SIZE is above 1 without what torchrun sets beside it."""
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise UnsupportedError(
            f"WORLD_SIZE={world_size()}, but not {', '.join(missing)}: start with torchrun, which "
            "sets them all, or unset WORLD_SIZE"
        )


def _whole(name: str, default: int) -> int:
    """A variable's whole number, at least 0; UnsupportedError where it is none."""
    given = os.environ.get(name) or str(default)
    if not given.isdecimal():
        raise UnsupportedError(f"{name}={given!r}: torchrun sets a whole number; unset it")
    return int(given)


def fp8_sums() -> str:
    """TERCET_FP8_SUMS: `float32` has products of fp8 x summed in float32, and slower.

    Default: `short`: where results are bfloat16, sums of 64 columns are fp8 tensor cores' own, and
    may lose 0.8 % of what is summed (linear_packed's README). UnsupportedError on any other word.
    """
    given = os.environ.get("TERCET_FP8_SUMS") or FP8_SUMS[0]
    if given not in FP8_SUMS:
        raise UnsupportedError(f"TERCET_FP8_SUMS={given!r}: allowed are {', '.join(FP8_SUMS)}")
    return given


def cpu_activations() -> str:
    """TERCET_CPU_ACTIVATIONS: `int16` or `int8` has one row of x rounded to so many bits.

    Default: `float32`, as good as numbers of 24 bits. It counts where weights of 2 to 5 bits meet a
    single token on AVX2 without AVX-512, AVX-512 with VNNI, or Arm, and is quicker there: 16 bits
    of the largest of 16 to 64 numbers, which lose less than a GPU's bfloat16 does, or 8, as
    llama.cpp has them.
    UnsupportedError on any other word.
    """
    given = os.environ.get("TERCET_CPU_ACTIVATIONS") or CPU_ACTIVATIONS[0]
    if given not in CPU_ACTIVATIONS:
        raise UnsupportedError(
            f"TERCET_CPU_ACTIVATIONS={given!r}: allowed are {', '.join(CPU_ACTIVATIONS)}"
        )
    return given
