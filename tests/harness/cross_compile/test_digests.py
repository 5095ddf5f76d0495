"""One byte in each kind of thing that machine code is made from changes just the right digests."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tercet.harness.cross_compile import ALL, CompileRow
from tercet.harness.cross_compile.nvcc import compile_builds
from tercet.harness.cross_compile.target import target_of
from tercet.kernel.contract import Implementation, Requirement
from tercet.kernel.jit.cuda import Build

TRITON = Path(__file__).with_name("triton_digests.py")
HANG_SECONDS = 600
# what nvcc and ptxas print of one kernel, and the PTX that they keep
COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo "release VERSION"; exit; fi
echo compiled >> {log}
while [ "$1" != --keep-dir ]; do shift; done
printf '.entry one()\\n{{\\n}}\\n' > "$2/one.ptx"
echo "Compiling entry function 'one' 0 bytes spill stores Used 8 registers" >&2
"""
SOURCES = {
    "direct.cu": '#include "near.cuh"\n',
    "near.cuh": '#include "far.cuh"\n',
    "far.cuh": "// far\n",
    "apart.cu": '#include "other.cuh"\n',
    "other.cuh": "// other\n",
}
DEFINES = {"direct": {"X": 1}, "direct as 2": {"X": 2}, "apart": {}}


@pytest.fixture(scope="module")
def triton_digests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    done = subprocess.run(
        [sys.executable, TRITON, tmp_path_factory.mktemp("kernels")],
        env={name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("change", "kernels"),
    [
        ("a kernel", {"alone"}),
        ("a helper's helper", {"calls"}),
        ("what no kernel calls", set()),
        ("a constant", {"calls", "alone"}),
        ("an option", {"calls", "alone"}),
        ("a type", {"calls", "alone"}),
        ("the target", {"calls", "alone"}),
        ("Triton's version", {"calls", "alone"}),
        ("the assembler's version", {"calls", "alone"}),
    ],
)
def test_a_triton_kernel(
    triton_digests: dict[str, dict[str, str]], change: str, kernels: set[str]
) -> None:
    before, after = triton_digests["nothing"], triton_digests[change]
    assert {name for name in before if before[name] != after[name]} == kernels
    assert all(after.values())


class Cuda:
    """Three builds of two sources, and a compiler that says what it was asked for."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._log = folder / "log"
        self._patch = monkeypatch
        self._defines = {name: dict(defines) for name, defines in DEFINES.items()}
        self.accepted: list[CompileRow] = []
        monkeypatch.setenv("TERCET_CACHE", str(folder / "cache"))
        for name, text in SOURCES.items():
            (folder / name).write_text(text)
        self.install("12.9")

    def install(self, version: str) -> None:
        """Another compiler, in a folder of its own."""
        path = self.folder / version / "nvcc"
        path.parent.mkdir()
        path.write_text(COMPILER.format(log=self._log).replace("VERSION", version))
        path.chmod(0o755)
        self._patch.setattr("tercet.harness.cross_compile.nvcc.find_nvcc", lambda: str(path))

    def edit(self, name: str) -> None:
        """One byte more."""
        with (self.folder / name).open("a") as file:
            file.write(" ")

    def define(self, name: str) -> None:
        """Another value of a build's macro."""
        self._defines[name]["X"] = 3

    def compile(self, target: str = "sm_90", recompile: int = 0) -> tuple[dict[str, str], int]:
        """Build -> digest of its kernel, and how often the compiler was called."""
        self._log.write_text("")
        builds = {
            name: Build(self.folder / f"{name.split()[0]}.cu", defines)
            for name, defines in self._defines.items()
        }
        self._patch.setitem(sys.modules, "digested_builds", Builds(tuple(builds.values())))
        implementation = Implementation(
            name="cuda",
            requirement=Requirement(dtypes=()),
            module="digested_builds",
            language="cuda",
        )
        rows, _ = compile_builds(implementation, (target_of(target),), self.accepted, recompile)
        self.accepted = list(rows)
        assert all(row.outcome == "compiled" for row in rows)
        digests = [row.digest or "" for row in rows]
        return dict(zip(builds, digests, strict=True)), len(self._log.read_text().splitlines())


class Builds:
    """Stands for a module that names builds."""

    def __init__(self, builds: tuple[Build, ...]) -> None:
        self.BUILDS = builds


@pytest.fixture
def cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("change", "kernels"),
    [
        (lambda cuda: None, set()),
        (lambda cuda: cuda.edit("direct.cu"), {"direct", "direct as 2"}),
        (lambda cuda: cuda.edit("near.cuh"), {"direct", "direct as 2"}),
        (lambda cuda: cuda.edit("far.cuh"), {"direct", "direct as 2"}),
        (lambda cuda: cuda.edit("other.cuh"), {"apart"}),
        (lambda cuda: cuda.define("direct as 2"), {"direct as 2"}),
        (lambda cuda: cuda.install("13.0"), set(DEFINES)),
    ],
    ids=["nothing", "source", "header", "header of a header", "other header", "define", "version"],
)
def test_a_cuda_kernel(cuda: Cuda, change: Callable[[Cuda], None], kernels: set[str]) -> None:
    before, compiled = cuda.compile()
    assert compiled == len(DEFINES) == len(set(before.values()))
    change(cuda)
    after, compiled = cuda.compile()
    assert {name for name in before if before[name] != after[name]} == kernels
    assert compiled == len(kernels)


def test_a_cuda_kernels_target_and_flags(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    before, _ = cuda.compile()
    other, compiled = cuda.compile(target="sm_80")
    assert compiled == len(DEFINES)
    assert not set(other.values()) & set(before.values())
    monkeypatch.setattr("tercet.harness.cross_compile.nvcc._FLAGS", ("-O2", "-cubin"))
    flagged, compiled = cuda.compile()
    assert compiled == len(DEFINES)
    assert not set(flagged.values()) & set(before.values())


def test_all_asks_the_compiler_whatever_is_known(cuda: Cuda) -> None:
    before, _ = cuda.compile()
    assert cuda.compile() == (before, 0)
    # drawn ones are judged by what the same compiler gave for the same sources before
    assert cuda.compile(recompile=1) == (before, 0)
    assert cuda.compile(recompile=ALL) == (before, len(DEFINES))
