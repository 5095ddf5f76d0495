"""The attention kernel for Hopper, built for the CPU: threads are fibers, instructions C++.

The sources are those of the package but for the two headers that wrap what only a GPU has.
"""

import ctypes
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tercet.kernel.contract import Case
from tercet.kernel.jit.cuda import find_nvcc
from tercet.ops.paged_attention.hopper import launch
from tercet.ops.paged_attention.op import OP
from tercet.packed_weight.cached_rows import CACHED, quantize

SOURCES = Path(launch.__file__).parent
EMULATED = Path(__file__).parents[1] / "emulated"
SIZES = 'extern "C" int task_bytes() { return sizeof(Task); }\n'
# of a GPU whose 132 multiprocessors take two blocks each
PROCESSORS = 132

pytestmark = pytest.mark.skipif(find_nvcc() is None, reason="CUDA's headers come with nvcc")


def _takes(case: Case) -> bool:
    arguments, dtypes = case.make(0), OP.implementation("hopper").requirement.dtypes
    q, block = arguments["q"], arguments["keys"].shape[2]
    return q.dtype in dtypes and q.shape[3] in (64, 128) and block % 16 == 0


FITTING = [case for case in OP.cases if _takes(case)]


@pytest.fixture(scope="module")
def libraries(
    tmp_path_factory: pytest.TempPathFactory,
    copy_sources: Callable[..., None],
    build_emulated: Callable[..., ctypes.CDLL],
) -> dict[str, ctypes.CDLL]:
    folder = tmp_path_factory.mktemp("attention")
    copy_sources(SOURCES, folder, SIZES)
    shutil.copy(EMULATED / "instructions.cuh", folder)
    found = dict[str, ctypes.CDLL]()
    for made in launch.BUILDS:
        cache = str(made.defines["TERCET_CACHE"])
        found[cache] = build_emulated(folder, made, f"attention-{cache}", ("-O1",))
        found[cache].tercet_paged_attention.argtypes = (
            ctypes.POINTER(launch.Task),
            ctypes.c_void_p,
        )
    return found


@pytest.fixture
def emulated(libraries: dict[str, ctypes.CDLL], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "library", lambda cache: libraries[cache])
    monkeypatch.setattr(launch, "stream", lambda: 0)
    monkeypatch.setattr(launch, "multiprocessors", lambda device: PROCESSORS)


def test_the_task_is_as_long_as_in_c(libraries: dict[str, ctypes.CDLL]) -> None:
    assert {each.task_bytes() for each in libraries.values()} == {ctypes.sizeof(launch.Task)}


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("case", FITTING, ids=lambda case: case.name)
def test_the_cases_of_the_op(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them reaches triton.py."""
    monkeypatch.setattr(launch.triton, "forward", None)
    arguments = case.make(0)
    found = launch.forward(*arguments.values())
    expected = OP.reference(**arguments)
    limit = _limit(arguments, expected, found.dtype)
    same = (found.double() == expected) | (found.isnan() & expected.isnan())
    assert (same | ((found.double() - expected).abs() <= limit)).all()


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("warps", "together", "cache", "blocks", "splits"),
    [
        # how blocks share their sums does not depend on what keys and values are
        *((*each, None, blocks, 1) for each in ((4, 2), (8, 1)) for blocks in (1, 2, 4, 8, 16)),
        *((*each, cache, 4, 1) for each in ((4, 2), (4, 4), (8, 1)) for cache in CACHED),
        *((4, 2, None, *each) for each in ((1, 2), (2, 5), (8, 2), (4, 16))),
        *((4, 2, cache, 2, 2) for cache in CACHED),
    ],
)
def test_any_division(
    warps: int, together: int, cache: str | None, blocks: int, splits: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """More tiles than a warp's ring holds, more warps than tiles, and rows of several tiles."""
    division = warps, blocks, together, splits
    monkeypatch.setattr(launch, "divide", lambda *sizes, coded: division)
    for dtype, width, fresh, length in (
        (torch.bfloat16, 128, 1, 700),
        (torch.float16, 64, 5, 33),
        (torch.bfloat16, 64, 16, 500),
        (torch.float16, 64, 2, 700),
    ):
        if together == 4 and fresh * 4 > 8:
            continue
        generator = torch.Generator().manual_seed(blocks)
        q, keys, values = (
            torch.randn(shape, generator=generator).to(dtype)
            for shape in ((1, fresh, 8, width), (60, 2, 16, width), (60, 2, 16, width))
        )
        key_scales = value_scales = None
        if cache is not None:
            keys, key_scales = quantize(keys, cache)
            values, value_scales = quantize(values, cache)
        arguments = {
            "q": q, "keys": keys, "values": values,
            "blocks": torch.randperm(60, generator=generator)[None, :50].int(),
            "lengths": torch.tensor([length], dtype=torch.int32),
            "key_scales": key_scales, "value_scales": value_scales,
            "scale": width**-0.5, "window": 0, "soft_cap": 0.0,
        }  # fmt: skip
        found = launch.forward(*arguments.values())
        expected = OP.reference(**arguments)
        assert ((found.double() - expected).abs() <= _limit(arguments, expected, dtype)).all()


def _limit(arguments: dict[str, Any], expected: Tensor, dtype: torch.dtype) -> Tensor:
    tolerance = OP.tolerance(dtype)
    assert tolerance.inner is not None
    inner = tolerance.inner * OP.magnitude(**arguments)
    return tolerance.relative * expected.abs() + inner + torch.finfo(dtype).smallest_normal


@pytest.mark.parametrize(
    ("tasks", "positions", "floats", "codes"),
    [
        (8, 1024, (4, 16, 2, 1), (4, 16, 2, 1)),  # one sequence of eight key heads
        (8, 64, (4, 1, 2, 1), (4, 1, 2, 1)),
        (8, 16384, (4, 2, 2, 8), (8, 2, 1, 8)),
        (2, 1024, (4, 16, 2, 1), (4, 16, 2, 1)),
        (2, 8192, (4, 8, 2, 8), (4, 8, 2, 8)),
        (4, 16384, (4, 8, 2, 4), (8, 2, 1, 16)),
        (2, 65536, (4, 8, 2, 8), (8, 2, 1, 33)),
        (16, 1024, (4, 8, 2, 1), (4, 8, 2, 1)),
        (16, 16384, (4, 1, 2, 8), (8, 1, 1, 8)),
        (32, 1024, (4, 4, 2, 1), (4, 4, 2, 1)),
        (40, 8192, (4, 1, 2, 3), (8, 1, 1, 3)),
        (64, 1024, (8, 2, 1, 1), (8, 2, 1, 1)),  # eight sequences
        (64, 65536, (4, 2, 2, 1), (8, 2, 1, 1)),
        (128, 1024, (4, 2, 2, 1), (4, 2, 2, 1)),
        (256, 1024, (4, 1, 2, 1), (4, 2, 4, 1)),
        (256, 64, (4, 1, 2, 1), (4, 1, 4, 1)),
        (512, 65536, (4, 1, 2, 1), (4, 1, 4, 1)),
    ],
)
def test_work_is_divided_so_that_it_fills_the_gpu_once(
    tasks: int,
    positions: int,
    floats: tuple[int, int, int, int],
    codes: tuple[int, int, int, int],
) -> None:
    assert launch.divide(tasks, positions, PROCESSORS, 8) == floats
    assert launch.divide(tasks, positions, PROCESSORS, 8, coded=True) == codes
    # of 16 rows two at most find room side by side
    alike = codes if codes[2] < 4 else floats
    assert launch.divide(tasks, positions, PROCESSORS, 16, coded=True) == alike
