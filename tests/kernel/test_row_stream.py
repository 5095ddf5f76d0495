"""row_stream.cuh: a slot is refilled only when every word that was taken from it has arrived."""

import re
import subprocess
from pathlib import Path

import pytest
import triton

from tercet.kernel.jit.cuda import INCLUDE, find_nvcc

KERNEL = """
#include "kernel/device/row_stream.cuh"
__global__ void copy(const void* x, int64_t pitch, int rows, int units, int stages, uint4* out) {
  __shared__ uint64_t barriers[row_stream::MAX_WARPS * row_stream::MAX_STAGES];
  extern __shared__ uint4 slots[];
  row_stream::WarpShare<2> share(x, pitch, rows, units, stages, slots, barriers);
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    uint4 held[2];
    share.take(held);
    share.taken();
    for (int i = 0; i < 2; i++)
      if (share.inside(i)) out[int64_t(row) * units + share.unit(i)] = held[i];
  }
}
"""
NVDISASM = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"


@pytest.fixture(scope="module")
def instructions(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The machine code, from the first load of a slot to the next request of a row."""
    nvcc = find_nvcc()
    if nvcc is None or not NVDISASM.exists():
        pytest.skip("needs nvcc, and the disassembler that Triton brings")
    folder = tmp_path_factory.mktemp("row_stream")
    (folder / "copy.cu").write_text(KERNEL, encoding="utf-8")
    subprocess.run(
        [nvcc, "-std=c++17", "-O3", "-arch=sm_90", f"-I{INCLUDE}", "-cubin", "-o", "copy.cubin",
         "copy.cu"],
        cwd=folder, check=True, timeout=600,
    )  # fmt: skip
    text = subprocess.run(
        [NVDISASM, "copy.cubin"],
        cwd=folder,
        check=True,
        timeout=600,
        capture_output=True,
        text=True,
    ).stdout
    found = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", text)
    first = next(i for i, line in enumerate(found) if line.startswith("LDS.128"))
    last = next(i for i, line in enumerate(found) if i > first and "UBLKCP" in line)
    return found[first:last]


def test_lanes_meet_with_a_mask_that_every_loaded_word_decides(instructions: list[str]) -> None:
    loads = dict[int, set[int]]()  # register -> the loads that its number depends on
    count = 0
    for line in instructions:
        name, _, operands = line.partition(" ")
        registers = [int(number) for number in re.findall(r"\bR(\d+)", operands)]
        if name.startswith("LDS.128"):
            for word in range(4):
                loads[registers[0] + word] = {count}
            count += 1
        elif name == "WARPSYNC":
            assert loads.get(registers[0]) == set(range(count)) == {0, 1}
            return
        elif registers:
            into, *of = registers
            loads[into] = set().union(*(loads.get(register, set()) for register in of))
    pytest.fail(f"no WARPSYNC of a register before the slot is refilled: {instructions}")
