import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tercet.errors import UnsupportedError
from tercet.models import (
    InputTransform,
    fake_quantize_fp8,
    fake_quantize_int8,
    hadamard_transform,
)


def dense_hadamard(size: int) -> torch.Tensor:
    """H[i, j] = (-1)^popcount(i and j) / sqrt(size), from the definition."""
    signs = [[(-1.0) ** (i & j).bit_count() for j in range(size)] for i in range(size)]
    return torch.tensor(signs, dtype=torch.float64) / math.sqrt(size)


@given(st.integers(0, 9), st.integers(0, 3), st.integers(0, 4), st.integers(0, 2**31))
def test_hadamard_is_the_matrix_of_the_definition(
    power: int, blocks: int, rows: int, seed: int
) -> None:
    size = 2**power
    x = torch.randn(rows, blocks * size, generator=torch.Generator().manual_seed(seed)).double()
    expected = (x.reshape(rows, blocks, size) @ dense_hadamard(size)).reshape(x.shape)
    found = hadamard_transform(x, size)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(hadamard_transform(found, size), x, atol=1e-12, rtol=1e-12)


def test_hadamard_golden() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert hadamard_transform(x, 4).tolist() == [[5.0, -1.0, -2.0, 0.0]]


def test_hadamard_takes_strided_input_and_training_after_inference() -> None:
    x = torch.randn(8, 3)
    with torch.inference_mode():
        hadamard_transform(torch.randn(1, 8), 8)
    leaf = x.t().detach().requires_grad_()
    hadamard_transform(leaf, 8)[:, 0].sum().backward()
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, torch.full((3, 8), 1 / math.sqrt(8)))


@pytest.mark.parametrize(("columns", "size"), [(12, 8), (12, 3), (12, 0), (12, -4)])
def test_hadamard_of_a_wrong_size_is_refused(columns: int, size: int) -> None:
    with pytest.raises(UnsupportedError, match=f"size {size} over {columns} columns"):
        hadamard_transform(torch.zeros(1, columns), size)


def test_fake_quantization_golden() -> None:
    x = torch.tensor([[127.0, -63.4, 0.4, 0.0], [0.0, 0.0, 0.0, 0.0], [-2.54, 0.011, 0.0, 1.0]])
    expected = torch.tensor([[127.0, -63.0, 0, 0], [0, 0, 0, 0], [-2.54, 0.02, 0, 1.0]])
    torch.testing.assert_close(fake_quantize_int8(x), expected)


def test_fp8_fake_quantization_golden() -> None:
    # steps of 1, 0 and 2: of e4m3's numbers, 17 lies between 16 and 18 and goes to the even one
    x = torch.tensor([[448.0, -17.0, 0.3, 0.0], [0.0, 0.0, 0.0, 0.0], [-896.0, 38.0, 3.4, 0.0]])
    expected = torch.tensor([[448.0, -16, 0.3125, 0], [0, 0, 0, 0], [-896, 40, 3.5, 0]])
    assert torch.equal(fake_quantize_fp8(x), expected)


@pytest.mark.parametrize("fake_quantize", [fake_quantize_int8, fake_quantize_fp8])
def test_fake_quantization_passes_gradients_straight_through(
    fake_quantize: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.randn(3, 5, requires_grad=True)
    weight = torch.randn(3, 5)
    found = fake_quantize(x)
    assert torch.equal(found, fake_quantize(x.detach()))
    (found * weight).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, weight)


def test_steps_run_in_their_order() -> None:
    x, scale = torch.randn(2, 8), torch.rand(8) + 0.5
    transform = InputTransform(scale=scale, hadamard=4, activation="int8_token")
    expected = fake_quantize_int8(hadamard_transform(x * scale, 4))
    assert torch.equal(transform(x), expected)
    assert not transform.identity
    assert InputTransform().identity


def test_same_compares_values() -> None:
    scale = torch.rand(8)
    first = InputTransform(scale=scale, hadamard=4)
    assert first.same(InputTransform(scale=scale.clone(), hadamard=4))
    assert not first.same(InputTransform(scale=scale + 1, hadamard=4))
    assert not first.same(InputTransform(hadamard=4))
    assert not first.same(InputTransform(scale=scale))
    assert not InputTransform().same(InputTransform(activation="int8_token"))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"hadamard": 12}, "power of two"), ({"activation": "int4"}, "one of int8_token")],
)
def test_unknown_steps_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        InputTransform(**options)  # pyright: ignore[reportArgumentType]
