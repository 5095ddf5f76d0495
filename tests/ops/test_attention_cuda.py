"""attention on a GPU against float64: shapes that no tile divides, views, windows and caps."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tercet.kernel.requirement import gpu_capability
from tercet.ops.attention.hopper import launch
from tercet.ops.attention.op import OP
from tercet.ops.attention.reference import magnitude, reference

pytestmark = pytest.mark.skipif(gpu_capability() != (9, 0), reason="needs compute capability 9.0")


def in_wider_memory(x: Tensor, axis: int) -> Tensor:
    """The same numbers on the GPU, between NaN along an axis."""
    shape = list(x.shape)
    shape[axis] += 8
    wide = torch.full(shape, torch.nan, dtype=x.dtype, device="cuda")
    return wide.narrow(axis, 0, x.shape[axis]).copy_(x)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    new=st.integers(1, 520),
    before=st.sampled_from([-40, 0, 0, 1, 63, 64, 500]),
    batch=st.integers(1, 3),
    groups=st.integers(1, 3),
    shared=st.sampled_from([1, 2, 4]),
    width=st.sampled_from([8, 64, 80, 128, 192, 256]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
    causal=st.booleans(),
    window=st.sampled_from([0, 0, 1, 7, 64, 300]),
    soft_cap=st.sampled_from([0.0, 0.0, 2.0, 30.0]),
    many=st.booleans(),
)
def test_any_call(
    seed: int,
    new: int,
    before: int,
    batch: int,
    groups: int,
    shared: int,
    width: int,
    dtype: torch.dtype,
    causal: bool,
    window: int,
    soft_cap: float,
    many: bool,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    length = max(new + before, 1)
    q = torch.randn(batch, new, groups * shared, width, generator=generator).to(dtype)
    keys, values = (
        torch.randn(batch, groups, length, width, generator=generator).to(dtype) for _ in range(2)
    )
    options = (width**-0.5, causal, window if causal else 0, soft_cap)
    expected, size = (of(q, keys, values, *options) for of in (reference, magnitude))
    held = (in_wider_memory(q, 2), in_wider_memory(keys, 2), in_wider_memory(values, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "_MANY", 0 if many else 2048)
        found = launch.forward(*held, *options)
        again = launch.forward(*held, *options)
    tolerance = OP.tolerance(dtype)
    limit = tolerance.relative * expected.abs() + (tolerance.inner or 0.0) * size
    assert torch.equal(found, again)
    assert bool(((found.cpu().double() - expected).abs() <= limit + 1e-30).all())
