"""Execute: runs one implementation on given inputs and reports everything that it did.

This is the candidate's side: it holds no reference and judges nothing. It may run in a process of
its own (see isolate).
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.harness.candidate import import_candidate
from tercet.harness.gradients import as_leaves, pull
from tercet.harness.guard import GuardedAllocations, Zones
from tercet.kernel.contract import Implementation, Kernels, Op, Requirement, outputs_of
from tercet.kernel.interpreter import correct, interpreting
from tercet.kernel.select import find, using

Values = dict[str, Any]


def load_candidate(op: str, implementation: str, module: str | None) -> tuple[Op, Kernels]:
    """The op without its reference, and the kernels to run: its own, or those of a module."""
    if interpreting():
        correct()
    found = find(op)
    if module is None:
        return found, found.implementation(implementation).load()
    candidate = Implementation(
        name=implementation,
        requirement=Requirement(dtypes=()),
        module=import_candidate(module),
        language="torch",
    )
    return found, candidate.load()


def hide_reference(op: Op) -> None:
    """Puts the op's reference out of reach of what runs in this process, for good."""

    def out_of_reach(*_: Any, **__: Any) -> Any:
        raise UnsupportedError(f"the reference of {op.name!r} is out of a candidate's reach")

    home = op.reference.__module__
    for name in (home, home.rpartition(".")[0] + ".op"):
        module = import_module(name)
        functions: dict[str, Any] = {**vars(module)}
        for attribute, value in functions.items():
            if callable(value) and getattr(value, "__module__", None) == home:
                setattr(module, attribute, out_of_reach)
    object.__setattr__(op, "reference", out_of_reach)
    object.__setattr__(op, "magnitude", None)


def execute(
    op: Op,
    kernels: Kernels,
    *,
    first: Values,
    second: Values | None,
    directions: Sequence[Tensor | None] | None,
    wanted: Sequence[str],
    device: str,
    repeats: int = 2,
) -> dict[str, Any]:
    """One case: the first inputs, the second ones at the same addresses, the first ones again.

    Args:
        op, kernels: what to run.
        first, second: prepared arguments; second has the shapes of the first, or is None.
        directions: what each output's gradient is; None runs forward only.
        wanted: names of the arguments whose gradients are wanted.
        device: where to.
        repeats: how often the first inputs run again at the end.

    Returns:
        outputs, gradients: of the first inputs; second_outputs, second_gradients; `changed`: names
        of inputs that were written to; `unstable`: what differed between equal calls;
        `overwritten`: outputs that a later call wrote to; `promises`: results unlike the fake's;
        `guard`: writes past an end; `state`:
        global state that changed; `views`: outputs that share memory with an input.
    """
    zones = Zones()
    before = _state()
    arguments = {name: _place(zones, name, value, device) for name, value in first.items()}
    ways = [
        _place(zones, f"gradient of output {at}", way, device)
        for at, way in enumerate(directions or ())
    ]
    report: dict[str, Any] = {"changed": [], "unstable": [], "overwritten": []}
    once = _Call(op, kernels, arguments, ways if directions is not None else None, wanted, zones)

    promises = list[str]()
    held = once.run(promises)
    kept = _copy(held)
    report["outputs"], report["gradients"] = kept
    report["views"] = _views(held[0], arguments)
    report["changed"] += _changed(first, arguments) + _changed_ways(directions, ways)
    if second is not None:
        _overwrite(arguments, second)
        other = once.run()
        report["second_outputs"], report["second_gradients"] = _copy(other)
        report["changed"] += _changed(second, arguments)
        report["overwritten"] = _differences(kept, _copy(held))
        _overwrite(arguments, first)
    for _ in range(repeats):
        report["unstable"] += _differences(kept, _copy(once.run()))
    report["promises"] = promises
    report["guard"] = zones.broken()
    report["state"] = [name for name, value in _state().items() if value != before[name]]
    return report


class _Call:
    """One call with its gradient, on placed tensors."""

    def __init__(
        self,
        op: Op,
        kernels: Kernels,
        arguments: Values,
        ways: Sequence[Tensor | None] | None,
        wanted: Sequence[str],
        zones: Zones,
    ) -> None:
        self._op, self._kernels, self._arguments = op, kernels, arguments
        self._ways, self._wanted, self._zones = ways, wanted, zones

    def run(
        self, promises: list[str] | None = None
    ) -> tuple[list[Tensor], dict[str, Tensor | None]]:
        names = self._wanted if self._ways is not None else ()
        arguments = as_leaves(self._arguments, names)
        with using(self._op, self._kernels), GuardedAllocations(self._zones, promises):
            outputs = list(outputs_of(self._op.run(*arguments.values())))
            ways = self._ways or [None] * len(outputs)
            gradients = pull(outputs, ways, arguments, names)
        return [output.detach() for output in outputs], gradients


def _place(zones: Zones, name: str, value: Any, device: str) -> Any:
    """The value on the device, in the same layout, between guard zones."""
    if not isinstance(value, Tensor):
        return value
    repeated = any(
        not stride and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True)
    )
    like = value.contiguous() if repeated else value
    return zones.place(name, like, torch.device(device)).copy_(value)


def _overwrite(arguments: Values, values: Values) -> None:
    for name, value in values.items():
        if isinstance(value, Tensor):
            # through .data, so that the version counter does not betray the new contents
            arguments[name].data.copy_(value)


def _copy(
    result: tuple[list[Tensor], dict[str, Tensor | None]],
) -> tuple[list[Tensor], dict[str, Tensor | None]]:
    """What a user of the current stream sees right now: work elsewhere is not waited for."""
    outputs, gradients = result
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()
    return (
        [output.clone() for output in outputs],
        {name: None if g is None else g.clone() for name, g in gradients.items()},
    )


def _differences(
    kept: tuple[list[Tensor], dict[str, Tensor | None]],
    now: tuple[list[Tensor], dict[str, Tensor | None]],
) -> list[str]:
    pairs = [(f"output {at}", a, b) for at, (a, b) in enumerate(zip(kept[0], now[0], strict=True))]
    pairs += [(f"gradient of {name}", kept[1][name], now[1][name]) for name in kept[1]]
    return [
        name
        for name, a, b in pairs
        if (a is None) != (b is None) or (a is not None and b is not None and not same_bits(a, b))
    ]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same bytes (so NaN equals NaN)."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(_octets(a), _octets(b.to(a.device)))


def _octets(x: Tensor) -> Tensor:
    """The bytes; a copy, because a view needs unit strides even where one element has none."""
    return (
        torch.empty(x.numel(), dtype=x.dtype, device=x.device).copy_(x.flatten()).view(torch.uint8)
    )


def _changed(values: Values, arguments: Values) -> list[str]:
    return [
        name
        for name, value in values.items()
        if isinstance(value, Tensor) and not same_bits(value, arguments[name].cpu())
    ]


def _changed_ways(
    given: Sequence[Tensor | None] | None, ways: Sequence[Tensor | None]
) -> list[str]:
    return [
        f"the incoming gradient of output {at}"
        for at, (value, way) in enumerate(zip(given or (), ways, strict=True))
        if value is not None and way is not None and not same_bits(value, way.cpu())
    ]


def _views(outputs: list[Tensor], arguments: Values) -> list[int]:
    memory = {
        value.untyped_storage().data_ptr()
        for value in arguments.values()
        if isinstance(value, Tensor)
    }
    return [
        at
        for at, output in enumerate(outputs)
        if output.numel() and output.untyped_storage().data_ptr() in memory
    ]


def _state() -> dict[str, Any]:
    """Global settings that a kernel has no business to change."""
    return {
        "default dtype": torch.get_default_dtype(),
        "grad mode": torch.is_grad_enabled(),
        "random state": torch.get_rng_state().numpy().tobytes(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "number of threads": torch.get_num_threads(),
    }
