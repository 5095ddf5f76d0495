"""Profile on a CPU, and the timeline of made-up device activity."""

import time
from dataclasses import replace

import pytest
import torch

from tercet.errors import UnsupportedError
from tercet.harness.profile import profile
from tercet.harness.profile.timeline import Span, summarize, timeline
from tercet.kernel.contract import Workload
from tercet.ops.discover import find

WORKLOAD = Workload(
    name="small", sizes={"M": 64, "N": 256}, dtype=torch.float32, options={"residual": True}
)


def test_device_activity_is_summed_by_kernel() -> None:
    spans = [
        Span("main", 0.0, 10.0),
        Span("reduce", 12.0, 14.0),
        Span("main", 20.0, 30.0),
        Span("reduce", 29.0, 31.0),
    ]
    found = summarize(spans, 2, call_us=30.0, host_us=5.0)
    assert [(one.name, one.launches, one.time_us) for one in found.kernels] == [
        ("main", 1, 10.0),
        ("reduce", 1, 2.0),
    ]
    assert found.launches == 2
    assert found.device_us == pytest.approx((10 + 2 + 10 + 1) / 2)
    assert found.idle_us == pytest.approx(30 - 11.5)


def test_one_interrupted_call_does_not_count() -> None:
    spans = [Span("main", 100.0 * at, 100.0 * at + 10.0) for at in range(4)]
    spans.append(Span("main", 400.0, 490.0))
    assert summarize(spans, 5, call_us=0.0, host_us=0.0).kernels[0].time_us == 10.0


def test_a_call_is_clocked() -> None:
    found = timeline(lambda: time.sleep(0.002), "cpu")
    assert found.call_us >= 2000
    assert found.device_us == found.call_us


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_rms_norm_is_profiled(direction: str) -> None:
    report = profile(
        find("rms_norm"),
        WORKLOAD,
        device="cpu",
        direction=direction,  # type: ignore[arg-type]
        copy_bytes_per_second=1e9,
    )
    size = 64 * 256 * 4
    moved = {"forward": 4 * size + 4 * 256 + 4 * 64, "backward": 4 * size + 8 * 256 + 4 * 64}
    assert report.needed_bytes == moved[direction]
    assert report.implementation == "torch"
    assert report.timeline.launches >= 3
    assert any(one.name == "aten::mul" for one in report.timeline.kernels)
    assert report.counters == ()
    assert report.counters_missing
    assert report.advice[0].says.startswith("memory-bound at ")


def test_an_implementation_that_may_not_run_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="runs on cuda, the tensors are on cpu"):
        profile(find("rms_norm"), WORKLOAD, device="cpu", implementation="triton")


def test_an_op_without_inputs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    op = replace(find("rms_norm"), inputs=None)
    monkeypatch.setattr("tercet.harness.profile.call.find", lambda _: op)
    with pytest.raises(UnsupportedError, match="has no `inputs`"):
        profile(op, WORKLOAD, device="cpu", implementation="torch")
