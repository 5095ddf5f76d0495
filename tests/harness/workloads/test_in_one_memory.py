"""Two inputs that lie in one memory: a tensor given twice, parts of one, one address for two."""

from pathlib import Path

import pytest
import torch

from tercet.harness.check.case import CaseCheck
from tercet.harness.check.layouts import check_in_one_memory
from tercet.harness.check.run import cases_of, check
from tercet.harness.sandbox.candidate import candidate_from
from tercet.harness.sandbox.session import Here, Session
from tercet.harness.workloads.drawn import Drawn
from tercet.harness.workloads.in_one_memory import (
    WAYS,
    part_of,
    put_at_one_address,
    put_other_first,
    put_side_by_side,
    put_twice,
)
from tercet.kernel.contract import Workload
from tercet.ops.discover import find

SWIGLU, RMS_NORM = find("swiglu"), find("rms_norm")
PLAIN = {"swiglu": "4-132-float32-zeros", "rms_norm": "37-576-float32-residual"}
# what takes an address for a tensor, and rows of a view for rows of a matrix
FAULTS = {
    "swiglu": "from tercet.ops.swiglu.torch_path import forward as own, gradient\n"
    "def forward(gate, *others):\n"
    "    up, *rest = others\n"
    "    near = up is not None and up.data_ptr() - gate.data_ptr() == "
    "gate.shape[-1] * gate.element_size()\n"
    "    if near and gate.stride(-2) == 2 * gate.shape[-1]:\n"
    "        whole = gate.as_strided((gate[..., 0].numel(), 2 * gate.shape[-1]), "
    "(gate.stride(-2), 1))\n"
    "        halves = [half.reshape(gate.shape) for half in whole.chunk(2, -1)]\n"
    "        return own(*halves, *rest)\n"
    "    return own(gate, *others)\n",
    "rms_norm": "from tercet.ops.rms_norm.torch_path import forward as own, gradient\n"
    "def forward(x, weight, residual, eps):\n"
    "    same = residual is not None and residual.data_ptr() == x.data_ptr()\n"
    "    return own(x, weight, x if same else residual, eps)\n",
}


@pytest.mark.parametrize("shape", [(2, 3), (4, 5, 6), (2, 1)])
def test_numbers_and_places(shape: tuple[int, ...]) -> None:
    one, other = torch.randn(shape), torch.randn(shape)
    for way in (put_twice, put_at_one_address, put_side_by_side, put_other_first):
        found = way(one[...], other)
        assert found is not None
        assert found.one.shape == found.other.shape == one.shape
        assert torch.equal(found.one, one)
        assert found.whole.is_contiguous()
        for part in (found.one, found.other):
            place = part_of({"start": 64, "offset": 0}, part)
            begin = (place["start"] - 64) // 4
            flat = found.whole.view(-1)
            again = flat.as_strided(place["shape"], place["stride"], begin)
            assert torch.equal(again, part)
    side = put_side_by_side(one, other)
    assert side is not None
    assert torch.equal(side.other, other)
    first = put_other_first(one, other)
    assert first is not None
    assert torch.equal(first.other, other)
    assert side.one.storage_offset() == first.other.storage_offset() == 0
    at = put_at_one_address(one, other)
    assert at is not None
    assert at.one.data_ptr() == at.other.data_ptr()
    assert at.one.stride() != at.other.stride()


def test_what_cannot_lie_so() -> None:
    row = torch.randn(5)
    assert put_side_by_side(row, row) is None
    assert put_at_one_address(row, row) is None
    assert put_at_one_address(torch.randn(3, 0), torch.randn(3, 0)) is None


@pytest.mark.parametrize("name", PLAIN)
def test_a_kernel_that_goes_by_addresses(name: str, tmp_path: Path) -> None:
    op, path = find(name), tmp_path / "candidate.py"
    path.write_text(FAULTS[name])
    settings = {"isolated": False, "device": "cpu", "integration": False, "drawn": 0}
    cases = cases_of(op, [PLAIN[name]])
    said = "lies in the same rows" if name == "swiglu" else "at the address of"
    reports = [
        check(op, candidate=candidate_from(path), cases=cases, seed=seed, **settings)
        for seed in range(3)
    ]
    faults = [each for report in reports for each in report.faults]
    assert faults
    assert {each.check for each in faults} == {"strided"}
    assert any(said in each.message for each in faults)


def test_what_one_input_may_hold_another_need_not_take() -> None:
    """Of tokens that are masked a teacher's states may be NaN, and the student's may not."""
    op = find("linear_kl")
    options = {"mask": True, "all_masked": True}
    sizes = {"M": 4, "H": 3, "G": 3, "V": 5}
    workload = Workload(name="masked", sizes=sizes, dtype=torch.float32, options=options)
    case = Drawn(workload=workload, factors={}).case(op)
    assert case.make(1)["teacher_x"].isnan().any()
    session = Session(Here(op, op.implementation("triton").load(), "cpu"))
    judged = CaseCheck(op, session, "triton", case, 1, "cpu")
    check_in_one_memory(judged)
    labels = {finding.message for finding in judged.findings}
    assert labels == {""}
    # the two heads alone
    assert len(judged.findings) == len(WAYS)
