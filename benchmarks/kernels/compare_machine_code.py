"""Compares what nvcc makes of two trees' CUDA sources, kernel by kernel, whatever they are called.

PYTHONPATH=NEW/src python benchmarks/kernels/compare_machine_code.py OLD_TREE [--ptx] [--only WORD]

For a change that renames or moves and must not change a kernel. Builds of this tree are those that
its modules name in BUILDS; a tree from before those has one build a .cu file. Of each build's
kernels the registers, constants and instructions are compared byte for byte as they lie in the
cubin; with --ptx the instructions before ptxas, which takes half the time: the same ptxas makes the
same machine code of the same PTX. Names of functions, which hold names of types, are left out.

What was compiled is kept in OUT (default: a folder in the cache), so that a run can be resumed.
"""

import argparse
import hashlib
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from tercet import environment
from tercet.kernel.jit.cuda import INCLUDE, Build, find_nvcc
from tercet.ops.discover import discover
from tercet.records.page import markdown

FLAGS = ("-std=c++17", "-O3", "--expt-relaxed-constexpr")
# a .cu file in an old tree finds headers by name alone, or by their path in the package
OLD_INCLUDES = ("src/tercet", "src/tercet/kernel/device")
_PTX_FUNCTION = re.compile(r"^(?:\.visible |\.weak |\.extern )?\.(entry|func)\b.*?^\}", re.M | re.S)
_COMMENT = re.compile(r"//[^\n]*")
_NUMBERED = re.compile(r"(\$L__BB|__local_depot)\d+")
_MANGLED = re.compile(r"\b_Z\w+")


def new_builds() -> list[Build]:
    """Every build that an implementation of this tree names, once."""
    found: dict[str, Build] = {}
    for op in discover().values():
        for each in op.implementations:
            if each.language == "cuda":
                for build in import_module(each.module).BUILDS:
                    found[f"{op.name}/{build.name}"] = build
    return list(found.values())


def kernels_of(compiled: bytes, ptx: bool) -> Counter[str]:
    """A digest of each function."""
    functions = _ptx_functions(compiled.decode()) if ptx else _cubin_functions(compiled)
    return Counter(hashlib.sha256(each).hexdigest() for each in functions)


def _ptx_functions(text: str) -> Iterator[bytes]:
    for found in _PTX_FUNCTION.finditer(text):
        body = _NUMBERED.sub(r"\1", _COMMENT.sub("", found[0]))
        for at, name in enumerate(dict.fromkeys(_MANGLED.findall(body))):
            body = re.sub(rf"\b{name}\b", f"name{at}", body)
        yield body.encode()


def _cubin_functions(elf: bytes) -> Iterator[bytes]:
    """Of each function its instructions, registers (the section's info), constants and memory."""
    (start,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQII", elf, start + i * size) for i in range(count)]
    strings = headers[names][4]
    sections: dict[str, tuple[int, bytes]] = {}
    for name, kind, _, _, offset, length, _, info in headers:
        end = elf.index(b"\0", strings + name)
        content = elf[offset : offset + length] if kind != 8 else str(length).encode()
        sections[elf[strings + name : end].decode()] = info >> 24, content
    for name, (registers, content) in sections.items():
        if not name.startswith(".text."):
            continue
        function = name.removeprefix(".text")
        beside = [
            other
            for title, (_, other) in sorted(sections.items())
            if title.startswith((".nv.constant", ".nv.shared")) and title.endswith(function)
        ]
        yield b"\0".join((str(registers).encode(), content, *beside))


def compile_to(
    path: Path, source: Path, flags: tuple[str, ...], includes: tuple[Path, ...], ptx: bool
) -> bytes:
    """The compiled source; from `path` where it was compiled before."""
    if not path.exists():
        nvcc = find_nvcc()
        assert nvcc is not None, "no nvcc: put CUDA's bin on PATH"
        kind = "compute" if ptx else "sm"
        code = f"-gencode=arch=compute_90a,code={kind}_90a"
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".tmp")
        command = [nvcc, *FLAGS, "-ptx" if ptx else "-cubin", code, *flags]
        command += [f"-I{each}" for each in includes]
        subprocess.run([*command, str(source), "-o", str(unfinished)], check=True)
        unfinished.rename(path)
    return path.read_bytes()


def main() -> None:
    """Prints a table: each build of this tree, and the old one that has the same kernels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, help="the other tree")
    parser.add_argument("--ptx", action="store_true", help="compare PTX, in place of cubins")
    parser.add_argument("--only", default="", help="builds and old files with this in their path")
    parser.add_argument("--out", type=Path, default=environment.cache_dir() / "machine-code")
    options = parser.parse_args()
    ending = "ptx" if options.ptx else "cubin"
    includes = tuple(options.old / each for each in OLD_INCLUDES)
    ops = options.old / "src" / "tercet" / "ops"
    old: dict[str, Counter[str]] = {}
    for source in sorted(ops.glob("**/*.cu")):
        name = ".".join(source.relative_to(ops).with_suffix("").parts)
        if options.only in name:
            path = options.out / "old" / f"{name}.{ending}"
            old[name] = kernels_of(compile_to(path, source, (), includes, options.ptx), options.ptx)
    rows = [["build", "kernels", "the same in", "others"]]
    for build in new_builds():
        folder = build.source.relative_to(INCLUDE / "ops").parent
        name = f"{folder}/{build.name.split('/')[-1]}"
        if options.only in name:
            path = options.out / "new" / f"{name.replace('/', '.').replace(' ', '.')}.{ending}"
            code = compile_to(path, build.source, build.flags, (INCLUDE,), options.ptx)
            rows.append(_row(name, kernels_of(code, options.ptx), old))
    print(markdown(rows))


def _row(name: str, kernels: Counter[str], old: dict[str, Counter[str]]) -> list[str]:
    best = max(old, key=lambda each: (kernels & old[each]).total(), default="")
    same = (kernels & old.get(best, Counter())).total()
    others = (kernels | old.get(best, Counter())).total() - same
    return [name, str(kernels.total()), f"{best}: {same}" if same else "-", str(others)]


if __name__ == "__main__":
    main()
