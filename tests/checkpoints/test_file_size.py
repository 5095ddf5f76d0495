"""The size of a file that is not written yet is that of the file that is written."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from tercet.checkpoints.packed.file_size import file_size_bytes
from tercet.checkpoints.packed.read import _DTYPES

DTYPES = list(_DTYPES.values())
SHAPES = st.lists(st.integers(0, 40), max_size=3).map(tuple)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,9}\.[a-z_]{1,9}", fullmatch=True),
        st.tuples(st.sampled_from(DTYPES), SHAPES),
        max_size=12,
    )
)
def test_as_written(layout: dict[str, tuple[torch.dtype, tuple[int, ...]]]) -> None:
    tensors = {name: torch.zeros(shape).to(dtype) for name, (dtype, shape) in layout.items()}
    assert file_size_bytes(layout) == len(save(tensors))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_that_is_read_has_a_size(dtype: torch.dtype) -> None:
    assert file_size_bytes({"a": (dtype, (3,))}) == len(save({"a": torch.zeros(3).to(dtype)}))
