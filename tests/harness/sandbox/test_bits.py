"""Bits: what is equal to the bit, and what but for the bits of a NaN."""

import pytest
import torch

from tercet.harness.sandbox.bits import same_bits, same_numbers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_any_nan_equals_another_and_nothing_else(dtype: torch.dtype) -> None:
    one = torch.tensor([1.0, torch.nan, -0.0], dtype=dtype)
    other = one.clone()
    assert same_bits(one, other)
    other[1] = torch.copysign(other[1], torch.tensor(-1.0, dtype=dtype))
    assert not same_bits(one, other)
    assert same_numbers(one, other)
    for at, value in ((0, torch.nan), (1, 1.0), (2, 0.0)):
        changed = other.clone()
        changed[at] = value
        assert not same_numbers(one, changed)
    assert not same_numbers(one, one[:2])
    assert not same_numbers(torch.tensor([1]), torch.tensor([2]))
