"""What a kernel reads or writes beside its tensors is an error in the interpreter."""

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import InterpreterError

from tercet.kernel.interpreter.corrections import interpreting

pytestmark = pytest.mark.skipif(not interpreting(), reason="kernels run on a GPU here")


@triton.jit
def copy(x_ptr, y_ptr, n, read, write, shift, BLOCK: tl.constexpr):
    """The first n numbers; all before `read` are read, all before `write` are written."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at + shift, at < read, 0.0)
    tl.store(y_ptr + at + shift, tl.where(at < n, x, 0.0), at < write)


@triton.jit
def copy_all(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """The mask of the load is forgotten."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at), at < n)


@triton.jit
def add_rows(x_ptr, total_ptr, rows, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + at, at < n, 0.0)
    tl.atomic_add(total_ptr + at, x, at < rows)


@triton.jit
def choose(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    """Of two tensors in one load."""
    at = tl.arange(0, BLOCK)
    of_x = tl.load(tl.where(at % 2 == 0, x_ptr + at, y_ptr + at), at < n, 0.0)
    tl.store(z_ptr + at, of_x, at < n)


@triton.jit
def copy_listed(table_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Of a tensor whose address lies in a table."""
    at = tl.arange(0, BLOCK)
    x_ptr = tl.load(table_ptr).to(tl.pointer_type(tl.float32))
    tl.store(y_ptr + at, tl.load(x_ptr + at, at < n), at < n)


def memory(n: int) -> tuple[Tensor, Tensor]:
    """Numbers with more of them before and behind, which no kernel is given."""
    return torch.arange(n + 64.0)[32 : 32 + n], torch.zeros(n + 64)[32 : 32 + n]


@pytest.mark.parametrize("n", [1, 16, 37, 300])
def test_what_stays_inside_is_copied(n: int) -> None:
    x, y = memory(n)
    copy[(triton.cdiv(n, 16),)](x, y, n, n, n, 0, BLOCK=16)
    assert torch.equal(x, y)


@pytest.mark.parametrize("n", [16, 37, 300])
@pytest.mark.parametrize(
    ("read", "write", "shift", "message"),
    [
        (1, 0, 0, "reads 4 bytes, 0 bytes behind the end of x_ptr"),
        (0, 1, 0, "writes 4 bytes, 0 bytes behind the end of y_ptr"),
        (0, 0, -1, "reads 4 bytes, 0 bytes before the start of x_ptr"),
    ],
)
def test_one_place_beside_is_found(n: int, read: int, write: int, shift: int, message: str) -> None:
    x, y = memory(n)
    with pytest.raises(InterpreterError, match=message):
        copy[(triton.cdiv(n + 1, 16),)](x, y, n, n + read, n + write, shift, BLOCK=16)


def test_a_forgotten_mask_is_found_though_what_it_reads_is_nowhere_used() -> None:
    x, y = memory(37)
    with pytest.raises(InterpreterError, match=r"reads 4 bytes, .* behind the end of x_ptr"):
        copy_all[(3,)](x, y, 37, BLOCK=16)


def test_an_atomic_addition_beside_its_tensor_is_found() -> None:
    x, total = torch.ones(5, 12), torch.zeros(76)[32:44]
    add_rows[(5,)](x, total, 12, 12, BLOCK=16)
    assert torch.equal(total, torch.full((12,), 5.0))
    with pytest.raises(InterpreterError, match="behind the end of total_ptr"):
        add_rows[(5,)](x, total, 13, 12, BLOCK=16)


def test_one_load_may_read_several_tensors() -> None:
    (x, z), y = memory(20), -torch.arange(20.0)
    choose[(1,)](x, y, z, 20, BLOCK=32)
    assert torch.equal(z[::2], x[::2])
    assert torch.equal(z[1::2], y[1::2])
    with pytest.raises(InterpreterError, match=r"behind the end of [xy]_ptr"):
        choose[(1,)](x[:18], y, z, 20, BLOCK=32)


def test_an_address_from_a_table_may_be_of_any_tensor() -> None:
    x, y = memory(20)
    copy_listed[(1,)](torch.tensor([x.data_ptr()]), y, 20, BLOCK=32)
    assert torch.equal(y, x)
    # the next launch is held to its own again
    with pytest.raises(InterpreterError, match="behind the end of x_ptr"):
        copy_all[(3,)](x, y, 20, BLOCK=16)


def test_elements_that_overlap_belong_to_both() -> None:
    x, _ = memory(40)
    copy[(1,)](x, x[8:], 16, 16, 16, 0, BLOCK=16)
    with pytest.raises(InterpreterError, match="behind the end of x_ptr or y_ptr"):
        copy[(2,)](x[:20], x[8:24], 16, 32, 0, 0, BLOCK=16)
