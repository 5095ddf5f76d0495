"""A GPU that is not there: tensors that say they are on it, lie on the CPU, and do not mix with it.

So a path that is written for a GPU runs with its real numbers where there is none, and an operation
on tensors of both devices fails as it would there. What needs the device itself, a captured graph
or a compiled kernel, does not run; Triton's interpreter does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tercet.compress.blockwise import step_graph

GPU = torch.device("cuda", 0)
_MOVES = (Tensor.copy_, Tensor.__setitem__, Tensor.__getitem__, Tensor.index_copy_)


class OnGpu(Tensor):
    """A tensor in the CPU's memory that says it is on a GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def data_ptr(self) -> int:
        """Code of the CPU cannot read it."""
        raise RuntimeError("the address of a tensor on the GPU, on the CPU")


class _Captured:
    """Runs anew what a graph would replay."""

    def __init__(self, run: Callable[[], None], device: torch.device) -> None:
        assert device.type == "cuda"
        self.replay = run


class _Pretending(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__" and args and isinstance(args[0], OnGpu):
            owner = getattr(func, "__self__", None)
            if owner is Tensor.device:
                return GPU
            if owner is Tensor.is_cuda:
                return True
        if func in (Tensor.to, Tensor.cpu, Tensor.cuda):
            return self._move(func, args, kwargs)
        there = _any_on_gpu((args, kwargs))
        if kwargs.get("device") is not None:
            there = torch.device(kwargs["device"]).type == "cuda"
            if there:
                kwargs["device"] = "cpu"
        elif func in _MOVES:
            # what goes from one to the other changes no place
            there = isinstance(args[0], OnGpu)
        elif there and _any_on_cpu((args, kwargs)):
            raise RuntimeError(f"{name}: tensors on the GPU and on the CPU")
        wide = kwargs.pop("out_dtype", None)
        if wide is not None:
            # a CPU has no product whose sums are wider than its inputs
            args = [one.to(wide) for one in args]
        found = func(*args, **kwargs)
        return _mark(found) if there else _unmark(found)

    def _move(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        tensor, rest = args[0], list(args[1:])
        device = kwargs.pop("device", None)
        if func is not Tensor.to:
            device = "cuda" if func is Tensor.cuda else "cpu"
        for one in list(rest):
            if isinstance(one, str | torch.device):
                device = one
                rest.remove(one)
            elif isinstance(one, Tensor):
                device, dtype = _device_of(one), one.dtype
                rest[rest.index(one)] = dtype
        device = _device_of(tensor) if device is None else torch.device(device)
        if device.type != _device_of(tensor).type:
            tensor = tensor.detach().clone()
            tensor = _mark(tensor) if device.type == "cuda" else _unmark(tensor)
        kwargs.pop("non_blocking", None)
        if not rest and not kwargs:
            return tensor
        with torch._C.DisableTorchFunction():
            found = Tensor.to(tensor, *rest, **kwargs)
        return _mark(found) if device.type == "cuda" else _unmark(found)


def _device_of(tensor: Tensor) -> torch.device:
    return GPU if isinstance(tensor, OnGpu) else tensor.device


def _mark(found: Any) -> Any:
    if isinstance(found, Tensor):
        return found if isinstance(found, OnGpu) else _as(found, OnGpu)
    if isinstance(found, tuple | list) and any(isinstance(one, Tensor) for one in found):
        marked = [_mark(one) for one in found]
        return type(found)(marked) if type(found) in (tuple, list) else type(found)(tuple(marked))
    return found


def _unmark(found: Any) -> Any:
    return _as(found, Tensor) if isinstance(found, OnGpu) else found


def _as(tensor: Tensor, kind: type[Tensor]) -> Tensor:
    with torch._C.DisableTorchFunction():
        return tensor.as_subclass(kind)


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for one in values:
            yield from _tensors(one)
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))


def _any_on_gpu(values: Any) -> bool:
    return any(isinstance(one, OnGpu) for one in _tensors(values))


def _any_on_cpu(values: Any) -> bool:
    return any(not isinstance(one, OnGpu) and one.ndim > 0 for one in _tensors(values))


@contextmanager
def pretend_gpu() -> Iterator[torch.device]:
    """Within the block torch says that there is one GPU; yields its device."""
    with pytest.MonkeyPatch.context() as patch, _Pretending():
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        patch.setattr(torch.cuda, "max_memory_allocated", lambda *_: 1)
        patch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
        patch.setattr(torch.cuda, "set_sync_debug_mode", lambda _: None)
        patch.setattr(step_graph, "Captured", _Captured)
        yield GPU


@contextmanager
def any_gpu() -> Iterator[torch.device]:
    """The GPU, or a pretended one."""
    if torch.cuda.is_available():
        yield GPU
    else:
        with pretend_gpu() as device:
            yield device
