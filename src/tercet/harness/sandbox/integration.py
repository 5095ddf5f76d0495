"""Integration: the op as torch sees it: opcheck, CUDA graphs, other streams."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tercet.harness.sandbox.bits import same_bits
from tercet.harness.workloads.gradients import vjp
from tercet.kernel.contract import Kernels, Op, outputs_of
from tercet.kernel.select import using

Values = dict[str, Any]
_DELAY_CYCLES = 100_000_000  # about 50 ms on a GPU: longer than any small call


def opcheck(op: Op, kernels: Kernels, first: Values, wanted: list[str], device: str) -> str:
    """What torch.library.opcheck (schema, fake, autograd) objects to; empty when nothing."""
    arguments = _on(first, device)
    for name in wanted:
        arguments[name] = arguments[name].requires_grad_()
    overload: Any = op.run
    with using(op, kernels):
        try:
            torch.library.opcheck(overload, tuple(arguments.values()))
        except Exception as error:  # noqa: BLE001 whatever it finds is the finding
            return _short(error)
    return ""


def compare_captured(
    op: Op,
    kernels: Kernels,
    first: Values,
    second: Values,
    wanted: list[str],
    grad_outputs: list[Tensor | None],
    device: str,
) -> str:
    """Whether a CUDA graph captured on the first inputs computes the second ones on replay."""
    with using(op, kernels):
        try:
            expected = _call(op.run, second, wanted, grad_outputs, device)
            arguments = _require(_on(first, device), wanted)
            grads = [
                grad_output.to(device) if grad_output is not None else None
                for grad_output in grad_outputs
            ]
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    _results(op.run, arguments, wanted, grads)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                found = _results(op.run, arguments, wanted, grads)
            with torch.no_grad():
                for name, value in second.items():
                    if isinstance(value, Tensor):
                        arguments[name].copy_(value)
            graph.replay()
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 whatever it finds is the finding
            return _short(error)
    return _different(expected, found, "when a CUDA graph is replayed on new contents")


def compare_streamed(
    op: Op,
    kernels: Kernels,
    first: Values,
    second: Values,
    wanted: list[str],
    grad_outputs: list[Tensor | None],
    device: str,
) -> str:
    """Whether all work is on the current stream: inputs arrive late, results are read there."""
    with using(op, kernels):
        try:
            expected = _call(op.run, second, wanted, grad_outputs, device)
            arguments = _require(_on(first, device), wanted)
            late = _on(second, device)
            grads = [
                grad_output.to(device) if grad_output is not None else None
                for grad_output in grad_outputs
            ]
            torch.cuda.synchronize()
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                torch.cuda._sleep(_DELAY_CYCLES)  # pyright: ignore[reportPrivateUsage]
                with torch.no_grad():
                    for name, value in late.items():
                        if isinstance(value, Tensor):
                            arguments[name].copy_(value, non_blocking=True)
                results = _results(op.run, arguments, wanted, grads)
                found = [result.clone() for result in results]
            side.synchronize()
        except Exception as error:  # noqa: BLE001 whatever it finds is the finding
            return _short(error)
    return _different(expected, found, "on a stream whose inputs arrive late: work ran elsewhere")


def _call(
    run: Callable[..., Any], values: Values, wanted: list[str], grad_outputs: list[Any], device: str
) -> list[Tensor]:
    arguments = _require(_on(values, device), wanted)
    return _results(
        run, arguments, wanted, [w.to(device) if w is not None else None for w in grad_outputs]
    )


def _results(
    run: Callable[..., Any], arguments: Values, wanted: list[str], grad_outputs: list[Any]
) -> list[Tensor]:
    outputs = list(outputs_of(run(*arguments.values())))
    gradients = vjp(outputs, grad_outputs, arguments, wanted, allow_unused=False)
    return [output.detach() for output in outputs] + [
        gradient for gradient in gradients.values() if gradient is not None
    ]


def _on(values: Values, device: str) -> Values:
    return {
        name: value.to(device, copy=True) if isinstance(value, Tensor) else value
        for name, value in values.items()
    }


def _require(arguments: Values, wanted: list[str]) -> Values:
    for name in wanted:
        arguments[name].requires_grad_()
    return arguments


def _different(expected: list[Tensor], found: list[Tensor], where: str) -> str:
    wrong = [
        at for at, (a, b) in enumerate(zip(expected, found, strict=True)) if not same_bits(a, b)
    ]
    return f"result {wrong[0]} differs {where}" if wrong else ""


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"
