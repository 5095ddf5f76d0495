"""How the skinny product is cut up: what a plan must hold on any shape."""

import pytest

from tercet.errors import UnsupportedError
from tercet.ops.linear_packed.cuda_decode import plan_for, shared_bytes

PROCESSORS, SHARED = 132, 227 * 1024


@pytest.mark.parametrize("m", [1, 8, 16, 33, 64])
@pytest.mark.parametrize("row_blocks", [1, 5, 256, 512, 1792, 9496])
@pytest.mark.parametrize("units", [1, 3, 32, 112])
def test_a_plan_covers_the_rows_evenly_and_fits(m: int, row_blocks: int, units: int) -> None:
    plan = plan_for(m, row_blocks, units, 128, 1, 2, PROCESSORS)
    rows = -(-row_blocks // plan.blocks)
    assert 1 <= plan.blocks <= row_blocks
    assert plan.ranks <= units
    assert plan.team <= units // plan.ranks
    assert plan.warps % plan.team == 0
    assert shared_bytes(m, rows, -(-units // plan.ranks) * 128, 32, plan) <= SHARED
    assert rows * (plan.blocks - 1) < row_blocks


def test_one_token_takes_one_wave_of_equal_blocks() -> None:
    plan = plan_for(1, 256, 32, 128, 1, 2, PROCESSORS)
    assert (plan.blocks, plan.ranks) == (128, 1)


def test_what_does_not_fit_says_so() -> None:
    with pytest.raises(UnsupportedError, match="64 rows of x with 416 units of 128 bytes"):
        plan_for(64, 1024, 416, 128, 1, 2, PROCESSORS)
