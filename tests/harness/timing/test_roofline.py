"""The floor of a call, and which side sets it."""

import pytest
import torch

from tercet.harness.timing.ceilings import Ceilings
from tercet.harness.timing.roofline import flops_per_second, roofline
from tercet.kernel.contract import Cost

CEILINGS = Ceilings(
    device="a",
    l2_bytes=1e6,
    copy_bytes_per_second=4e12,
    fp32_flops_per_second=5e13,
    bf16_flops_per_second=6e14,
    int8_flops_per_second=8e14,
)


def test_memory_binds_where_bytes_take_longer():
    found = roofline(
        Cost(flops=6, bytes_read=300_000_000, bytes_written=100_000_000), CEILINGS, torch.bfloat16
    )
    assert found.binds == "memory"
    assert found.floor_us == pytest.approx(100.0)
    assert found.fraction(125.0) == pytest.approx(0.8)


def test_compute_binds_where_operations_take_longer():
    cost = Cost(flops=6 * 10**11, bytes_read=4_000_000, bytes_written=0)
    found = roofline(cost, CEILINGS, torch.bfloat16)
    assert (found.binds, found.floor_us) == ("compute", pytest.approx(1000.0))
    assert roofline(cost, CEILINGS, torch.int8).floor_us == pytest.approx(750.0)


def test_a_dtype_without_a_rate_of_its_own_takes_float32s():
    assert flops_per_second(CEILINGS, torch.float8_e4m3fn) == 5e13


def test_without_any_rate_memory_alone_counts():
    bare = Ceilings(device="a", l2_bytes=1e6, copy_bytes_per_second=4e12)
    cost = Cost(flops=10**15, bytes_read=4_000_000, bytes_written=0)
    assert roofline(cost, bare, torch.float32).floor_us == pytest.approx(1.0)
