"""`tercet kernel compile` for calls that the baseline does not hold, and its table."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tercet.harness.cross_compile import ALL, CompileReport
from tercet.kernel.contract import Op

Run = Callable[..., Any]
QUESTION = ("kernel", "compile", "swiglu", "--implementation", "triton", "--target", "sm_90")


def kernels(done: Any) -> list[tuple[str, str]]:
    assert done.code == 0, done.err
    (report,) = json.loads(done.out)["reports"]
    return [(row["workload"], row["variant"]) for row in report["rows"]]


def test_compiles_for_a_shape_and_a_dtype(tercet: Run) -> None:
    found = kernels(tercet(*QUESTION, "--shape", "M=4,N=8192", "--dtype", "float32", "--json"))
    assert {workload for workload, _ in found} == {"M=4,N=8192"}
    assert all("*fp32" in variant and "*bf16" not in variant for _, variant in found)


def test_compiles_for_a_model(tercet: Run) -> None:
    asked = ("--model", "llama-3-405b", "--tensor-parallel", "8", "--tokens", "16")
    found = kernels(tercet(*QUESTION, *asked, "--json"))
    assert found
    assert all(workload.startswith("llama-3-405b") for workload, _ in found)


def test_other_calls_are_no_baseline(tercet: Run) -> None:
    done = tercet(*QUESTION, "--shape", "M=4,N=8192", "--update")
    assert "--update writes the baseline of an op's production calls" in done.error


def test_an_axis_without_a_size_is_named(tercet: Run) -> None:
    assert "N" in tercet(*QUESTION, "--shape", "M=4").error


def test_the_table_fits_80_columns(tercet: Run) -> None:
    lines = tercet(*QUESTION, "--shape", "M=4,N=8192").out.splitlines()
    assert "registers" in lines[1]
    assert any(line.startswith("  sm_90") for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(("word", "recompile"), [("--all", ALL), ("--recompile", ALL), ("", 0)])
def test_all_compiles_what_has_not_changed_too(
    tercet: Run, monkeypatch: pytest.MonkeyPatch, word: str, recompile: int
) -> None:
    asked: list[int] = []

    def note(op: Op, *, recompile: int, **_: object) -> CompileReport:
        asked.append(recompile)
        return CompileReport(op=op.name, rows=(), findings=(), has_baseline=True, reused=0)

    monkeypatch.setattr("tercet.cli.kernel.compile.cross_compile", note)
    assert tercet("kernel", "compile", "swiglu", "rope", *([word] if word else [])).code == 0
    assert asked == [recompile] * 2
