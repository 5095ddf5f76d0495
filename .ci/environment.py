"""Prints what a run of the tests depends on: the machine, its limits, the versions of tools."""

import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_GROUP = Path("/sys/fs/cgroup")
# those that kernels choose by
_SETS = re.compile(r"avx2|fma|f16c|avx512\w+|avx_vnni|amx_\w+|asimd\w*|sve\w*|i8mm|bf16")
_PACKAGES = ("torch", "triton", "transformers", "numpy", "pytest")


def main() -> None:
    """One line a thing."""
    cpu = _CPUINFO.read_text() if _CPUINFO.exists() else ""
    sets = re.search(r"^(?:flags|Features)\s*:(.*)$", cpu, re.MULTILINE)
    known = sorted({one for one in sets[1].split() if _SETS.fullmatch(one)}) if sets else []
    lines = {
        "cpu": _field(cpu, "model name") or platform.machine(),
        "instruction sets": " ".join(known) or "not known",
        "cores": f"{os.cpu_count()}, of which {len(os.sched_getaffinity(0))} for this process",
        "cpu quota": describe_quota(_GROUP),
        "memory": _field(Path("/proc/meminfo").read_text(), "MemTotal"),
        "system": platform.platform(),
        "user": "root" if os.geteuid() == 0 else "ordinary",
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "nvcc": _tool(os.environ.get("CUDA_HOME", "") + "/bin/nvcc", "nvcc"),
        "g++": _tool(os.environ.get("CXX", ""), "g++"),
    }
    settings = {name: text for name, text in os.environ.items() if name.startswith("TERCET_")}
    for name, text in (lines | settings).items():
        print(f"ci: {name}: {text}")


def describe_quota(group: Path) -> str:
    """Cores that a control group grants, as either version of cgroups says it."""
    two, one = group / "cpu.max", group / "cpu" / "cpu.cfs_quota_us"
    if two.is_file():
        quota, period = two.read_text().split()
    elif one.is_file():
        quota, period = one.read_text().strip(), one.with_name("cpu.cfs_period_us").read_text()
    else:
        return "none found"
    return f"{int(quota) / int(period):g} cores" if quota.isdigit() else "none"


def _field(text: str, name: str) -> str:
    found = re.search(rf"^{name}\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1] if found else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _tool(*candidates: str) -> str:
    """The line in which a compiler tells its version."""
    for name in candidates:
        if found := shutil.which(name):
            out = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
            lines = [line for line in out.stdout.splitlines() if re.search(r"\d+\.\d+", line)]
            return f"{lines[-1] if 'nvcc' in name else lines[0]} ({found})"
    return "not found"


if __name__ == "__main__":
    main()
