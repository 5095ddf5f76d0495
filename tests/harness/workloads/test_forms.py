"""Contents that look like nothing add up to 0 without being it; special values do meet."""

import math

import pytest
import torch

from tercet.harness.workloads.forms import FORMS, MEETING, meet


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 7), (64,), (3, 2, 4098), (5, 1), (1,)])
def test_balanced_numbers_add_up_to_0_in_any_order(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    made = FORMS["balanced"](torch.randn(shape).to(dtype), 3)
    assert made.dtype == dtype
    assert made.shape == shape
    assert not made.double().sum(-1).any()
    assert not made.flip(-1).cumsum(-1, dtype=torch.float32)[..., -1].any()
    assert shape[-1] < 2 or int((made != 0).sum()) >= made.numel() // shape[-1] * (shape[-1] - 1)
    assert torch.equal(FORMS["ones"](made, 3), torch.full(shape, 1.0, dtype=dtype))


def test_an_element_alone_is_balanced() -> None:
    assert torch.equal(FORMS["balanced"](torch.tensor(3.0), 1), torch.tensor(0.0))


def test_each_pair_of_special_values_meets_at_one_place() -> None:
    one, other = torch.full((len(MEETING), 9), 5.0), torch.full((len(MEETING), 9), 7.0)
    first, second = meet(one, other, 2)
    assert bool((one == 5).all())
    assert bool((other == 7).all())
    seen = set[str]()
    for row, beside in zip(first, second, strict=True):
        (at,) = (row != 5).nonzero().flatten().tolist()
        assert [at] == (beside != 7).nonzero().flatten().tolist()
        seen.add(str((float(row[at]), float(beside[at]))))
    assert seen == {str(pair) for pair in MEETING}
    assert {str((0.0, math.nan)), str((math.inf, -math.inf))} <= seen


@pytest.mark.parametrize("seed", range(4))
def test_two_places_of_one_row_meet(seed: int) -> None:
    first, second = meet(torch.full((40, 8), 5.0), None, seed)
    assert second is first
    places = [(row != 5).nonzero().flatten().tolist() for row in first]
    assert {len(each) for each in places} == {2}
    apart = {(second - first) % 8 for first, second in places}
    assert apart <= {1, 7} or apart == {4}


def test_a_row_for_all_has_zeros_where_others_have_special_values() -> None:
    first, second = meet(torch.full((30, 6), 5.0), torch.full((6,), 7.0), 2)
    places = first != 5
    assert bool((places.sum(-1) == 1).all())
    assert not first[places].isfinite().any()
    assert torch.equal(second, torch.where(places.any(0), 0.0, 7.0))


def test_alike_ends_have_others_between_them() -> None:
    drawn = torch.randn(4, 3, 5).transpose(0, 1)
    made = FORMS["with alike ends"](drawn, 3)
    assert torch.equal(made[0], made[-1])
    assert torch.equal(made[:-1], drawn[:-1])
    assert not torch.equal(drawn[0], drawn[-1])
