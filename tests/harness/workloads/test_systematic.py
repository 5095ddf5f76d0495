"""Systematic cases: scalar options next to their ends, dtypes with more digits, at few numbers."""

from pathlib import Path

import pytest
import torch

from tercet.harness.check.run import check
from tercet.harness.sandbox.candidate import candidate_from
from tercet.harness.workloads.ends import draw_ends
from tercet.harness.workloads.systematic import draw_dtypes
from tercet.ops.discover import find

ELEMENTS = 1 << 14
OP = find("linear_kl")
HEAD = """
import math
from tercet.ops.linear_kl import torch_path
from tercet.ops.linear_kl.torch_path import forward, gradient
own = forward
def forward(x, weight, teacher_x, teacher_weight, mask, temperature, beta, *options):
"""
CALL = "    return own(x, weight, teacher_x, teacher_weight, mask, temperature, beta, *options)\n"


def test_options_are_next_to_0_and_1_and_exactly_there() -> None:
    drawn = draw_ends(OP, 3, 200, ELEMENTS)
    betas = {each.numbers["beta"] for each in drawn if "beta" in each.numbers}
    assert betas == {2.0**-23, 1 - 2.0**-23, 1.0}
    assert all(float(torch.tensor(1 - beta)) == 1 - beta for beta in betas)
    one = next(each for each in drawn if each.numbers == {"beta": 2.0**-23})
    assert one.arguments(OP, 0)["beta"] == 2.0**-23
    assert "beta=1.1920929e-07" in one.name


def test_what_is_rounded_is_rounded_where_few_are_summed() -> None:
    drawn = [each for seed in range(4) for each in draw_dtypes(OP, seed, 12, ELEMENTS)]
    wider = [each for each in drawn if set(each.dtypes.values()) == {torch.float32}]
    assert wider
    assert {each.workload.dtype for each in wider} <= {torch.float16, torch.bfloat16}
    assert all(3 <= size <= 8 for each in wider for size in each.workload.sizes.values())


@pytest.mark.parametrize(
    ("source", "right"),
    [
        ("    beta = min((0.0, 1.0, beta), key=lambda end: abs(end - beta) > 1e-6)\n", False),
        ("    beta = 0.0 if beta < 1e-30 else beta\n", True),
        ("    teacher_x, teacher_weight = (e.to(x.dtype) for e in (teacher_x, teacher_weight))\n",
         False),
        ("    teacher_x, teacher_weight = teacher_x.float(), teacher_weight.float()\n", True),
    ],
)  # fmt: skip
def test_a_kernel_that_is_judged_on_them(tmp_path: Path, source: str, *, right: bool) -> None:
    path = tmp_path / "candidate.py"
    path.write_text(HEAD + source + CALL)
    cases = tuple(
        each.case(OP)
        for each in (*draw_ends(OP, 3, 200, ELEMENTS), *draw_dtypes(OP, 3, 12, ELEMENTS))
        if each.numbers or each.dtypes
    )
    report = check(
        OP, candidate=candidate_from(path), device="cpu", isolated=False, integration=False,
        cases=cases, seed=3, drawn=0,
    )  # fmt: skip
    red = {each.check for each in report.faults} - {"coverage"}
    assert ("forward" in red) is not right, report.faults
