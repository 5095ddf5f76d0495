"""The generic suite: every op, every implementation that this machine can run, every case."""

from pathlib import Path

import pytest
import torch

from tercet.harness.check.plain_cases import select_fitting
from tercet.harness.check.run import cannot_run, check
from tercet.harness.check.subject import FEW_DRAWN
from tercet.kernel.contract import Op, outputs_of
from tercet.ops.discover import discover, find

EXAMPLE = Path(__file__).parents[2] / "docs" / "guides" / "examples" / "gelu_gate"
OPS = {**discover(), EXAMPLE.name: find(str(EXAMPLE))}
SEED = 18
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RUNS = [
    (op, implementation.name)
    for op in OPS.values()
    for implementation in op.implementations
    if cannot_run(implementation, DEVICE, isolated=False) is None
]


@pytest.mark.parametrize(("op", "name"), RUNS, ids=[f"{op.name}-{name}" for op, name in RUNS])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of NaN that a case puts in
def test_check_is_green(op: Op, name: str) -> None:
    report = check(op, implementation=name, device=DEVICE, isolated=False, drawn=0)
    faults = [f"{f.check} on {f.case}: {f.message}" for f in report.faults]
    assert report.passed, f"seed {report.seed}: {len(faults)} faults: {faults[:5]}"
    one = op.implementation(name)
    wanted = len(select_fitting(op.in_layout_of(one), one, op.cases))
    assert wanted
    assert sum(finding.check == "forward" for finding in report.findings) == wanted


@pytest.mark.parametrize(("op", "name"), RUNS, ids=[f"{op.name}-{name}" for op, name in RUNS])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_drawn_cases_are_green(op: Op, name: str) -> None:
    """The same ones in every run: `tercet kernel check` draws fresh ones."""
    report = check(
        op, implementation=name, device=DEVICE, isolated=False, cases=(), drawn=FEW_DRAWN,
        seed=SEED, integration=False,
    )  # fmt: skip
    faults = [f"{f.check} on {f.case}: {f.message}" for f in report.faults]
    assert not faults, faults[:5]


@pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
def test_tensors_and_cost_are_as_declared(op: Op) -> None:
    for case in op.cases:
        prepared = op.prepare(case.make(0))
        for spec in op.of_role("input"):
            tensor = prepared.get(spec.name)
            if tensor is None:
                assert spec.optional or spec.name not in prepared, (case.name, spec.name)
                continue
            assert tensor.dtype in spec.dtypes, (case.name, spec.name)
    taken = [case for case in op.cases if not case.refusable][-1]
    prepared = op.prepare(taken.make(0))
    results = outputs_of(op.run(*prepared.values()))
    spent = op.cost(prepared)
    written = sum(result.numel() * result.element_size() for result in results)
    assert spent.bytes_written == written, taken.name


def test_every_op_can_be_run_somewhere_here() -> None:
    assert {op.name for op, _ in RUNS} == set(OPS)


def test_finds_the_ops_by_their_folders() -> None:
    assert {"linear_packed", "embedding_packed", "rms_norm"} <= set(OPS)
    assert all(op.name == name for name, op in OPS.items())
