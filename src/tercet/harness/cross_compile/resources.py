"""Resources: read from the compiled kernel and its assembly."""

import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import triton

from tercet.errors import BuildError
from tercet.harness.cross_compile.report import Resources

# "ld.global.nc.L1::no_allocate.v4.b32 {...", "st.global.b32 ..."
_PTX_ACCESS = re.compile(r"\b(ld|st)((?:\.[\w:]+)*\.global(?:\.[\w:]+)*)")
# "cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;"
_PTX_COPY = re.compile(r"\bcp\.async\.c[ag]\.\S+\s*\[[^]]*\],\s*\[[^]]*\],\s*(\w+)")
_AMD_ACCESS = re.compile(r"^\s*(?:global|buffer|flat)_(load|store)_(\w+)", re.MULTILINE)
_AMD_NOTE = re.compile(r"^\s*\.(\w+):\s+(\d+)\s*$", re.MULTILINE)
_USAGE = re.compile(r"\b(REG|STACK|LOCAL):(\d+)")


def of_cubin(cubin: bytes, ptx: str, shared_bytes: int) -> Resources:
    """Of a kernel of NVIDIA: registers and stack from the binary, instructions from its PTX."""
    usage = _usage(cubin)
    return of_ptx(
        ptx,
        registers=usage["REG"],
        spills=usage["STACK"] + usage["LOCAL"],
        shared_bytes=shared_bytes,
    )


def of_ptx(ptx: str, *, registers: int, spills: int, shared_bytes: int) -> Resources:
    """Of a kernel whose resources are known, with the instructions of its PTX."""
    bits: dict[str, list[int]] = {"ld": [], "st": []}
    for kind, modifiers in _PTX_ACCESS.findall(ptx):
        bits[kind].append(_ptx_bits(modifiers))
    bits["ld"] += [8 * int(size, 0) for size in _PTX_COPY.findall(ptx)]
    return Resources(
        registers=registers,
        spills=spills,
        shared_bytes=shared_bytes,
        wgmma=len(re.findall(r"\bwgmma\.mma_async", ptx)),
        tcgen05=len(re.findall(r"\btcgen05\.mma", ptx)),
        mma=len(re.findall(r"(?<![\w.])mma\.s[py]", ptx)),
        **_widths(bits["ld"], bits["st"]),
        tma=len(re.findall(r"\bcp\.async\.bulk\.tensor", ptx)),
    )


def of_amdgcn(assembly: str, shared_bytes: int) -> Resources:
    """Of a kernel of AMD, from its assembly and the metadata at its end."""
    noted = {name: int(value) for name, value in _AMD_NOTE.findall(assembly)}
    bits: dict[str, list[int]] = {"load": [], "store": []}
    for kind, size in _AMD_ACCESS.findall(assembly):
        bits[kind].append(_amd_bits(size))
    return Resources(
        registers=noted["vgpr_count"],
        spills=4 * (noted["vgpr_spill_count"] + noted["sgpr_spill_count"]),
        shared_bytes=shared_bytes,
        mfma=len(re.findall(r"^\s*v_s?mfma", assembly, re.MULTILINE)),
        **_widths(bits["load"], bits["store"]),
    )


def _widths(loads: list[int], stores: list[int]) -> dict[str, Any]:
    return {
        "loads": len(loads),
        "stores": len(stores),
        "load_bits": max(loads, default=0),
        "store_bits": max(stores, default=0),
        "load_bits_mean": round(sum(loads) / len(loads), 1) if loads else 0.0,
        "store_bits_mean": round(sum(stores) / len(stores), 1) if stores else 0.0,
    }


def _ptx_bits(modifiers: str) -> int:
    vector = re.search(r"\.v([248])\b", modifiers)
    element = re.search(r"\.[busf](\d+)$", modifiers)
    return (int(vector[1]) if vector else 1) * (int(element[1]) if element else 0)


def _amd_bits(size: str) -> int:
    """Of "dwordx4", "b128", "lds_dword", "ushort", "short_d16_hi", "ubyte"."""
    if match := re.search(r"dword(?:x(\d))?", size):
        return 32 * int(match[1] or 1)
    if match := re.search(r"\b(?:\w+_)?[busi](\d+)", size):
        return int(match[1])
    return 8 if "byte" in size else 16


def _usage(cubin: bytes) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run(
            [str(tool), "-res-usage", str(path)], capture_output=True, text=True, check=False
        )
    found = {name: int(value) for name, value in _USAGE.findall(done.stdout)}
    if not {"REG", "STACK", "LOCAL"} <= found.keys():
        raise BuildError(
            f"{tool} -res-usage did not name the kernel's registers: {done.stdout}{done.stderr}; "
            "install the triton that this version of tercet names"
        )
    return found
