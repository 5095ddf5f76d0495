"""Guard zones: writes past an end, poison, layouts."""

import ctypes

import pytest
import torch

from tercet.harness.sandbox.guard import GuardedAllocations, Zones
from tercet.harness.workloads.layouts import LAYOUTS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn])
def test_a_write_past_an_end_is_seen(dtype: torch.dtype) -> None:
    zones = Zones()
    with GuardedAllocations(zones):
        x = torch.empty(3, 5, dtype=dtype)
        y = x.new_zeros(7)
    assert zones.broken() == []
    assert y.double().tolist() == [0.0] * 7 if dtype != torch.float8_e4m3fn else True
    ctypes.memset(x.data_ptr() + 15 * x.element_size(), 0, 2)
    ctypes.memset(y.data_ptr() - 1, 0, 1)
    first, second = zones.broken()
    assert first.startswith("2 bytes written past the end of a [3, 5]")
    assert second.startswith("1 bytes written past the start of a [7]")


def test_fresh_memory_is_poisoned() -> None:
    with GuardedAllocations(Zones()):
        assert torch.empty(4).isnan().all()
        assert torch.empty_like(torch.ones(2, 2, dtype=torch.bfloat16)).isnan().all()
        assert torch.ones(1).new_empty(3, dtype=torch.float16).isnan().all()
        assert (torch.empty(3, dtype=torch.int32) == 0x5A5A5A5A).all()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_keeps_values_and_strides(name: str) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    laid = LAYOUTS[name](x, 2)
    placed = Zones().place("x", laid).copy_(laid)
    assert torch.equal(placed, x)
    assert placed.stride() == laid.stride()
    assert placed.data_ptr() % 16 == laid.storage_offset() * 4 % 16


def test_in_the_mixed_layout_none_lies_as_the_next_one() -> None:
    for x in (torch.arange(12.0).reshape(3, 4), torch.arange(120.0).reshape(2, 3, 4, 5)):
        for index in range(4):
            laid, beside = (LAYOUTS["mixed"](x, at) for at in (index, index + 1))
            assert torch.equal(laid, x)
            assert laid.stride() != beside.stride()
            assert laid.stride(-1) == 1
