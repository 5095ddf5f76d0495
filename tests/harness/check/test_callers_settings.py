"""Settings of a caller's that an op may not depend on: numpy's errors, torch's default device."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tercet.harness.check.run import CheckReport, cases_of, check
from tercet.harness.sandbox.candidate import candidate_from
from tercet.kernel.contract import Op
from tercet.ops.discover import find

OP = find("rms_norm")
HEAD = (
    "import numpy\nfrom tercet.ops.rms_norm import torch_path\nfrom contextlib import nullcontext\n"
)
WAY = (
    "def {way}(*arguments):\n"
    "    with {errors}:\n"
    "        numpy.{computed}\n"
    "    return torch_path.{way}(*arguments)\n"
)
OVERFLOW, BY_ZERO = "exp(numpy.float32([1000]))", "divide(1.0, numpy.zeros(1))"
UNDERFLOW = "exp(numpy.float32([-1000]))"
QUIET, AS_CALLER = "numpy.errstate(all='ignore')", "nullcontext()"


def judged(tmp_path: Path, op: Op, **words: Any) -> CheckReport:
    path, text = tmp_path / "candidate.py", HEAD
    for way in ("forward", "gradient"):
        text += WAY.format(way=way, **{"errors": QUIET, "computed": OVERFLOW} | words.get(way, {}))
    path.write_text(text, encoding="utf-8")
    return check(
        op, candidate=candidate_from(path), device="cpu", isolated=False, integration=False,
        cases=cases_of(op, ["3-17-float32"]), drawn=0,
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:(overflow|divide by zero) encountered:RuntimeWarning")
def test_an_error_of_numpys_is_found_wherever_it_arises(tmp_path: Path) -> None:
    for way, check_of_way in (("forward", "forward"), ("gradient", "backward")):
        for computed in (OVERFLOW, BY_ZERO):
            said = {"errors": AS_CALLER, "computed": computed}
            faults = judged(tmp_path, OP, **{way: said}).faults
            assert check_of_way in {each.check for each in faults}
            assert all("FloatingPointError" in each.message for each in faults)


def test_one_that_is_told_to_be_ignored_is_none(tmp_path: Path) -> None:
    assert judged(tmp_path, OP).faults == ()


def test_a_number_that_is_too_small_is_none(tmp_path: Path) -> None:
    said = {"errors": AS_CALLER, "computed": UNDERFLOW}
    assert judged(tmp_path, OP, forward=said, gradient=said).faults == ()


def test_memory_on_the_default_device_is_found(tmp_path: Path) -> None:
    def run(x: Tensor, *others: Any) -> Any:
        return OP.run(x + torch.zeros(x.shape[-1]), *others)

    faults = judged(tmp_path, replace(OP, run=run)).faults
    label = "with meta as torch's default device: "
    assert any(each.check == "context" and each.message.startswith(label) for each in faults)
