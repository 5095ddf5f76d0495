"""Two inputs that are halves of one tensor: their gradients are judged too, whichever is first."""

from pathlib import Path

import pytest

from tercet.harness.check.run import cases_of, check
from tercet.harness.sandbox.candidate import candidate_from
from tercet.ops.discover import find

OP = find("swiglu")
CANDIDATE = """
import torch
from tercet.ops.swiglu import torch_path

forward = torch_path.forward

def gradient(grad, gate, up):
    first, second = torch_path.gradient(grad, gate, up)
    apart = ({later}.data_ptr() - {earlier}.data_ptr()) // gate.element_size()
    if gate.stride(-2) == 2 * gate.shape[-1] and apart == gate.shape[-1]:
        both = torch.cat((first, second), -1)
        {put}
    return first, second
"""
WRONG = {
    "views of one tensor": "first, second = both.chunk(2, -1)",
    "the same tensor": "second = first",
    "nothing": "",
}


@pytest.mark.parametrize("order", [("gate", "up"), ("up", "gate")])
@pytest.mark.parametrize("wrong", WRONG)
def test_gradients_of_two_halves(tmp_path: Path, order: tuple[str, str], wrong: str) -> None:
    path, (earlier, later) = tmp_path / "candidate.py", order
    path.write_text(CANDIDATE.format(earlier=earlier, later=later, put=WRONG[wrong]))
    report = check(
        OP, candidate=candidate_from(path), device="cpu", isolated=False, integration=False,
        cases=cases_of(OP, ["3-17-float32"]), drawn=0,
    )  # fmt: skip
    checks = {each.check for each in report.faults}
    assert checks == (set() if wrong == "nothing" else {"strided"}), report.faults
