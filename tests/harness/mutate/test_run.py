from dataclasses import replace
from pathlib import Path

import pytest

from tercet.errors import UnsupportedError
from tercet.harness.mutate.explained import explanations
from tercet.harness.mutate.mutant_check import Verdict
from tercet.harness.mutate.record import records_of
from tercet.harness.mutate.run import mutants_of, mutate
from tercet.harness.mutate.sources import importers_of, modules_of, sources_of
from tercet.harness.new_op import new_op
from tercet.kernel.contract import Implementation, Op
from tercet.kernel.register import folder_of
from tercet.ops.discover import discover, find

EXPLAINED = [
    pytest.param(op, one, id=f"{op.name}-{one.name}")
    for op in discover().values()
    for one in op.implementations
    if explanations(folder_of(op.name), one.name)
]


def test_what_survives_and_what_does_not() -> None:
    op = find("swiglu")
    report = mutate(op, implementation="torch", device="cpu", sample=6, seed=3)
    assert report.mutants["torch"] > 50
    assert len(report.tried) == 6
    assert report.survivors == ()
    assert report.score("torch") == 1.0
    assert {each.by for each in report.tried} & {"forward", "backward"}


def test_an_op_outside_of_the_package(tmp_path: Path) -> None:
    made = new_op("mutated_elsewhere", tmp_path)
    report = mutate(find(made.address), implementation="torch", device="cpu", sample=3, seed=3)
    assert {each.end for each in report.tried} <= {"killed", "survived"}
    assert report.score("torch"), "some are killed, so that its own files are those that are run"


def test_a_check_without_eyes_lets_mutants_live() -> None:
    op = find("swiglu")
    blind = [replace(each, relative=1e30, gradient=1e30) for each in op.tolerances]
    op = replace(op, tolerances=tuple(blind))
    report = mutate(op, implementation="torch", device="cpu", sample=2, seed=6)
    assert report.survivors


def test_what_no_case_reaches_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    op = find("swiglu")
    green = Verdict(by=None, message="", seconds=1.0, reached=set())
    monkeypatch.setattr("tercet.harness.mutate.run._unchanged", lambda *_: green)
    report = mutate(op, implementation="torch", device="cpu", sample=6, seed=3)
    assert [each.reached for each in report.tried] == [False] * 6
    assert report.survivors == ()
    assert report.score("torch") is None
    (record,) = records_of(report)
    assert record.metrics["unreached"] == 6.0
    assert record.metrics["killed"] == record.metrics["survived"] == 0.0


def test_a_red_implementation_is_refused() -> None:
    op = find("swiglu")
    strict = [replace(each, relative=0.0, gradient=0.0, inner=None) for each in op.tolerances]
    with pytest.raises(UnsupportedError, match="is red without any change"):
        mutate(replace(op, tolerances=tuple(strict)), implementation="torch", device="cpu")


@pytest.mark.parametrize("sample", [0, -2])
def test_a_sample_of_none_is_refused(sample: int) -> None:
    with pytest.raises(UnsupportedError, match=f"sample {sample}: must be 1 or more"):
        mutate(find("swiglu"), implementation="torch", device="cpu", sample=sample)


@pytest.mark.parametrize(("op", "implementation"), EXPLAINED)
def test_each_explanation_is_of_a_mutant(op: Op, implementation: Implementation) -> None:
    known = {mutant.key for mutant in mutants_of(implementation)}
    assert set(explanations(folder_of(op.name), implementation.name)) <= known


def test_the_sources_of_a_triton_kernel() -> None:
    triton = find("fake_quantize").implementation("triton")
    names = {path.name for path in sources_of(triton)}
    assert "triton.py" in names
    assert not names & {"op.py", "reference.py", "cases.py"}
    modules = modules_of(triton)
    for path in sources_of(triton):
        order = importers_of(path, modules)
        assert modules[order[0]] == path
        assert triton.module in order


def test_the_sources_of_a_cpp_kernel() -> None:
    names = {path.name for path in sources_of(find("linear_packed").implementation("cpu"))}
    assert {"packed_product.cpp", "rows16.hpp", "cpu.py"} <= names
