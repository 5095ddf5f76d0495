"""What a child process runs to time rows of one revision.

The child imports this file by its path, with PYTHONPATH set to another revision's `src`: both
revisions are timed by one clock, and a revision that is older than this file can be timed too. So
it reads of `tercet` only the op contract. The parent calls `start` once, then `prepare` and
`time_samples` for each row.
"""

import itertools
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from tercet.kernel.contract import Op, Workload
from tercet.kernel.select import load, using

try:
    find: Callable[[str], Op] = import_module("tercet.ops.discover").find
except ModuleNotFoundError:  # an older revision, which found its operations in the kernel package
    find = import_module("tercet.kernel.select").find

Call = Callable[[], object]

_SAMPLE_S = {"cpu": 2e-3, "cuda": 1e-3}
_MOST_CALLS = {"cpu": 1000, "cuda": 200}
# of this process: its device, and the prepared row
_state: dict[str, Any] = {}


def time_row(
    op: Op, workload: Workload, direction: str, implementation: str | None, device: str
) -> Callable[[int], list[float]]:
    """Prepares one row; the result times so many samples of it, in seconds a call.

    On CUDA a sample is one replay of a graph that holds several calls; on the CPU several calls
    in a row. Warm caches.
    """
    if device == "cpu":
        return _on_cpu(_call(op, workload, direction, implementation, device))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    # autograd runs backward on the forward's stream, which must be the one that is captured
    with torch.cuda.stream(stream):
        call = _call(op, workload, direction, implementation, device)
        for _ in range(3):
            call()
    stream.synchronize()
    return _Replays(call, stream)


def _call(
    op: Op, workload: Workload, direction: str, implementation: str | None, device: str
) -> Call:
    assert op.inputs is not None
    kernels = load(op, implementation) if implementation is not None else None
    arguments = op.prepare(op.inputs(workload, 0, device))

    def run() -> Any:
        if kernels is None:
            return op.run(*arguments.values())
        with using(op, kernels):
            return op.run(*arguments.values())

    if direction == "forward":
        return run
    wanted = _require_gradients(op, arguments)
    result = run()
    outputs = (result,) if isinstance(result, Tensor) else tuple(result)
    saved = [spec.role == "saved" for spec in op.tensors if spec.role != "input"]
    kept = [
        output
        for output, is_saved in zip(outputs, saved, strict=True)
        if output.requires_grad and output.numel() and not is_saved
    ]
    gradients = [torch.randn_like(output) for output in kept]

    def backward() -> object:
        def vjp() -> object:
            return torch.autograd.grad(
                kept, wanted, gradients, retain_graph=True, allow_unused=True
            )

        if kernels is None:
            return vjp()
        with using(op, kernels):
            return vjp()

    return backward


def _require_gradients(op: Op, arguments: dict[str, Any]) -> list[Tensor]:
    for name in op.differentiable:
        if isinstance(arguments.get(name), Tensor):
            arguments[name] = arguments[name].detach().requires_grad_()
    return [arguments[name] for name in op.differentiable if arguments.get(name) is not None]


def _on_cpu(call: Call) -> Callable[[int], list[float]]:
    call()
    started = time.perf_counter()
    call()
    once = time.perf_counter() - started
    calls = _calls(once, "cpu")

    def sample() -> float:
        started = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - started) / calls

    return lambda samples: [sample() for _ in range(samples)]


class _Replays:
    """Times replays of a graph of several calls.

    It keeps the call: the graph reads the call's tensors at the addresses that they have.
    """

    def __init__(self, call: Call, stream: torch.cuda.Stream) -> None:
        self._call, self._stream = call, stream
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            first.record()
            for _ in range(3):
                call()
            last.record()
        stream.synchronize()
        self._capture(_calls(first.elapsed_time(last) / 3e3, "cuda"))
        # what the host needs to launch a small call is in that time, but not in the graph's
        self._capture(_calls(min(self(3)), "cuda"))

    def __call__(self, samples: int) -> list[float]:
        """Seconds of a call, of each sample. All is queued behind a replay that is not timed, so
        that no sample waits for the host."""
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(samples + 1)]
        with torch.cuda.stream(self._stream):
            self._graph.replay()
            marks[0].record()
            for mark in marks[1:]:
                self._graph.replay()
                mark.record()
        self._stream.synchronize()
        return [
            start.elapsed_time(end) / 1e3 / self._calls for start, end in itertools.pairwise(marks)
        ]

    def _capture(self, calls: int) -> None:
        self._calls, self._graph = calls, torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=self._stream):
            for _ in range(calls):
                self._call()


def _calls(once_s: float, device: str) -> int:
    """So many that one sample is long against the clock's own steps."""
    return max(1, min(_MOST_CALLS[device], round(_SAMPLE_S[device] / max(once_s, 1e-9))))


def _prepared(row: Mapping[str, Any], device: str) -> Callable[[int], list[float]]:
    workload = Workload(
        name=row["workload"],
        sizes=row["sizes"],
        dtype=getattr(torch, row["dtype"]),
        options=row["options"],
    )
    return time_row(find(row["op"]), workload, row["direction"], row["implementation"], device)


def start(device: str) -> str:
    """Sets the process up for timing; the file of the package that it imported."""
    torch.set_num_threads(1)
    if device == "cuda":
        # here, where the processes of a pass start side by side, and not in the first row
        torch.zeros(1, device=device)
        torch.cuda.synchronize()
    _state["device"] = device
    return str(sys.modules[Op.__module__].__file__)


def prepare(row: Mapping[str, Any]) -> None:
    """Prepares the row that `time_samples` times from now on."""
    # its memory is freed before the next one's is taken
    _state.pop("timed", None)
    if _state["device"] == "cuda":
        torch.cuda.empty_cache()
    _state["timed"] = _prepared(row, _state["device"])


def time_samples(samples: int) -> list[float]:
    """Seconds of a call, of each sample."""
    return _state["timed"](samples)
