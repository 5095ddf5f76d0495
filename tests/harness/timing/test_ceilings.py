"""Ceilings are measured once per device, kept as a record, and measured anew on request."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tercet.harness.timing import ceilings as module
from tercet.harness.timing.ceilings import Ceilings, ceilings, ceilings_path
from tercet.harness.timing.device_state import parse, state_metrics
from tercet.records import Record


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path))
    monkeypatch.setitem(module._COPY_BYTES, "cpu", 1 << 20)
    monkeypatch.setitem(module._SIDE, "cpu", 64)
    return tmp_path


def test_measured_on_this_cpu_they_are_plausible(small: Path):
    found = ceilings("cpu")
    assert 1e7 < found.copy_bytes_per_second < 1e13
    assert found.fp32_flops_per_second is not None
    assert 1e6 < found.fp32_flops_per_second < 1e15
    assert found.bf16_flops_per_second is None


def test_kept_as_a_record_and_read_again(small: Path, monkeypatch: pytest.MonkeyPatch):
    first = ceilings("cpu")
    record = Record.model_validate_json((small / "ceilings" / "cpu.json").read_text())
    assert (record.kind, record.subject) == ("ceiling", "cpu")
    assert record.metrics["copy_bytes_per_second"] == first.copy_bytes_per_second

    other = Ceilings(device="cpu", l2_bytes=1, copy_bytes_per_second=2.0)
    monkeypatch.setattr(module, "measure", lambda device: other)
    assert ceilings("cpu") == first
    assert ceilings("cpu", refresh=True) == other
    assert ceilings("cpu") == other


@pytest.mark.parametrize("content", ["", "{}", '{"kind": "bench"}', "[1"])
def test_a_damaged_file_is_measured_anew(small: Path, content: str):
    path = ceilings_path("cpu")
    path.parent.mkdir()
    path.write_text(content)
    assert ceilings("cpu").device == "cpu"
    assert path.read_text() != content


def test_nvidia_smi_is_read():
    state = parse("1980, 3201, 512.75, 61, 0x0000000000000004\n")
    assert state is not None
    assert (state.clock_mhz, state.memory_clock_mhz) == (1980, 3201)
    assert (state.power_w, state.temperature_c, state.throttled) == (512.75, 61, True)


def test_idle_is_not_throttling_and_unknown_fields_give_no_state():
    idle = parse("345, 3201, 75.1, 30, 0x0000000000000001")
    assert idle is not None
    assert not idle.throttled
    assert parse("345, 3201, [N/A], 30, 0x1") is None
    assert parse("") is None


def test_the_larger_power_and_any_throttling_are_recorded():
    before = parse("1980, 3201, 700, 61, 0x4")
    after = parse("1755, 3201, 500, 66, 0x0")
    assert state_metrics(before, after) == {
        "clock_mhz": 1755,
        "memory_clock_mhz": 3201,
        "power_w": 700,
        "temperature_c": 66,
        "throttled": 1.0,
    }
    assert state_metrics(None, None) == {}


PROBE = """
import torch
from tercet.kernel.interpreter.corrections import correct
correct()
from tercet.harness.timing.read_probe import BLOCK, nothing, read
for where in (0, BLOCK + 5, 3 * BLOCK - 1):
    x, out = torch.zeros(3 * BLOCK, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    x[where] = 2**31 - 1
    read(x, out, 2, 1)  # what is read twice cancels
    assert int(out) == 0
    for programs in (1, 2, 5):
        read(x, out.zero_(), 3, programs)
        assert int(out) == 2**31 - 1, (where, programs)
nothing(x)
"""


def test_the_read_probe_reads_every_block_in_every_pass():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
