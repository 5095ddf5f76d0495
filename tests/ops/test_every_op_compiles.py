"""Every op's kernels compile for every target as accepted: no new spill, no lost instruction."""

import pytest

from tercet.harness.cross_compile import cross_compile
from tercet.kernel.contract import Op
from tercet.kernel.select import discover

COMPILED = [
    op
    for op in discover().values()
    if any(each.language in ("triton", "gluon", "cuda") for each in op.implementations)
]


@pytest.mark.parametrize("op", COMPILED, ids=[op.name for op in COMPILED])
def test_compiles_as_accepted(op: Op) -> None:
    report = cross_compile(op)
    faults = [str(finding.message) for finding in report.findings if not finding.passed]
    assert report.passed, faults[:5]
    assert {row.target for row in report.rows} == {"sm_80", "sm_90", "sm_100", "gfx942"}
