"""launch: stages of a loop never ask for more shared memory than a multiprocessor has."""

from hypothesis import given
from hypothesis import strategies as st

from tercet.kernel.launch import fitting_stages

SHARED_BYTES = 227 * 1024  # of a block on compute capability 9.0


@given(wanted=st.integers(1, 8), tile_bytes=st.integers(1, 1 << 20))
def test_all_but_one_stage_fit_and_no_more_are_wanted(wanted: int, tile_bytes: int) -> None:
    stages = fitting_stages(wanted, tile_bytes)
    assert 1 <= stages <= wanted
    assert (stages - 1) * tile_bytes <= SHARED_BYTES


def test_a_table_of_short_rows_serves_long_ones() -> None:
    """Two rows of 8192 float32 numbers, of two tensors: three stages would take 256 KiB."""
    assert fitting_stages(3, 2 * 2 * 8192 * 4) == 2
    assert fitting_stages(3, 2 * 8192 * 2) == 3
