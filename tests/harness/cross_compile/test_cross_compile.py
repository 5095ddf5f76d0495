"""Cross-compile, whole: an op with everything that can go wrong, captured and compiled for real."""

import json
import shutil
from pathlib import Path

import pytest

from tercet.errors import UnsupportedError
from tercet.harness.cross_compile import (
    ALL,
    TARGETS,
    CompileReport,
    CompileRow,
    cross_compile,
    judge,
    read_baseline,
)
from tercet.harness.cross_compile.baseline import write_baseline
from tercet.kernel.contract import Op
from tercet.ops.discover import find

PLANTED = Path(__file__).parent / "planted_product"


@pytest.fixture(scope="module")
def op() -> Op:
    return find(str(PLANTED))


@pytest.fixture(scope="module")
def report(op: Op) -> CompileReport:
    return cross_compile(op, implementation="triton", targets=("sm_80", "sm_90", "gfx942"))


def _row(report: CompileReport, kernel: str, target: str, workload: str) -> CompileRow:
    wanted = (kernel, target, workload)
    (row,) = [row for row in report.rows if (row.kernel, row.target, row.workload) == wanted]
    return row


@pytest.mark.parametrize(
    ("target", "instruction"), [("sm_80", "mma"), ("sm_90", "wgmma"), ("gfx942", "mfma")]
)
def test_each_target_has_its_matrix_instruction(
    report: CompileReport, target: str, instruction: str
) -> None:
    resources = _row(report, "_product", target, "bf16").resources
    assert resources is not None
    kinds = {kind for kind, count in resources.instructions().items() if count}
    assert kinds == {instruction}
    assert 32 <= resources.registers <= 512
    assert resources.shared_bytes >= 128 * 64 * 2
    assert (resources.load_bits, resources.store_bits) == (128, 128)


def test_a_launch_is_specialised_as_triton_would(report: CompileReport) -> None:
    assert _row(report, "_product", "sm_90", "bf16").variant == (
        "*bf16:16 x2 *fp32:16 i32:16 x2 SIDE=128 DEPTH=64 num_warps=4"
    )
    unaligned = _row(report, "_product", "sm_90", "unaligned")
    assert "i32:16 i32 SIDE" in unaligned.variant
    assert unaligned.resources is not None
    assert unaligned.resources.load_bits_mean < 64


def test_the_gradient_is_captured(report: CompileReport) -> None:
    assert _row(report, "_double", "sm_90", "bf16").variant == "*fp32:16 *bf16:16 SIZE=1024"


def test_equal_launches_are_compiled_once(report: CompileReport) -> None:
    assert len({row.identity for row in report.rows}) == len(report.rows)
    # codes of fp8 have no gradient
    assert {row.workload for row in report.rows if row.kernel == "_double"} == {"bf16"}


def test_what_a_target_cannot_do_is_refused_with_the_compilers_reason(
    report: CompileReport,
) -> None:
    row = _row(report, "_product", "sm_80", "fp8")
    assert row.outcome == "refused"
    assert row.reason is not None
    assert "fp8e4nv not supported" in row.reason
    assert _row(report, "_product", "sm_90", "fp8").outcome == "compiled"


def test_what_could_not_be_launched_is_refused(report: CompileReport) -> None:
    row = _row(report, "_product", "sm_90", "too large")
    assert row.outcome == "refused"
    assert "a block on sm_90 has at most 232448" in (row.reason or "")


def test_spills_fail(report: CompileReport) -> None:
    spilling = {row.target for row in report.rows if row.resources and row.resources.spills}
    found = [finding for finding in report.findings if finding.check == "spills"]
    assert {finding.case.split(":")[0].split()[-1] for finding in found} == spilling
    assert "sm_80" in spilling
    assert not report.passed


def test_accepted_rows_pass_and_a_lost_one_fails(op: Op, report: CompileReport) -> None:
    path = PLANTED / "compiled.json"
    try:
        write_baseline(op, report.rows)
        assert judge(op, report.rows).passed
        lost = [row for row in report.rows if row.kernel != "_double" or row.target != "sm_90"]
        checks = [finding.check for finding in judge(op, lost).findings]
        assert checks == ["baseline"]
        assert len(json.loads(path.read_text())) == len(report.rows)
    finally:
        path.unlink(missing_ok=True)


def test_an_unchanged_kernel_is_not_compiled_again(op: Op, report: CompileReport) -> None:
    path = PLANTED / "compiled.json"

    def again(recompile: int = 0) -> CompileReport:
        return cross_compile(
            op, implementation="triton", targets=("sm_80", "sm_90"), recompile=recompile
        )

    written = sum(row.target != "gfx942" for row in report.rows)
    try:
        write_baseline(op, report.rows)
        second = again()
        assert (second.passed, second.reused, len(second.rows)) == (True, written, written)
        assert again(recompile=3).reused == written - 3
        # an edited kernel has another digest; an edited baseline is found by compiling again
        rows = json.loads(path.read_text())
        compiled = {(row["kernel"], row["target"]): row for row in rows if "resources" in row}
        compiled["_double", "sm_80"]["resources"]["registers"] += 90
        compiled["_product", "sm_90"]["digest"] = "0" * 32
        path.write_text(json.dumps(rows))
        assert (again().passed, again().reused) == (True, written - 1)
        anew = again(recompile=ALL)
        assert anew.reused == 0
        (finding,) = anew.findings
        assert finding.check == "baseline"
        assert "_double" in finding.case
        assert "very same sources" in finding.message
    finally:
        path.unlink(missing_ok=True)


def test_a_digest_tells_sources_constants_and_targets_apart(report: CompileReport) -> None:
    digests = [row.digest for row in report.rows if row.digest is not None]
    assert len(digests) == len(set(digests)) >= len(report.rows) - 1
    assert all(len(digest) == 32 for digest in digests)


def test_a_launcher_that_fails_is_a_finding(op: Op) -> None:
    report = cross_compile(op, implementation="broken", targets=("sm_90",))
    (finding,) = report.findings
    assert finding.check == "capture"
    assert "no tile fits [128, 512]" in finding.message
    assert not report.passed


def test_an_implementation_that_launches_nothing_is_a_finding(op: Op) -> None:
    report = cross_compile(op, implementation="idle", targets=("sm_90",))
    assert [finding.check for finding in report.findings] == ["capture"]


def test_cuda_sources_are_compiled_or_named(op: Op) -> None:
    report = cross_compile(op, implementation="cuda", targets=("sm_90", "gfx942"))
    (row,) = report.rows
    if shutil.which("nvcc") is None:
        assert (row.outcome, row.kernel) == ("skipped", "planted_product/scale.cu")
        assert "nvcc not found" in (row.reason or "")
        return
    assert "scale" in row.kernel
    assert row.resources is not None
    assert (row.resources.loads, row.resources.load_bits) == (1, 128)
    assert row.resources.shared_bytes == 128


def test_rms_norm_is_accepted_for_every_target() -> None:
    # that it still compiles to these rows is asked with every other op
    rows = read_baseline(find("rms_norm"))
    assert {row.kernel for row in rows} >= {"_forward", "_gradient"}
    assert {row.target for row in rows} == set(TARGETS)
    assert all(row.outcome == "compiled" for row in rows)


def test_unknown_names_are_refused(op: Op) -> None:
    with pytest.raises(UnsupportedError, match="unknown target 'sm_9'"):
        cross_compile(op, targets=("sm_9",))
    with pytest.raises(UnsupportedError, match="no implementation 'tritn'"):
        cross_compile(op, implementation="tritn")
