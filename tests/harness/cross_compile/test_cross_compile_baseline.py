"""The baseline: what counts as worse, from made-up rows."""

import re
from pathlib import Path

import pytest

from tercet.cli.kernel.compile import _show
from tercet.errors import UnsupportedError
from tercet.harness.cross_compile import baseline
from tercet.harness.cross_compile.baseline import compare
from tercet.harness.cross_compile.report import CompileRow, Resources
from tercet.harness.new_op import new_op
from tercet.ops.discover import find

ACCEPTED = Resources(
    registers=100,
    spills=8,
    shared_bytes=1024,
    wgmma=8,
    loads=16,
    stores=4,
    load_bits=128,
    store_bits=128,
    load_bits_mean=128.0,
    store_bits_mean=100.0,
)


def _row(resources: Resources | None = ACCEPTED, **changed: str) -> CompileRow:
    outcome = "refused" if resources is None else "compiled"
    row = CompileRow(
        implementation="triton",
        kernel="_forward",
        target="sm_90",
        variant="*bf16",
        outcome=outcome,
        reason=None if resources else "cannot select",
        resources=resources,
    )
    return row.model_copy(update=changed)


def _checks(now: CompileRow | None, before: CompileRow | None) -> list[str]:
    rows, accepted = ([one] if one is not None else [] for one in (now, before))
    return [finding.check for finding in compare(rows, accepted, {"sm_90"})]


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"spills": 12}, "spills"),
        ({"wgmma": 0}, "instruction"),
        ({"load_bits": 64}, "vectorisation"),
        ({"store_bits_mean": 74.0}, "vectorisation"),
        ({"registers": 126}, "registers"),
    ],
)
def test_each_fault_is_found_alone(change: dict[str, int], check: str) -> None:
    assert _checks(_row(ACCEPTED.model_copy(update=change)), _row()) == [check]


@pytest.mark.parametrize(
    "change",
    [
        {"spills": 8},
        {"spills": 0},
        {"wgmma": 1},
        {"registers": 125},
        {"loads": 64, "stores": 16},
        {"store_bits_mean": 76.0},
        {"mma": 3},
    ],
)
def test_what_is_no_fault(change: dict[str, int]) -> None:
    assert _checks(_row(ACCEPTED.model_copy(update=change)), _row()) == []


def test_spills_say_what_a_thread_has_and_what_to_do() -> None:
    row = _row(variant="*bf16 BLOCK=16384 num_warps=16")
    (finding,) = compare([row], [], {"sm_90"})
    assert finding.message.startswith("8 bytes of registers spill to memory, 0 accepted. ")
    # 65536 registers among 512 threads
    assert "Each of 512 threads has at most 128 registers" in finding.message
    assert "a row of 16384 values is 32 of them, for each tensor alive" in finding.message
    assert "finish sums before the stores" in finding.message
    few = _row(variant="*bf16 BLOCK=64 num_warps=4")
    # no instruction names more than 255
    assert "at most 255 registers. " in compare([few], [], {"sm_90"})[0].message


def test_without_a_baseline_only_spills_fail() -> None:
    assert _checks(_row(ACCEPTED.model_copy(update={"spills": 0, "wgmma": 0})), None) == []
    assert _checks(_row(), None) == ["spills"]
    assert _checks(_row(None), None) == []


def test_without_a_committed_baseline_the_command_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(baseline, "baseline_path", lambda op: tmp_path / "compiled.json")
    report = baseline.judge(find("rms_norm"), [])
    assert report.passed
    assert not report.has_baseline
    row = _row(ACCEPTED.model_copy(update={"spills": 0}))
    _show(baseline.judge(find("rms_norm"), [row]), "rms_norm")
    assert "rms_norm: no committed baseline" in capsys.readouterr().err
    baseline.write_baseline(find("rms_norm"), [row])
    _show(baseline.judge(find("rms_norm"), [row]), "rms_norm")
    assert "no committed baseline" not in capsys.readouterr().err


def test_the_command_that_writes_a_baseline_finds_the_op(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = new_op("far_away", tmp_path / "my ops")
    op = find(made.address)
    command = f"`tercet kernel compile '{made.folder}' --update`"
    row = _row(ACCEPTED.model_copy(update={"spills": 0}))
    _show(baseline.judge(op, [row]), made.address)
    assert command in capsys.readouterr().err
    baseline.baseline_path(op).write_text("[7]")
    with pytest.raises(UnsupportedError, match=re.escape(command)):
        baseline.judge(op, [row])


def test_refused_fails_only_where_it_compiled_before() -> None:
    assert _checks(_row(None), _row()) == ["compiles"]
    assert _checks(_row(None), _row(None)) == []


def test_a_kernel_that_is_gone_fails_for_the_targets_that_were_compiled() -> None:
    assert _checks(None, _row()) == ["baseline"]
    assert _checks(None, _row(target="sm_80")) == []


def test_what_was_skipped_is_not_gone() -> None:
    skipped = _row(None, outcome="skipped", kernel="scale.cu", reason="nvcc not found")
    assert _checks(skipped, _row(kernel="_Z5scale")) == []
