"""Programs that are interpreted together leave the same memory as one after the other."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import InterpreterError

from tercet.kernel.interpreter import grid
from tercet.kernel.interpreter.corrections import interpreting
from tercet.kernel.interpreter.grid import backwards

pytestmark = pytest.mark.skipif(not interpreting(), reason="kernels run on a GPU here")
PROGRAMS = 24


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many programs ran at once, of what ran meanwhile; nothing is known of any kernel."""
    counts, enter = list[int](), grid._enter

    def counted(programs: grid._Programs, *rest: object) -> object:
        counts.append(programs.count)
        return enter(programs, *rest)

    monkeypatch.setattr(grid, "_enter", counted)
    monkeypatch.setattr(grid, "_known", {})
    return counts


def one_by_one(launch: Callable[[], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "_FEWEST_PROGRAMS", 1 << 30)
        launch()


def compare(launch: Callable[[Tensor], None], memory: Tensor) -> Tensor:
    """What it leaves in the memory, which is to the bit what it leaves one after the other."""
    found, wanted = memory.clone(), memory.clone()
    launch(found)
    one_by_one(lambda: launch(wanted))
    assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))
    return found


@triton.jit
def pair(a, b):
    return a + b


@triton.jit
def everything(y_ptr, n, WIDTH: tl.constexpr):
    """Blocks of two axes and of one, scalars, sums, positions, running sums."""
    at = tl.program_id(0)
    row, column = tl.arange(0, 4)[:, None], tl.arange(0, WIDTH)[None, :]
    ours = y_ptr + at * 4 * WIDTH
    x = tl.load(ours + row * WIDTH + column, column < n, -1.5)
    total, most = tl.sum(x, 1), tl.max(x)
    place = tl.argmax(x, 0)
    _, where = tl.max(x, 1, return_indices=True)
    running = tl.cumsum(x, 1)
    small = tl.reshape(tl.trans(x), (4, WIDTH)).T
    one, other = tl.split(tl.reshape(x, (2, WIDTH, 2)))
    joined = tl.reshape(tl.join(other, one), (4, WIDTH))
    product = tl.dot(x.to(tl.bfloat16), tl.trans(x).to(tl.bfloat16))
    mixed = x * total[:, None] + most + place[None, :] * at + where[:, None] + running
    mixed += tl.trans(small) + joined + tl.sum(product, axis=1, keep_dims=True)
    mixed += tl.sum(x, keep_dims=True) + tl.reduce(x, 1, pair)[:, None] * (n - at)
    tl.store(ours + row * WIDTH + column, mixed, column < n)


def test_every_operation_gives_the_same_bits(together: list[int]) -> None:
    x = torch.randn(PROGRAMS, 4, 16, generator=torch.Generator().manual_seed(5))
    # a combine function of its own is called element by element, for one program at a time
    found = compare(lambda y: everything[(PROGRAMS,)](y, 13, WIDTH=16), x)
    assert (found != x)[:, :, :13].all()
    assert max(together) > 1


@triton.jit
def branches(x_ptr, y_ptr, n):
    at = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    total = tl.load(x_ptr + at)
    if at % 3 == 0:
        tl.store(y_ptr + at, -1.0)
        total = total * 2
    for number in tl.range(tl.program_id(0), n, tl.num_programs(0)):
        total += number * tl.load(x_ptr + number)
    for number in range(at % 4):
        total -= number
    while total > 40:
        total = total / 2
    tl.store(y_ptr + at, total)


def test_programs_that_take_different_ways(together: list[int]) -> None:
    x = torch.randn(64, generator=torch.Generator().manual_seed(6)) * 10
    found = compare(lambda y: branches[(8, 3)](x, y, 13), torch.zeros(32))
    assert found[:24].all()
    assert not found[24:].any()
    assert 1 < max(together) <= 24


@triton.jit
def in_place(y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, BLOCK)
    kept = tl.arange(0, BLOCK) < n
    for _ in range(3):
        x = tl.load(y_ptr + at, kept, 0.0)
        tl.store(y_ptr + at, x * 2 + tl.sum(x, 0), kept)


def test_each_over_its_own_part_runs_together(together: list[int]) -> None:
    x = torch.randn(PROGRAMS * 5, generator=torch.Generator().manual_seed(7))
    compare(lambda y: in_place[(PROGRAMS,)](y, 5, BLOCK=8), x)
    assert max(together) == PROGRAMS - 1


@triton.jit
def reads_the_one_before(y_ptr):
    at = tl.program_id(0)
    tl.store(y_ptr + at + 1, tl.load(y_ptr + at) * 1.5 + 1)


@triton.jit
def reads_the_one_behind(y_ptr):
    at = tl.program_id(0)
    tl.store(y_ptr + at, at)
    tl.store(y_ptr + at, tl.load(y_ptr + at + 1) + at)


@triton.jit
def writes_over_the_one_before(y_ptr):
    at = tl.program_id(0)
    tl.store(y_ptr + at, 3 * at)
    tl.store(y_ptr + at + 1, 2 * at)


@triton.jit
def all_write_to_one_place(y_ptr):
    at = tl.program_id(0)
    tl.store(y_ptr, at)
    tl.store(y_ptr + at + 1, tl.load(y_ptr))


@triton.jit
def adds(y_ptr):
    at = tl.program_id(0)
    tl.store(y_ptr + at + 1, tl.atomic_add(y_ptr, at + 1.5))


@triton.jit
def with_other_widths(y_ptr):
    at = tl.program_id(0)
    octets = y_ptr.to(tl.pointer_type(tl.int8))
    tl.store(y_ptr + at, at + 0.3)
    tl.store(y_ptr + at + 1, tl.load(octets + 4 * at + 2).to(tl.float32))


@pytest.mark.parametrize(
    "kernel",
    [
        reads_the_one_before, reads_the_one_behind, writes_over_the_one_before,
        all_write_to_one_place, adds, with_other_widths,
    ],
)  # fmt: skip
def test_programs_that_meet_run_in_their_order(
    kernel: Callable[..., None], together: list[int]
) -> None:
    found = compare(lambda y: kernel[(PROGRAMS,)](y), torch.ones(PROGRAMS + 2))
    assert not torch.equal(found, torch.ones(PROGRAMS + 2))
    assert together[-1] == 1
    # and so it does the next time, at once
    before = len(together)
    kernel[(PROGRAMS,)](torch.ones(PROGRAMS + 2))
    assert set(together[before:]) == {1}


@triton.jit
def waits_for_nobody(x_ptr, parts_ptr, y_ptr, PROGRAMS: tl.constexpr):
    at = tl.program_id(0)
    tl.store(parts_ptr + at, tl.load(x_ptr + at) * 2)
    if at == PROGRAMS - 1:
        parts = tl.load(parts_ptr + tl.arange(0, PROGRAMS))
        tl.store(y_ptr, tl.sum(parts, 0))


@triton.jit
def by_itself(x_ptr, y_ptr, along_x, along_y):
    at = (tl.program_id(0) * along_y + tl.program_id(1)) * 2 + tl.program_id(2)
    tl.store(y_ptr + at, tl.load(x_ptr + at) * 2)


def test_backwards_the_last_program_runs_first() -> None:
    x, parts, y = torch.ones(16), torch.zeros(16), torch.zeros(1)
    waits_for_nobody[(16,)](x, parts, y, PROGRAMS=16)
    assert y.item() == 32
    parts.zero_()
    with backwards():
        waits_for_nobody[(16,)](x, parts, y, PROGRAMS=16)
    assert y.item() == 2
    assert parts.sum().item() == 32


def test_programs_that_do_not_meet_give_the_same_backwards() -> None:
    x = torch.randn(3 * 5 * 2, generator=torch.Generator().manual_seed(0))
    found = torch.zeros_like(x)
    with backwards():
        by_itself[(3, 5, 2)](x, found, 3, 5)
    assert torch.equal(found, 2 * x)


@triton.jit
def fails_in_one(y_ptr):
    at = tl.program_id(0)
    tl.store(y_ptr + at, at + 1.0)
    tl.static_assert(at != 9, "program 9")


def test_what_fails_in_one_program_leaves_what_was_before_it() -> None:
    y = torch.zeros(PROGRAMS)
    with pytest.raises(InterpreterError, match="program 9"):
        fails_in_one[(PROGRAMS,)](y)
    assert y.nonzero().flatten().tolist() == list(range(10))


def test_a_launch_option_that_does_not_exist_is_refused() -> None:
    """As on a GPU: elsewhere a kernel was right that could not be launched."""
    y = torch.zeros(PROGRAMS)
    fails_in_one[(3,)](y, num_warps=4, num_stages=2, maxnreg=64)
    assert y.tolist()[:4] == [1, 2, 3, 0]
    with pytest.raises(TypeError, match=r"fails_in_one.* 'num_wraps': did you mean 'num_warps'"):
        fails_in_one[(3,)](y, num_wraps=4)


@triton.jit
def misspelt(x):
    return tl.expp(x)


@triton.jit
def calls_misspelt(x_ptr):
    x = tl.load(x_ptr)
    tl.store(x_ptr, misspelt(x))


@triton.jit
def reads_beside(x_ptr):
    x = tl.load(x_ptr)
    tl.store(x_ptr, x + tl.load(x_ptr + 9))


@pytest.mark.parametrize(
    ("kernel", "line", "message"),
    [
        (calls_misspelt, "    return tl.expp(x)", "has no attribute 'expp'"),
        (reads_beside, "    tl.store(x_ptr, x + tl.load(x_ptr + 9))", "behind the end of x_ptr"),
    ],
)
def test_an_error_names_the_line_of_the_kernel(kernel: Any, line: str, message: str) -> None:
    number = Path(__file__).read_text().splitlines().index(line) + 1
    where = rf"in {Path(__file__).name}, line {number}$"
    with pytest.raises(InterpreterError, match=rf"^\w+\(.*{message}.* {where}"):
        kernel[(1,)](torch.ones(2))


@triton.jit
def widens(y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0)
    if at > 0:
        lanes = tl.arange(0, BLOCK)
        tl.store(y_ptr + at, tl.sum(tl.where(lanes < 9, lanes * at, 0), 0))


def test_blocks_that_only_later_programs_have(together: list[int]) -> None:
    compare(lambda y: widens[(4096,)](y, BLOCK=2048), torch.zeros(4096))
    assert max(together) > 1
    assert together[0] == 1


@pytest.mark.parametrize("warps", [0, 3, 64, 128, "4"])
def test_warps_that_no_gpu_takes_are_refused(warps: Any) -> None:
    y = torch.zeros(PROGRAMS)
    with pytest.raises(ValueError, match=f"num_warps={warps!r} of fails_in_one: .* 1, 2, 4, 8, 16"):
        fails_in_one[(3,)](y, num_warps=warps)
    assert not y.any()
    fails_in_one[(3,)](y, num_warps=32)
    assert y.tolist()[:4] == [1, 2, 3, 0]
