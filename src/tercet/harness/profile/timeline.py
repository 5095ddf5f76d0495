"""Timeline: what torch's profiler and a clock say of a call, warm, launched eagerly."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from tercet.harness.profile.report import KernelTime, Timeline

_WARM_UP = 5
_CALLS = 20


@dataclass(frozen=True)
class Span:
    """Something that ran: its name, from when to when, in microseconds."""

    name: str
    start_us: float
    end_us: float


def timeline(call: Callable[[], object], device: str) -> Timeline:
    """Runs the call a few dozen times, first unobserved, then under the profiler."""
    for _ in range(_WARM_UP):
        call()
    host_us, call_us = _clock(call, device)
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with torch_profile(activities=activities, acc_events=True) as profiler:
        for _ in range(_CALLS):
            call()
        _wait(device)
    events: Any = profiler.events()
    if device == "cuda":
        spans = [_span(event) for event in events if _on_device(event)]
        return summarize(spans, _CALLS, call_us=call_us, host_us=host_us)
    kernels = summarize_host(((e.name, e.self_cpu_time_total) for e in events), _CALLS)
    return Timeline(
        kernels=kernels,
        launches=sum(kernel.launches for kernel in kernels),
        device_us=call_us,
        call_us=call_us,
        host_us=host_us,
    )


def summarize(spans: Iterable[Span], calls: int, *, call_us: float, host_us: float) -> Timeline:
    """The timeline of one call, from everything that the device did in `calls` of them."""
    ordered = sorted(spans, key=lambda span: span.start_us)
    times: dict[str, list[float]] = {}
    busy, until = 0.0, float("-inf")
    for span in ordered:
        times.setdefault(span.name, []).append(span.end_us - span.start_us)
        busy += max(0.0, span.end_us - max(span.start_us, until))
        until = max(until, span.end_us)
    return Timeline(
        kernels=_kernels(times, calls),
        launches=len(ordered) / calls,
        device_us=busy / calls,
        call_us=call_us,
        host_us=host_us,
    )


def summarize_host(events: Iterable[tuple[str, float]], calls: int) -> tuple[KernelTime, ...]:
    """Torch operations of one call by their own time on the host, from those of `calls`."""
    times: dict[str, list[float]] = {}
    for name, self_us in events:
        times.setdefault(name, []).append(self_us)
    return _kernels(times, calls)


def _kernels(times: dict[str, list[float]], calls: int) -> tuple[KernelTime, ...]:
    kernels = [
        KernelTime(name=name, launches=len(all_us) / calls, time_us=_per_call(all_us, calls))
        for name, all_us in times.items()
    ]
    return tuple(sorted(kernels, key=lambda kernel: -kernel.time_us))


def _per_call(all_us: list[float], calls: int) -> float:
    """The median over calls, so that one that was interrupted does not count."""
    if len(all_us) % calls:
        return sum(all_us) / calls
    each = len(all_us) // calls
    return median(sum(all_us[at : at + each]) for at in range(0, len(all_us), each))


def _clock(call: Callable[[], object], device: str) -> tuple[float, float]:
    """(until the host has issued a call, until it is done), in microseconds, without a profiler."""
    _wait(device)
    start = time.perf_counter()
    for _ in range(_CALLS):
        call()
    issued = time.perf_counter()
    _wait(device)
    done = time.perf_counter()
    return (issued - start) / _CALLS * 1e6, (done - start) / _CALLS * 1e6


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _on_device(event: Any) -> bool:
    return str(event.device_type).endswith("CUDA") and not getattr(
        event, "is_user_annotation", False
    )


def _span(event: Any) -> Span:
    return Span(event.name, event.time_range.start, event.time_range.end)
