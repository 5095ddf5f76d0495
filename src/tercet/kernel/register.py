"""Register: an op's function as a torch.library op, so that compile, graphs and FSDP see it whole.

The Python function behind each op stays reachable (`behind`), so that a check can run an
implementation inside its own watch on memory.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.kernel.contract import Run

_library = torch.library.Library("tercet", "FRAGMENT")
_AUTOCAST = ("AutocastCPU", "AutocastCUDA")
_torch: Any = torch._C  # pyright: ignore[reportPrivateUsage]
_exclude = _torch._ExcludeDispatchKeyGuard
_AUTOCAST_KEYS = _torch.DispatchKeySet(_torch.DispatchKey.AutocastCPU) | _torch.DispatchKeySet(
    _torch.DispatchKey.AutocastCUDA
)
_behind: dict[Any, Run] = {}
_folders: dict[str, Path] = {}


def define(name: str, schema: str, run: Run, fake: Run) -> Any:
    """Registers `tercet::name`.

    Autocast does not reach inside: products that an op writes in float32 are meant so, and torch
    would otherwise make them of bfloat16. Kernels run on the GPU that the first tensor lies on,
    whichever is the current one.

    Args:
        name: the op's name.
        schema: "(Tensor x, ...) -> Tensor" in torch.library's language.
        run: what it does, on any device.
        fake: the empty outputs for given arguments, without reading values.

    Returns:
        The op, callable with positional arguments.
    """
    _library.define(name + schema)
    torch.library.register_fake(f"tercet::{name}", fake, lib=_library)
    overload = getattr(torch.ops.tercet, name).default
    checked = _returning_as_declared(overload, run)
    _library.impl(name, on_its_gpu(checked), "CompositeExplicitAutograd")

    def without_autocast(*arguments: Any) -> Any:
        with _exclude(_AUTOCAST_KEYS):
            return overload(*arguments)

    for key in _AUTOCAST:
        _library.impl(name, without_autocast, key)
    _behind[overload] = checked
    _folders[name] = Path(inspect.getfile(run)).parent
    return overload


def _returning_as_declared(overload: Any, run: Run) -> Run:
    """The same; TypeError for a result that is not what the schema declares.

    torch ends the process where there is a tensor too many, takes None for a tensor, and prints
    every element of what it cannot take.
    """
    declared = [str(each.type) for each in overload._schema.returns]
    if set(declared) != {"Tensor"}:
        return run
    count = len(declared)

    def checked(*arguments: Any, **named: Any) -> Any:
        result = run(*arguments, **named)
        if count == 1 and isinstance(result, Tensor):
            return result
        several = () if count == 1 else _several(result) or ()
        if len(several) == count and all(isinstance(each, Tensor) for each in several):
            return result
        raise TypeError(
            f"{overload.name()} returned {_kind_of(result)}, its schema declares "
            f"{'one tensor' if count == 1 else f'a tuple of {count} tensors'}: see what the "
            f"implementation returns to {run.__name__} in {inspect.getfile(run)}"
        )

    return checked


def _several(result: Any) -> tuple[Any, ...] | None:
    """What a tuple or list holds; None of anything else."""
    return tuple(cast("list[Any]", result)) if isinstance(result, tuple | list) else None


def _kind_of(result: Any) -> str:
    several = _several(result)
    if several is not None:
        return f"a {type(result).__name__} of ({', '.join(map(_kind_of, several))})"
    return "None" if result is None else type(result).__name__


def on_its_gpu(run: Run) -> Run:
    """The same, with the first tensor's GPU as the current one: that is where launches go."""

    def on_its_gpu(*arguments: Any) -> Any:
        for each in arguments:
            if not isinstance(each, Tensor):
                continue
            if not each.is_cuda or each.get_device() == torch.cuda.current_device():
                break
            with torch.cuda.device(each.device):
                return run(*arguments)
        return run(*arguments)

    return on_its_gpu


def differentiate(
    name: str,
    save: Callable[[Any, tuple[Any, ...], Any], None],
    backward: Callable[..., Any],
) -> None:
    """Gives `tercet::name` a gradient.

    Autograd would fill a tensor of zeros for every output without an incoming gradient, also for
    the saved ones that have none ever: a kept gradient of a gigabyte would cost another one. Here
    a first output gets zeros, another gets None.

    Args:
        name: the op's name.
        save: (ctx, inputs, output), keeps what backward needs.
        backward: (ctx, *gradients), one per output; None for any but the first that has none.
    """
    schema = getattr(torch.ops.tercet, name).default._schema
    arguments = [each.name for each in schema.arguments]

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)
        first = output if isinstance(output, Tensor) else output[0]
        ctx.first_output = (first.shape, first.dtype, first.device)
        save(ctx, inputs, output)

    def with_zeros(ctx: Any, *gradients: Tensor | None) -> Any:
        first, *rest = gradients
        if first is None:
            shape, dtype, device = ctx.first_output
            first = torch.zeros(shape, dtype=dtype, device=device)
        found = backward(ctx, first, *rest)
        several = _several(found)
        count = 1 if several is None else len(several)
        if count != len(arguments):
            raise TypeError(
                f"the backward of tercet::{name} returned {count} gradients of "
                f"{len(arguments)} arguments ({', '.join(arguments)}): return one for each, None "
                "where it has none"
            )
        return found

    torch.library.register_autograd(
        f"tercet::{name}", with_zeros, setup_context=setup, lib=_library
    )


def behind(overload: Any) -> Run | None:
    """The Python function of an op that `define` made; None for every other op."""
    return _behind.get(overload)


def folder_of(name: str) -> Path:
    """The folder of the file that defined an op: its tuned tables and sources lie there."""
    if name not in _folders:
        raise UnsupportedError(f"op {name!r} is not defined yet: import its op.py first")
    return _folders[name]
