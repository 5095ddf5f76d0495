"""Ceilings: what this machine's memory and arithmetic units reach, measured, kept per device."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from tercet import environment
from tercet.checkpoints.atomic import write_atomic
from tercet.harness.timing.clock import Block, capture, timing_on
from tercet.harness.timing.memory import cache_bytes, free_bytes
from tercet.harness.timing.statistics import median_interval
from tercet.kernel.launch import multiprocessors
from tercet.kernel.tuned import device_name
from tercet.records import Environment, Record

_SAMPLES = 15
_COPY_BYTES = {"cuda": 2 << 30, "cpu": 128 << 20}
_SIDE = {"cuda": 8192, "cpu": 1024}
_PROGRAMS_EACH = 4
_L2_PASSES = 64


class Ceilings(BaseModel):
    """What a device reaches; None where it cannot do that at all or it was not measured.

    Attributes:
        device: its name.
        l2_bytes: the last-level cache.
        copy_bytes_per_second: of a device copy of 2 GiB, bytes read and written.
        read_bytes_per_second, l2_bytes_per_second: of a kernel that only reads, from memory and
            from the second-level cache.
        fp32_flops_per_second ... int8_flops_per_second: of a matrix product of random 8192 x 8192
            operands (1024 on a CPU); operations for int8.
        empty_kernel_us: a kernel that does nothing, in a graph.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: str
    l2_bytes: float
    copy_bytes_per_second: float
    read_bytes_per_second: float | None = None
    l2_bytes_per_second: float | None = None
    fp32_flops_per_second: float | None = None
    bf16_flops_per_second: float | None = None
    fp16_flops_per_second: float | None = None
    fp8_flops_per_second: float | None = None
    int8_flops_per_second: float | None = None
    empty_kernel_us: float | None = None

    def record(self) -> Record:
        """As a record of kind "ceiling"."""
        metrics: dict[str, float] = self.model_dump(exclude={"device"}, exclude_none=True)
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        return Record(
            kind="ceiling",
            subject=self.device,
            metrics=metrics,
            environment=Environment.here(accelerator=gpu),
        )


def ceilings(device: str, *, refresh: bool = False) -> Ceilings:
    """The device's ceilings, from the cache or measured now (half a minute on a GPU).

    Args:
        device: "cuda" or "cpu".
        refresh: measure anew.
    """
    path = ceilings_path(device)
    if not refresh and (kept := _kept(path)) is not None:
        return kept
    measured = measure(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, measured.record().model_dump_json(indent=1).encode())
    return measured


def ceilings_path(device: str) -> Path:
    """Where they are kept."""
    name = "cpu" if device == "cpu" else device_name()
    return environment.cache_dir() / "ceilings" / f"{name}.json"


def measure(device: str) -> Ceilings:
    """All ceilings, measured now."""
    measured: dict[str, Any] = {
        "device": ceilings_path(device).stem,
        "l2_bytes": cache_bytes(device),
        "copy_bytes_per_second": copy_bandwidth(device),
        "fp32_flops_per_second": _product(device, torch.float32),
    }
    if device != "cpu":
        measured |= {
            "bf16_flops_per_second": _product(device, torch.bfloat16),
            "fp16_flops_per_second": _product(device, torch.float16),
            "fp8_flops_per_second": _product_fp8(device),
            "int8_flops_per_second": _product_int8(device),
            **_probes(device),
        }
    return Ceilings(**measured)


def copy_bandwidth(device: str) -> float:
    """Bytes read and written a second by a copy that is far larger than any cache."""
    count = min(_COPY_BYTES[device], free_bytes(device) // 4)
    source = torch.empty(count, dtype=torch.uint8, device=device).random_(0, 255)
    target = torch.empty_like(source)
    # a plain call: as a node of a graph a copy took 1.6 times as long on an H200
    us = _time_us(lambda: target.copy_(source), device, captured=False)
    return 2 * count / us * 1e6


def _product(device: str, dtype: torch.dtype) -> float:
    side = _SIDE[device]
    a = torch.randn(side, side, device=device).to(dtype)
    b = torch.randn(side, side, device=device).to(dtype)
    out = torch.empty_like(a)
    return 2 * side**3 / _time_us(lambda: torch.mm(a, b, out=out), device) * 1e6


def _product_fp8(device: str) -> float | None:
    if torch.version.hip is not None or torch.cuda.get_device_capability() < (8, 9):
        return None
    side, one = _SIDE[device], torch.ones((), device=device)
    a = torch.randn(side, side, device=device).to(torch.float8_e4m3fn)
    b = torch.randn(side, side, device=device).to(torch.float8_e4m3fn)

    def run() -> Any:
        # (mat1, mat2, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum)
        return torch.ops.aten._scaled_mm(a, b.t(), one, one, None, None, torch.bfloat16, True)

    return 2 * side**3 / _time_us(run, device) * 1e6


def _product_int8(device: str) -> float:
    side = _SIDE[device]
    a = torch.randint(-127, 128, (side, side), dtype=torch.int8, device=device)
    b = torch.randint(-127, 128, (side, side), dtype=torch.int8, device=device)
    return 2 * side**3 / _time_us(lambda: torch.ops.aten._int_mm(a, b.t()), device) * 1e6


def _probes(device: str) -> dict[str, float]:
    """What needs a kernel of our own."""
    # Imported on a GPU only: Triton needs a driver to launch anything.
    probe: Any = import_module("tercet.harness.timing.read_probe")
    programs = _PROGRAMS_EACH * multiprocessors(torch.device(device))
    out = torch.zeros(1, dtype=torch.int32, device=device)

    def bandwidth(size_bytes: int, passes: int) -> float:
        count = size_bytes // 4 // probe.BLOCK * probe.BLOCK
        x = torch.randint(0, 1 << 30, (count,), dtype=torch.int32, device=device)
        us = _time_us(lambda: probe.read(x, out, passes, programs), device)
        return 4 * count * passes / us * 1e6

    return {
        "read_bytes_per_second": bandwidth(min(_COPY_BYTES[device], free_bytes(device) // 4), 1),
        "l2_bytes_per_second": bandwidth(cache_bytes(device) // 3, _L2_PASSES),
        "empty_kernel_us": _time_us(lambda: probe.nothing(out), device, calls=100),
    }


def _time_us(
    call: Callable[[], object], device: str, calls: int = 1, captured: bool = True
) -> float:
    """The median time of a call; in a graph on a GPU unless that is not wanted."""
    with timing_on(device) as (timer, stream):
        if stream is None or not captured:
            block = Block(run=call, calls=1)
        else:
            replay, _ = capture([call] * calls, stream, keep=1)
            block = Block(run=replay, calls=calls, queued=True)
        return median_interval([timer.round([block], [1])[0] for _ in range(_SAMPLES)]).median


def _kept(path: Path) -> Ceilings | None:
    """What was measured before; None where there is nothing, or a file of another version."""
    try:
        record = Record.model_validate(json.loads(path.read_text(encoding="utf-8")))
        return Ceilings(device=record.subject, **record.metrics)
    except (FileNotFoundError, ValueError, ValidationError, TypeError):
        return None
