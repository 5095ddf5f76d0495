"""Capture: which kernels a call would launch, with what types, constants and options.

The launchers run for real, on tensors that have a shape but no memory (torch's fake tensors), so a
call of production size takes milliseconds; `JITFunction.run` notes the launch in place of it. What
a kernel is specialised for is then asked of Triton itself, for each target.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction, TensorWrapper

from tercet.errors import UnsupportedError
from tercet.harness.cross_compile.workloads import Call, calls
from tercet.harness.workloads.gradients import make_leaves, select_differentiable
from tercet.kernel.contract import Kernels, Op, Workload, outputs_of
from tercet.kernel.register import behind, folder_of
from tercet.kernel.select import load, using
from tercet.kernel.tuned import table, tables_of

# a launcher sizes its grid, and sometimes a constant, by this: an H100's and H200's
_MULTIPROCESSORS = 132
_aten: Any = torch.ops.aten
_READ_BY_PYTHON = (_aten._local_scalar_dense.default, _aten.item.default)


class Pointer:
    """Stands for a tensor argument of a kernel: what Triton's specialisation reads of one."""

    def __init__(self, dtype: torch.dtype, offset_bytes: int, size_bytes: int) -> None:
        self.dtype = dtype
        self._offset_bytes, self._size_bytes = offset_bytes, size_bytes

    def data_ptr(self) -> int:
        """An allocation is aligned; a view into it as its offset is."""
        return self._offset_bytes

    def ptr_range(self) -> int:
        """How many bytes lie behind it."""
        return self._size_bytes


@dataclass(frozen=True)
class Launch:
    """A launch that did not happen: the kernel, its arguments, and the workload it is for.

    `device` names the tuned table that its configuration is from; None for the kernel's default.
    """

    kernel: Any
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    workload: str
    device: str | None


def capture(op: Op, implementation: str, asked: Sequence[Workload] = ()) -> tuple[Launch, ...]:
    """Every launch of the implementation in these calls, forward and backward.

    Default: the op's production calls.
    """
    kernels, op = load(op, implementation), op.in_layout_of(op.implementation(implementation))
    launches: list[Launch] = []
    for call in calls(op, op.implementation(implementation), asked):
        for device in (None, *list_tuned_devices(op, implementation)):
            with tables_of(device or "none"), record_launches() as seen:
                run(op, kernels, call)
            launches += [Launch(*launch, call.name, device) for launch in seen]
    return tuple(launches)


def run(op: Op, kernels: Kernels, call: Call) -> None:
    """The call and its gradient on these kernels, on tensors without memory."""
    with FakeTensorMode(), _Inside(), using(op, kernels):
        arguments = op.prepare(call.make())
        names = select_differentiable(op, arguments) if kernels.gradient is not None else ()
        arguments = make_leaves(arguments, names)
        inputs = [arguments[name] for name in names]
        results = outputs_of(op.run(*arguments.values()))
        specs = op.of_role("output", "saved")
        outputs = [
            result
            for result, spec in zip(results, specs, strict=True)
            if spec.role == "output" and result.requires_grad and result.numel()
        ]
        if outputs and inputs:
            grads = [torch.empty_like(output) for output in outputs]
            # a call whose options rule its gradient out (a loss alone) says so itself
            with suppress(UnsupportedError):
                torch.autograd.grad(outputs, inputs, grads, allow_unused=True)


@contextmanager
def record_launches() -> Generator[list[tuple[Any, tuple[Any, ...], dict[str, Any]]], None, None]:
    """In the block kernels are noted (kernel, arguments, options) in place of being launched."""
    seen: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def note(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        del grid, warmup
        kept = {name: _stand_in(value) for name, value in options.items()}
        seen.append((self, tuple(map(_stand_in, arguments)), kept))

    with (
        mock.patch.object(JITFunction, "run", note),
        mock.patch("tercet.kernel.launch._INTERPRETED", _MULTIPROCESSORS),
    ):
        yield seen


def list_tuned_devices(op: Op, implementation: str) -> Iterator[str]:
    """The devices that the op has a tuned table for, with entries of the implementation."""
    for path in sorted((folder_of(op.name) / "tuned").glob("*.json")):
        if any(entry["implementation"] == implementation for entry in table(op.name, path.stem)):
            yield path.stem


def _stand_in(value: Any) -> Any:
    if isinstance(value, TensorWrapper):
        return _pointer(value.base, value.dtype)
    return _pointer(value, value.dtype) if isinstance(value, Tensor) else value


def _pointer(tensor: Any, dtype: Any) -> Pointer:
    offset = tensor.storage_offset() * tensor.element_size()
    return Pointer(dtype, offset, tensor.untyped_storage().nbytes())


class _Inside(TorchDispatchMode):
    """Runs the Python behind each op of ours where torch would take its fake implementation.

    A number that Python asks of a tensor has no value here: it gets 0, as from a check of the
    arguments that finds nothing wrong.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is _aten.is_nonzero.default:
            return False
        if func in _READ_BY_PYTHON:
            return _zero(args[0].dtype)
        inner = behind(func)
        if inner is None:
            return func(*args, **(kwargs or {}))
        with self:
            return inner(*args, **(kwargs or {}))


def _zero(dtype: torch.dtype) -> bool | int | float:
    if dtype == torch.bool:
        return False
    return 0.0 if dtype.is_floating_point else 0
