"""Compile: C++ sources to a shared library, once per machine, without torch's headers.

`load_or_build` and what it stands on serve every compiler; CUDA C++ is in `cuda.py`.
"""

import ctypes
import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

from tercet import environment
from tercet.errors import BuildError

# of #include "kernel/..." and "packed_weight/..."; files of one folder name each other alone
INCLUDE = Path(__file__).parents[2]
# -w: GCC 12 warns of uninitialised values inside its own AVX-512 intrinsics
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-shared", "-pthread", "-w")
_MINUTES = 10
_log = logging.getLogger(__name__)
_tree = INCLUDE
_INCLUDED = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def find_compiler() -> str | None:
    """The compiler's path (CXX, then g++, then clang++); None where there is none."""
    for name in _candidates():
        if found := shutil.which(name):
            return found
    return None


def build(source: Path) -> ctypes.CDLL:
    """The library of one .cpp file, from the cache or freshly compiled into it.

    It may include headers beside it, and those of this package by their path in it. Processes that
    build the same source at the same time each compile to a name of their own, then rename: the
    last one wins, with the same content. BuildError says what was tried.
    """
    compiler = find_compiler()
    if compiler is None:
        raise BuildError(
            f"no C++ compiler for {source.name}: tried {', '.join(_candidates())} on PATH; "
            "run `apt install g++`, or name one in CXX"
        )
    if source.is_relative_to(INCLUDE):
        source = _tree / source.relative_to(INCLUDE)
    command = [compiler, *FLAGS, f"-I{_tree}"]
    return load_or_build(source, command, library_path(source, compiler))


@contextmanager
def sources_from(tree: Path) -> Generator[None, None, None]:
    """Builds in the block take this package's sources from a copy of its tree: for its mutants."""
    global _tree
    before, _tree = _tree, tree
    try:
        yield
    finally:
        _tree = before


def library_path(source: Path, compiler: str) -> Path:
    """Where the library of these very sources, built by this compiler, lies in the cache."""
    return cached_path(source, (*FLAGS, version_of(compiler), platform.machine()))


def cached_path(
    source: Path, words: Iterable[str], name: str | None = None, suffix: str = ".so"
) -> Path:
    """Where what is compiled of a source lies: its name holds a sha256 of all that it depends on.

    Args:
        source: with the headers that it includes.
        words: what else decides the result: compiler, flags, machine.
        name: that the file's begins with; None is the source's.
        suffix: that the file's ends with.
    """
    digest = hashlib.sha256()
    for file in (source, *headers_of(source)):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    digest.update("\0".join(words).encode())
    return (
        environment.cache_dir()
        / "build"
        / f"{name or source.stem}-{digest.hexdigest()[:32]}{suffix}"
    )


def headers_of(source: Path) -> tuple[Path, ...]:
    """Every header that a source includes, through others too, each once, in one order.

    A quoted name is looked for beside the file that includes it, then in this package; what lies
    in neither is the compiler's own.
    """
    found: dict[Path, None] = {}
    unread = [source]
    while unread:
        file = unread.pop()
        for name in _INCLUDED.findall(file.read_text(encoding="utf-8")):
            for folder in (file.parent, _tree):
                header = (folder / name).resolve()
                if header.is_file():
                    if header not in found:
                        found[header] = None
                        unread.append(header)
                    break
    return tuple(found)


def load_or_build(
    source: Path, command: list[str], library: Path, minutes: int = _MINUTES
) -> ctypes.CDLL:
    """The library, first built by `command SOURCE -o LIBRARY` where it is not there yet."""
    if not library.exists():
        _compile(source, command, library, minutes)
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise BuildError(f"{library} does not load: {error}; delete it to compile anew") from error


def _candidates() -> tuple[str, ...]:
    given = environment.compiler()
    return (given,) if given else ("g++", "clang++")


@cache
def version_of(compiler: str) -> str:
    """What the compiler says of its version."""
    return _run([compiler, "--version"]).stdout


def _compile(source: Path, command: list[str], library: Path, minutes: int) -> None:
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=library.parent, suffix=".tmp", delete=False) as file:
            unfinished = Path(file.name)
    except OSError as error:
        raise BuildError(
            f"cannot write to {library.parent}: {error.strerror}; set TERCET_CACHE to a directory "
            "that can be written"
        ) from error
    command = [*command, str(source), "-o", str(unfinished)]
    own = source.is_relative_to(INCLUDE)
    name = source.relative_to(INCLUDE).as_posix() if own else source.name
    _log.info("compiling %s for this machine, once", name)
    try:
        result = _run(command, minutes)
        if result.returncode:
            raise BuildError(
                f"{source.name} did not compile (exit status {result.returncode}): tried "
                f"`{shlex.join(command)}`:\n{result.stderr[-2000:]}"
            )
        os.replace(unfinished, library)
    finally:
        unfinished.unlink(missing_ok=True)


def _run(command: list[str], minutes: int = _MINUTES) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60 * minutes, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(
            f"`{shlex.join(command)}` did not run: {error}; set CXX or CUDA_HOME"
        ) from error
