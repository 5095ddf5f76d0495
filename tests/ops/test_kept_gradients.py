"""Losses whose gradients are kept in x's dtype until the incoming one multiplies them."""

import pytest
import torch

from tercet.harness.check.run import check
from tercet.harness.workloads.drawn import Drawn, Incoming
from tercet.kernel.contract import Workload
from tercet.ops.discover import find

CASES = {
    "linear_cross_entropy": ({"M": 1, "H": 1, "V": 256}, ("x", "weight")),
    "linear_kl": (
        {"M": 1, "H": 1, "V": 256, "G": 1},
        ("x", "weight", "teacher_x", "teacher_weight"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_subnormal_numbers_lose_is_multiplied_too(name: str) -> None:
    """Kept near the end of float16's range, and scaled by 2^20 as a loss is: within the limit."""
    op, (sizes, small) = find(name), CASES[name]
    drawn = Drawn(
        workload=Workload(name="drawn", sizes=sizes, dtype=torch.float16),
        factors={},
        powers=dict.fromkeys(small, -12),
        incoming=Incoming(power=20),
    )
    report = check(
        op,
        implementation="torch",
        device="cpu",
        isolated=False,
        integration=False,
        drawn=0,
        cases=[drawn.case(op)],
        seed=209,
    )
    assert report.passed, report.faults
    assert any(finding.check == "backward" and finding.errors for finding in report.findings)
