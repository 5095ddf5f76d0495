"""CUDA C++: the builds that an implementation names, compiled by nvcc where this machine has it.

What nvcc gives for equal sources, flags and version is kept in the cache: it takes minutes an op.
"""

import gzip
import hashlib
import json
import re
import subprocess
from collections.abc import Iterable, Sequence
from importlib import import_module
from multiprocessing.pool import ThreadPool
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tercet.checkpoints.atomic import write_atomic
from tercet.errors import BuildError
from tercet.harness.cross_compile.report import CompileRow
from tercet.harness.cross_compile.resources import of_ptx
from tercet.harness.cross_compile.reuse import ALL, reuse_or_compile
from tercet.harness.cross_compile.target import Target
from tercet.harness.cross_compile.units import reason
from tercet.kernel.contract import Implementation
from tercet.kernel.jit.cpp import cached_path, version_of
from tercet.kernel.jit.cuda import INCLUDE, Build, architecture, find_nvcc

_FLAGS = ("-std=c++17", "-O3", "-cubin", "-Xptxas", "-v")
_SECONDS = 600
_JOBS = 2
# exit statuses from here on are of a signal: another try may go otherwise
_KILLED = 128
_FUNCTION = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?"
    r"(?P<spills>\d+) bytes spill stores.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
_ENTRY = re.compile(r"\.entry (\w+)\((.*?)(?=\n\.(?:visible|entry|func)|\Z)", re.DOTALL)


def compile_builds(
    implementation: Implementation,
    targets: tuple[Target, ...],
    accepted: Iterable[CompileRow],
    recompile: int,
) -> tuple[tuple[CompileRow, ...], int]:
    """A row for each kernel of each of its builds and CUDA target; how many builds were reused.

    One row a build where it does not compile, or where nvcc was not found.
    """
    nvcc = find_nvcc()
    units = [
        (build, target)
        for build in _builds(implementation)
        for target in targets
        if target.backend == "cuda"
    ]
    digests = {at: nvcc and _digest(nvcc, *unit) for at, unit in enumerate(units)}

    def compile_all(positions: Sequence[int]) -> list[list[CompileRow]]:
        with ThreadPool(_JOBS) as pool:  # each waits for an nvcc of its own
            work = [(nvcc, implementation, *units[at], recompile >= ALL) for at in positions]
            return pool.starmap(_compile, work, chunksize=1)

    found, reused = reuse_or_compile(digests, accepted, recompile, compile_all)
    return tuple(row for at in digests for row in found[at]), reused


def _builds(implementation: Implementation) -> tuple[Build, ...]:
    builds: tuple[Build, ...] = getattr(import_module(implementation.module), "BUILDS", ())
    if not builds:
        raise BuildError(
            f"{implementation.module} names no builds: give it BUILDS = (Build(source), ...)"
        )
    return builds


def _compile(
    nvcc: str | None, implementation: Implementation, build: Build, target: Target, anew: bool
) -> list[CompileRow]:
    row = CompileRow(
        implementation=implementation.name,
        kernel=build.name,
        target=target.name,
        variant=" ".join(_FLAGS[:2]),
        outcome="skipped",
        reason="nvcc not found: install the CUDA toolkit, or put its bin directory on PATH",
    )
    if nvcc is None:
        return [row]
    found = _output(nvcc, build, target, anew=anew)
    if found["status"]:
        why = reason(found["stdout"] + found["stderr"], found["status"])
        return [row.model_copy(update={"outcome": "refused", "reason": why})]
    return rows_of_output(row, found["stderr"], found["ptx"])


def _digest(nvcc: str, build: Build, target: Target) -> str:
    """Of the sources, the flags and the compiler's version."""
    return hashlib.sha256(_kept(nvcc, build, target).name.encode()).hexdigest()[:32]


def _flags(build: Build, target: Target) -> tuple[str, ...]:
    return (*_FLAGS, *build.flags, f"-arch={architecture(_capability(target))}")


def _kept(nvcc: str, build: Build, target: Target) -> Path:
    suffix = f"-{architecture(_capability(target))}.json.gz"
    return cached_path(build.source, (*_flags(build, target), version_of(nvcc)), suffix=suffix)


def _output(nvcc: str, build: Build, target: Target, *, anew: bool = False) -> dict[str, Any]:
    """What nvcc gives for a target: `status`, `stdout`, `stderr`, `ptx`; from the cache."""
    flags, kept = _flags(build, target), _kept(nvcc, build, target)
    if kept.exists() and not anew:
        return json.loads(gzip.decompress(kept.read_bytes()))
    with TemporaryDirectory() as folder:
        command = [nvcc, *flags, "--keep", "--keep-dir", folder]
        command += ["-o", f"{folder}/kernel.cubin", f"-I{INCLUDE}", str(build.source)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        ptx = "\n".join(path.read_text() for path in Path(folder).glob("*.ptx"))
    found = {"status": done.returncode, "stdout": done.stdout, "stderr": done.stderr, "ptx": ptx}
    if 0 <= done.returncode < _KILLED:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(kept, gzip.compress(json.dumps(found).encode(), mtime=0))
    return found


def _capability(target: Target) -> tuple[int, int]:
    number = int(target.name.removeprefix("sm_"))
    return number // 10, number % 10


def rows_of_output(row: CompileRow, ptxas: str, ptx: str) -> list[CompileRow]:
    """A row like `row` for each kernel that ptxas told of, with the instructions of its PTX."""
    bodies = dict(_ENTRY.findall(ptx))
    rows: list[CompileRow] = []
    for found in _FUNCTION.finditer(ptxas):
        shared = re.search(r"(\d+) bytes smem", found["rest"])
        resources = of_ptx(
            bodies[found["name"]],
            registers=int(found["registers"]),
            spills=int(found["spills"]),
            shared_bytes=int(shared[1]) if shared else 0,
        )
        update = {"kernel": found["name"], "outcome": "compiled", "reason": None}
        rows.append(row.model_copy(update={**update, "resources": resources}))
    return sorted(rows, key=lambda one: one.kernel)
