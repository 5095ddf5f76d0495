"""Every op's kernels compile for every target as accepted: no new spill, no lost instruction.

Of what has not changed since it was accepted one kernel of the op is drawn and compiled.
"""

from pathlib import Path

import pytest

from tercet.harness.cross_compile import cross_compile
from tercet.kernel.contract import Op
from tercet.ops.discover import discover, find

EXAMPLE = Path(__file__).parents[2] / "docs" / "guides" / "examples" / "gelu_gate"
DRAWN = 1
COMPILED = [
    op
    for op in (*discover().values(), find(str(EXAMPLE)))
    if any(each.language in ("triton", "gluon", "cuda") for each in op.implementations)
]


@pytest.mark.parametrize("op", COMPILED, ids=[op.name for op in COMPILED])
def test_compiles_as_accepted(op: Op) -> None:
    report = cross_compile(op, recompile=DRAWN)
    faults = [str(finding.message) for finding in report.findings if not finding.passed]
    assert report.passed, faults[:5]
    assert {row.target for row in report.rows} == {"sm_80", "sm_90", "sm_100", "gfx942"}
