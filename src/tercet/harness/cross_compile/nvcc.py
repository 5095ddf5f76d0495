"""CUDA C++: the .cu files of an op's folder, compiled by nvcc where this machine has it."""

import re
import subprocess
from importlib import import_module
from multiprocessing.pool import ThreadPool
from pathlib import Path
from tempfile import TemporaryDirectory

from tercet.harness.cross_compile.report import CompileRow
from tercet.harness.cross_compile.resources import of_ptx
from tercet.harness.cross_compile.target import Target
from tercet.harness.cross_compile.units import reason
from tercet.kernel.contract import Implementation
from tercet.kernel.cuda import INCLUDE, architecture, find_nvcc

_FLAGS = ("-std=c++17", "-O3", "-cubin", "-Xptxas", "-v")
_SECONDS = 600
_JOBS = 2
_FUNCTION = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?"
    r"(?P<spills>\d+) bytes spill stores.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
_ENTRY = re.compile(r"\.entry (\w+)\((.*?)(?=\n\.(?:visible|entry|func)|\Z)", re.DOTALL)


def compile_sources(
    implementation: Implementation, folder: Path, targets: tuple[Target, ...]
) -> tuple[CompileRow, ...]:
    """A row for each kernel of each of its .cu files and CUDA target.

    One row a file where it does not compile, or where nvcc was not found.
    """
    work = [
        (implementation, source, target)
        for source in _sources(implementation, folder)
        for target in targets
        if target.backend == "cuda"
    ]
    with ThreadPool(_JOBS) as pool:  # each waits for an nvcc of its own
        found = pool.starmap(_compile, work, chunksize=1)
    return tuple(row for rows in found for row in rows)


def _sources(implementation: Implementation, folder: Path) -> list[Path]:
    """Those that the implementation's module names in SOURCES; else every one in the folder."""
    named = getattr(import_module(implementation.module), "SOURCES", None)
    return sorted(folder.glob("*.cu")) if named is None else [folder / name for name in named]


def _compile(implementation: Implementation, source: Path, target: Target) -> list[CompileRow]:
    row = CompileRow(
        implementation=implementation.name,
        kernel=source.name,
        target=target.name,
        variant=" ".join(_FLAGS[:2]),
        outcome="skipped",
        reason="nvcc not found: install the CUDA toolkit, or put its bin directory on PATH",
    )
    nvcc = find_nvcc()
    if nvcc is None:
        return [row]
    with TemporaryDirectory() as folder:
        command = [nvcc, *_FLAGS, f"-arch={architecture(_capability(target))}", "--keep"]
        command += ["--keep-dir", folder, "-o", f"{folder}/kernel.cubin", f"-I{INCLUDE}"]
        done = subprocess.run(
            [*command, str(source)], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        if done.returncode:
            why = reason(done.stdout + done.stderr, done.returncode)
            return [row.model_copy(update={"outcome": "refused", "reason": why})]
        ptx = "\n".join(path.read_text() for path in Path(folder).glob("*.ptx"))
    return rows_of_output(row, done.stderr, ptx)


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
