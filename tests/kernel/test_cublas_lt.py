"""cublas_lt: how operands are handed over, and products of a chosen tile on a GPU."""

import pytest
import torch
from torch import Tensor

from tercet.kernel.device.add_product import add_product
from tercet.kernel.device.cublas_lt import operand, tiled_product

TILE_128_128, NO_TILE = 20, 9999
TILES = range(20, 33)  # of 128 x 128 to 128 x 192: the library offers about eight, which vary
needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="the tiles are those of compute capability 9.0",
)


def as_read(matrix: Tensor) -> Tensor | None:
    """The transpose of the matrix, as a library that goes by columns reads its memory."""
    found = operand(matrix)
    if found is None:
        return None
    columns = torch.as_strided(
        matrix, (found.rows, found.columns), (1, found.step), matrix.storage_offset()
    )
    return columns.T if found.transposed else columns


def test_an_operand_is_read_as_its_transpose() -> None:
    memory = torch.arange(120.0).view(10, 12)
    for matrix in (memory, memory.t(), memory[:, 2:7], memory[3:5, 1:9].t(), memory[4:5]):
        read = as_read(matrix)
        assert read is not None
        assert torch.equal(read, matrix.T)
    assert as_read(memory[::2, ::2]) is None
    assert as_read(memory.as_strided((4, 4), (2, 1))) is None, "rows that overlap"


def test_the_product_of_what_is_read_is_the_transposed_total() -> None:
    """By columns: total^T = right^T left^T, here for a gradient of weight."""
    logits, x = torch.randn(6, 40).double(), torch.randn(6, 8).double()
    left, right = as_read(logits.t()), as_read(x)
    assert left is not None
    assert right is not None
    assert torch.equal(right @ left, (logits.t() @ x).T)


def test_other_tensors_are_left_alone() -> None:
    total, left, right = torch.zeros(4, 4), torch.ones(4, 8), torch.ones(8, 4)
    assert not tiled_product(total, left, right, tile=TILE_128_128, fresh=True)
    assert not total.any()
    add_product(total, left, right, fresh=True, tile=TILE_128_128)
    assert (total == 8).all()


@needs_hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_products_on_a_gpu(dtype: torch.dtype, fresh: bool, transposed: bool) -> None:
    generator = torch.Generator("cuda").manual_seed(3)
    left = torch.randn(768, 4096, generator=generator, device="cuda").to(dtype)
    left = left.t() if transposed else left.reshape(4096, 768)
    right = torch.randn(768, 1024, generator=generator, device="cuda").to(dtype)
    before = torch.randn(4096, 1024, generator=generator, device="cuda").to(dtype)
    exact = left.double() @ right.double() + (0 if fresh else before.double())
    done = 0
    for tile in (*TILES, NO_TILE):
        total = torch.full_like(before, torch.nan) if fresh else before.clone()
        if tiled_product(total, left, right, tile=tile, fresh=fresh):
            done += 1
            assert tile != NO_TILE
            off = (total.double() - exact).abs().max() / exact.abs().max()
            assert off < 2 * torch.finfo(dtype).eps, tile
        unaligned = torch.empty(4096 * 1024 + 8, dtype=dtype, device="cuda")[8:].view(4096, 1024)
        assert not tiled_product(unaligned, left, right, tile=tile, fresh=True)
    assert done >= 3
