"""Compile: C++ sources to a shared library, once per machine, without torch's headers."""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

from tercet import environment
from tercet.errors import BuildError

INCLUDE = Path(__file__).parent / "cpu"
# -w: GCC 12 warns of uninitialised values inside its own AVX-512 intrinsics
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-shared", "-pthread", "-w")
_MINUTES = 5


def find_compiler() -> str | None:
    """The compiler's path (CXX, then g++, then clang++); None where there is none."""
    for name in _candidates():
        if found := shutil.which(name):
            return found
    return None


def build(source: Path) -> ctypes.CDLL:
    """The library of one .cpp file, from the cache or freshly compiled into it.

    It may include headers beside it and those of kernel/cpu. Processes that build the same source
    at the same time each compile to a name of their own, then rename: the last one wins, with the
    same content. BuildError says what was tried.
    """
    compiler = find_compiler()
    if compiler is None:
        raise BuildError(
            f"no C++ compiler for {source.name}: tried {', '.join(_candidates())} on PATH; "
            "run `apt install g++`, or name one in CXX"
        )
    library = library_path(source, compiler)
    if not library.exists():
        _compile(source, compiler, library)
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise BuildError(f"{library} does not load: {error}; delete it to compile anew") from error


def library_path(source: Path, compiler: str) -> Path:
    """Where the library of these very sources, built by this compiler, lies in the cache."""
    folder = environment.cache_dir() / "build"
    return folder / f"{source.stem}-{_key(source, compiler)}.so"


def _candidates() -> tuple[str, ...]:
    given = environment.compiler()
    return (given,) if given else ("g++", "clang++")


def _key(source: Path, compiler: str) -> str:
    """sha256 over everything that the library depends on."""
    digest = hashlib.sha256()
    for file in (source, *sorted(source.parent.glob("*.hpp")), *sorted(INCLUDE.glob("*.hpp"))):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    digest.update("\0".join((*FLAGS, _version(compiler), platform.machine())).encode())
    return digest.hexdigest()[:32]


@cache
def _version(compiler: str) -> str:
    return _run([compiler, "--version"]).stdout


def _compile(source: Path, compiler: str, library: Path) -> None:
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=library.parent, suffix=".tmp", delete=False) as file:
            unfinished = Path(file.name)
    except OSError as error:
        raise BuildError(
            f"cannot write to {library.parent}: {error.strerror}; set TERCET_CACHE to a directory "
            "that can be written"
        ) from error
    command = [compiler, *FLAGS, f"-I{INCLUDE}", str(source), "-o", str(unfinished)]
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
        raise BuildError(f"`{shlex.join(command)}` did not run: {error}; set CXX") from error
