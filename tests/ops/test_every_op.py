"""The generic suite: every op, every implementation that this machine can run, every case."""

import pytest
import torch

from tercet.harness.check import cannot_run, check, fitting
from tercet.kernel.contract import Op, outputs_of
from tercet.kernel.select import discover

OPS = discover()
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
    report = check(op, implementation=name, device=DEVICE, isolated=False)
    faults = [f"{f.check} on {f.case}: {f.message}" for f in report.faults]
    assert report.passed, f"seed {report.seed}: {len(faults)} faults: {faults[:5]}"
    one = op.implementation(name)
    wanted = len(fitting(op.arranged(one), one, op.cases))
    assert wanted
    assert sum(finding.check == "forward" for finding in report.findings) == wanted


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
    results = outputs_of(op.run(*prepared.values()))
    spent = op.cost(prepared)
    written = sum(result.numel() * result.element_size() for result in results)
    assert spent.bytes_written == written, case.name


def test_every_op_can_be_run_somewhere_here() -> None:
    assert {op.name for op, _ in RUNS} == set(OPS)


def test_finds_the_ops_by_their_folders() -> None:
    assert {"linear_packed", "embedding_packed", "rms_norm"} <= set(OPS)
    assert all(op.name == name for name, op in OPS.items())
