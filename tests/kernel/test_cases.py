"""Case values: what each kind promises."""

import pytest
import torch

from tercet.kernel.cases import DTYPES, KINDS, cases, values, workloads
from tercet.ops.rms_norm.cases import inputs


@pytest.mark.parametrize("dtype", DTYPES)
def test_kinds_are_what_they_are_called(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    drawn = {kind: values((8, 70), dtype, 5, kind) for kind in KINDS}
    assert all(x.dtype == dtype and x.shape == (8, 70) for x in drawn.values())
    finite = {kind: x for kind, x in drawn.items() if kind not in ("inf", "nan")}
    assert all(x.isfinite().all() for x in finite.values())
    assert drawn["large"].float().square().sum().isfinite()
    assert drawn["largest"].abs().min() == limits.max
    size = drawn["subnormal"].double().abs()
    assert ((size > 0) & (size < limits.smallest_normal)).float().mean() > 0.9
    assert not drawn["zeros"].any()
    assert drawn["constant"].unique().numel() == 1
    assert drawn["mixed"][:, ::7].abs().median() > 100 * drawn["mixed"][:, 1].abs().median()
    assert drawn["offset"].float().mean() > 99
    assert drawn["small"].abs().max() < 1e-3
    step = limits.smallest_normal * limits.eps
    lowest = drawn["lowest"].double() / step
    assert torch.equal(lowest, lowest.round())
    assert 10 < lowest.abs().mean() < 300
    assert (drawn["positive"] >= 0).all()
    even, odd = (values((8, 70), dtype, seed, "cancelling").double() for seed in (4, 5))
    assert (even[0] > 0).all()
    assert (even * odd).sum(1).abs().max() == 0
    assert drawn["nan"].isnan().sum() == 1
    assert drawn["inf"].isinf().sum() == 2


def test_seeds_decide() -> None:
    (case,) = cases(inputs, workloads(({"M": 3, "N": 8},), (torch.float32,)))
    assert torch.equal(case.make(1)["x"], case.make(1)["x"])
    assert not torch.equal(case.make(1)["x"], case.make(2)["x"])


def test_names_are_unique() -> None:
    made = cases(inputs, workloads(({"M": 3, "N": 8}, {"M": 8, "N": 3})), KINDS)
    assert len({case.name for case in made}) == len(made) == 2 * 3 * len(KINDS)
    assert [case.gradient for case in made[: len(KINDS)]].count(False) == 3
