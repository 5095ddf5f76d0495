"""Prints the digests of two kernels, one of which calls a helper, after each of some changes.

A process of its own: where tests run, Triton's kernels are interpreted, and have no digest.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.nvidia import compiler

from tercet.harness.cross_compile.capture import Launch, Pointer
from tercet.harness.cross_compile.target import target_of
from tercet.harness.cross_compile.triton_targets import digest

KERNELS = """
import triton
import triton.language as tl
from digested_helper import double

@triton.jit
def calls(x_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(x_ptr + at, double(tl.load(x_ptr + at)))

@triton.jit
def alone(x_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(x_ptr + at, 3.0 * tl.load(x_ptr + at))
"""
HELPER = """
import triton
import triton.language as tl

@triton.jit
def inner(x):
    return x * 2.0

@triton.jit
def double(x):
    return inner(x)
"""
CHANGES = {
    "nothing": ("", "", {}),
    "a kernel": ("3.0 * tl", "4.0 * tl", {}),
    "a helper's helper": ("x * 2.0", "x * 4.0", {}),
    "what no kernel calls": ("", "", {"more": "\n\ndef unused():\n    return 1\n"}),
    "a constant": ("", "", {"SIZE": 256}),
    "an option": ("", "", {"num_warps": 8}),
    "a type": ("", "", {"dtype": "float16"}),
    "the target": ("", "", {"target": "sm_90"}),
    "Triton's version": ("", "", {"version": "3.6.1"}),
    "the assembler's version": ("", "", {"assembler": "13.9"}),
}


def digests(folder: Path, old: str, new: str, settings: dict[str, Any]) -> dict[str, str | None]:
    """Kernel -> digest, with the texts written anew and imported anew."""
    for name, text in (("digested_kernels", KERNELS), ("digested_helper", HELPER)):
        changed = text.replace(old, new) if old else text
        (folder / f"{name}.py").write_text(changed + settings.get("more", ""))
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    module = importlib.import_module("digested_kernels")
    pointer = Pointer(getattr(torch, settings.get("dtype", "float32")), 0, 4096)
    options = {"SIZE": settings.get("SIZE", 128), "num_warps": settings.get("num_warps", 4)}
    target = target_of(settings.get("target", "sm_80"))
    return {
        name: digest(Launch(getattr(module, name), (pointer,), options, "", None), target)
        for name in ("calls", "alone")
    }


def main(folder: Path) -> None:
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    found: dict[str, dict[str, str | None]] = {}
    version, assembler = triton.__version__, compiler.get_ptxas_version
    for name, (old, new, settings) in CHANGES.items():
        triton.__version__ = settings.get("version", version)
        told = settings.get("assembler")
        compiler.get_ptxas_version = (lambda arch, told=told: told) if told else assembler
        found[name] = digests(folder, old, new, settings)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
