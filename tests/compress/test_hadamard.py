"""Hadamard rotation: exact against the matrix, its own inverse, and worth it on outliers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tercet.compress.ptq import rtn
from tercet.compress.ptq.hadamard import block_size, rotate, rotate_gram
from tercet.errors import UnsupportedError
from tercet.formats import parse_scheme


def matrix(size: int) -> Tensor:
    """The normalized Hadamard matrix in float64: (-1)^popcount(i & j) / sqrt(size)."""
    signs = [[(-1.0) ** (i & j).bit_count() for j in range(size)] for i in range(size)]
    return torch.tensor(signs, dtype=torch.float64) / size**0.5


def normal(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [1, 2, 4, 32, 128])
def test_it_is_the_matrix_on_each_block(size: int) -> None:
    weight = normal(7, 3 * size)
    blocks = torch.block_diag(*[matrix(size)] * 3)
    exact = weight.double() @ blocks
    torch.testing.assert_close(rotate(weight, size).double(), exact, rtol=0, atol=1e-6)
    torch.testing.assert_close(rotate(weight.double(), size), exact, rtol=0, atol=1e-14)
    gram = weight.T @ weight
    expected = blocks.T @ gram.double() @ blocks
    torch.testing.assert_close(rotate_gram(gram, size).double(), expected, rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(0, 4),
    blocks=st.integers(0, 4),
    power=st.integers(0, 9),
    seed=st.integers(0, 9),
)
def test_twice_is_the_identity(rows: int, blocks: int, power: int, seed: int) -> None:
    weight = normal(rows, blocks << power, seed)
    twice = rotate(rotate(weight, 1 << power), 1 << power)
    torch.testing.assert_close(twice, weight, rtol=0, atol=1e-6)


def test_the_layer_is_the_same() -> None:
    x, weight = normal(9, 576, 1).double(), normal(5, 576, 2).double()
    rotated = rotate(x, 64) @ rotate(weight, 64).T
    torch.testing.assert_close(rotated, x @ weight.T, rtol=1e-12, atol=1e-12)


def test_gram_gives_the_loss_of_rotated_inputs() -> None:
    x, error = normal(50, 96), normal(4, 96, 1)
    gram = x.T @ x / 50
    turned = rotate(error, 32)
    loss = ((turned @ rotate_gram(gram, 32)) * turned).sum()
    torch.testing.assert_close(loss, ((error @ gram) * error).sum())


@pytest.mark.parametrize(
    ("columns", "size"), [(576, 64), (1536, 512), (4096, 1024), (7, 1), (1, 1), (0, 1), (96, 32)]
)
def test_block_size(columns: int, size: int) -> None:
    assert block_size(columns) == size


def test_block_size_has_a_largest() -> None:
    assert block_size(4096, largest=4096) == 4096
    assert block_size(4096, largest=100) == 64


@pytest.mark.parametrize(("size", "columns"), [(3, 12), (64, 96), (0, 8), (-2, 8)])
def test_sizes_that_cannot_be_are_refused(size: int, columns: int) -> None:
    with pytest.raises(UnsupportedError, match=f"Hadamard block of {size} on {columns} columns"):
        rotate(torch.zeros(1, columns), size)


def test_an_outlier_column_is_spread_over_its_block() -> None:
    weight = normal(64, 128) * 0.02
    weight[:, 5] *= 50
    rotated = rotate(weight, 128)
    assert weight.abs().amax() / weight.square().mean().sqrt() > 20
    assert rotated.abs().amax() / rotated.square().mean().sqrt() < 8
    torch.testing.assert_close(rotated.square().sum(1), weight.square().sum(1))


def test_3_bit_error_falls_on_heavy_tails() -> None:
    weight, scheme = normal(64, 512).pow(3) * 0.02, parse_scheme("int3-g64")
    plain = float((rtn.quantize(weight, scheme).dequantize() - weight).square().mean())
    packed = rtn.quantize(rotate(weight, 512), scheme)
    turned = float((rotate(packed.dequantize(), 512) - weight).square().mean())
    assert turned < 0.6 * plain
