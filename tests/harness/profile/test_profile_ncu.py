"""Nsight Compute's raw page, read from text in its format."""

import pytest

from tercet.harness.profile import ncu
from tercet.harness.profile.call import Request

HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","dram__bytes_read.sum","dram__bytes_write.sum",'
    '"gpu__time_duration.sum","launch__occupancy_limit_registers",'
    '"launch__occupancy_limit_warps","launch__registers_per_thread","lts__t_sector_hit_rate.pct",'
    '"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",'
    '"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",'
    '"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"'
)
UNITS = (
    '"","","","","","","","","","","","byte","Mbyte","nsecond","block","block","register/thread",'
    '"%","inst","inst","%"'
)
FIRST = (
    '"0","4242","python3.12","127.0.0.1","_forward","1","7","(256, 1, 1)","(16384, 1, 1)","0",'
    '"9.0","268,435,456","134.2","95,424","4","8","43","12.51","1.5","23.75","n/a"'
)
SECOND = (
    '"1","4242","python3.12","127.0.0.1","void at::reduce<float, 4>(T1)","1","7","(512, 1, 1)",'
    '"(32, 1, 1)","0","9.0","1024","0.5","2000","2","4","32","90","3","2","0"'
)
OUTPUT = "\n".join(
    (
        "==PROF== Connected to process 4242 (/usr/bin/python3.12)",
        '==PROF== Profiling "_forward": 0%....50%....100% - 4 passes',
        "==PROF== Disconnected from process 4242",
        *(HEADER, UNITS, FIRST, SECOND),
    )
)
REQUEST = Request(
    op="rms_norm",
    implementation="triton",
    name="",
    sizes={"M": 1, "N": 1},
    dtype="bfloat16",
    options={},
    direction="forward",
    device="cuda",
)


def test_kernels_are_read_with_their_units() -> None:
    first, second = ncu.parse(OUTPUT)
    assert first.kernel == "_forward"
    assert second.kernel == "void at::reduce<float, 4>(T1)"
    assert first.duration_us == pytest.approx(95.424)
    assert first.dram_read_bytes == 268_435_456
    assert first.dram_written_bytes == pytest.approx(134.2e6)
    assert first.l2_hit_percent == pytest.approx(12.51)
    assert (first.registers, second.registers) == (43, 32)
    assert first.blocks_by == {"registers": 4, "warps": 8}


def test_stalls_come_largest_first() -> None:
    first, second = ncu.parse(OUTPUT)
    assert list(first.stalls.items()) == [("long_scoreboard", 23.75), ("barrier", 1.5)]
    assert list(second.stalls) == ["barrier", "long_scoreboard"]


def test_what_was_not_measured_is_none() -> None:
    first, second = ncu.parse(OUTPUT)
    assert first.tensor_percent is None
    assert second.tensor_percent == 0
    assert first.bank_conflicts is None


def test_output_without_a_table_has_no_kernels() -> None:
    assert ncu.parse("==ERROR== no kernels were profiled") == ()


def test_only_metrics_that_the_gpu_has_are_asked_for() -> None:
    asked = ncu.metrics(
        {"dram__bytes_read", "smsp__average_warps_issue_stalled_gmma_per_issue_active"}
    )
    assert "dram__bytes_read.sum" in asked
    assert "smsp__average_warps_issue_stalled_gmma_per_issue_active.ratio" in asked
    assert "launch__registers_per_thread" in asked
    assert "dram__bytes_write.sum" not in asked
    assert "dram__bytes_write.sum" in ncu.metrics(())


def _fake_ncu(tmp_path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    tool = tmp_path / "ncu"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    ncu.query_metrics.cache_clear()


def test_the_tool_is_run_on_the_driver(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").write_text(OUTPUT)
    script = f'echo "$@" >> {tmp_path}/asked\ncat {tmp_path}/out'
    _fake_ncu(tmp_path, monkeypatch, script)
    found = ncu.counters(REQUEST)
    assert not isinstance(found, str)
    assert [one.kernel for one in found] == ["_forward", "void at::reduce<float, 4>(T1)"]
    queried, asked = (tmp_path / "asked").read_text().splitlines()
    assert queried == "--query-metrics"
    assert "--profile-from-start off --clock-control none --csv --page raw" in asked
    assert '-m tercet.harness.profile.driver {"op":"rms_norm"' in asked


def test_missing_permission_is_put_into_words(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_ncu(
        tmp_path, monkeypatch, 'echo "==ERROR== ERR_NVGPUCTRPERM - no permission" >&2; exit 1'
    )
    assert "NVreg_RestrictProfilingToAdminUsers=0" in str(ncu.counters(REQUEST))


def test_a_machine_without_the_tool_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "ncu is not on PATH" in str(ncu.counters(REQUEST))
