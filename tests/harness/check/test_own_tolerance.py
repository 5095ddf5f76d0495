"""An implementation whose hardware's sums keep less is held to a bound of its own: by the check, at
production shapes and in the benchmark; no other is, and no candidate that asks for one."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from tercet.harness.bench.run import bench
from tercet.harness.check.run import check
from tercet.harness.check.scale import check_scale
from tercet.kernel.contract import Implementation, Op, Tolerance, Workload
from tercet.kernel.model_shape import ModelShape
from tercet.ops.linear_packed import torch_path
from tercet.ops.linear_packed.op import OP
from tercet.records import Outcome

OWN = Tolerance(dtype=torch.bfloat16, relative=2**-8, inner=0.06, reason="planted")
CASES = tuple(case for case in OP.cases if case.name == "ternary-bfloat16-6")
CALL = Workload(name="call", sizes={"M": 4, "N": 32, "K": 64}, options={"scheme": "ternary"})


@pytest.fixture
def loose() -> Iterator[Implementation]:
    """Results 5 % too large, where the op allows 0.4 % of what is summed."""
    module = ModuleType("planted_loose")

    def forward(*arguments: Any) -> Tensor:
        y = torch_path.forward(*arguments)
        return (y.float() * 1.05).to(y.dtype)

    module.__dict__["forward"] = forward
    sys.modules[module.__name__] = module
    yield replace(OP.implementation("torch"), module=module.__name__, tolerances=(OWN,))
    del sys.modules[module.__name__]


def op_of(*implementations: Implementation) -> Op:
    return replace(OP, implementations=implementations, differentiable=())


def green(op: Op, candidate: Implementation | None = None) -> bool:
    plain: dict[str, Any] = {"device": "cpu", "isolated": False, "integration": False, "seed": 1}
    report = check(op, candidate=candidate, cases=CASES, **plain)
    return all(finding.passed for finding in report.findings if finding.check == "forward")


def test_the_check_holds_it_to_its_own_and_others_to_the_ops(loose: Implementation) -> None:
    assert green(op_of(loose))
    assert not green(op_of(replace(loose, tolerances=())))
    assert not green(op_of(OP.implementation("torch")), candidate=loose)


def test_its_timed_results_are_held_to_it_too(loose: Implementation) -> None:
    outcomes = {
        own: bench(
            op_of(loose if own else replace(loose, tolerances=())),
            (CALL,), baselines=(), directions=("forward",), caches=("warm",), launches=("eager",),
            device="cpu", seconds_per_row=0.01,
        ).records[0].outcome
        for own in (True, False)
    }  # fmt: skip
    assert outcomes == {True: Outcome.OK, False: Outcome.WRONG}


def test_production_shapes_are_held_to_it_too(loose: Implementation) -> None:
    def shapes(model: ModelShape) -> tuple[Workload, ...]:
        del model
        return (CALL,)

    def passed(one: Implementation) -> bool:
        op = replace(op_of(one), shapes=shapes)
        return check_scale(op, "smollm2-135m", device="cpu", seed=1).passed

    assert passed(loose)
    assert not passed(replace(loose, tolerances=()))
