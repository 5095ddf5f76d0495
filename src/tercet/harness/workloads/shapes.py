"""Shapes: an op's calls in published models, cut to one GPU's memory or raised beyond int32."""

from dataclasses import replace
from math import prod

import torch
from pydantic import BaseModel, ConfigDict

from tercet.errors import UnsupportedError
from tercet.kernel.contract import Op, TensorSpec, Workload
from tercet.models import catalog
from tercet.records.record import Setting

SAMPLED_ROWS = 256
_INT32 = 2**31


class Shape(BaseModel):
    """One call of an op in a model.

    Attributes:
        model, tensor_parallel: of which model, on one of how many GPUs.
        workload: the call's name.
        sizes, dtype, options: what it is called with.
        size_bytes: of inputs, outputs and their gradients.
        elements: of the largest tensor; beyond 2^31 an int32 offset overflows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    tensor_parallel: int
    workload: str
    sizes: dict[str, int]
    dtype: str
    options: dict[str, Setting]
    size_bytes: int
    elements: int


def workloads_of(
    op: Op, model: str, tensor_parallel: int = 1, tokens: int | None = None
) -> tuple[Workload, ...]:
    """The op's calls in the catalog's model of that name.

    Args:
        op: the op; without `shapes` it has no calls.
        model: as the catalog names it; UnsupportedError for another.
        tensor_parallel: over how many GPUs the model is split.
        tokens: in one call; None for the catalog's 16384.
    """
    if tokens is None:
        return op.shapes(catalog.load(model, tensor_parallel))
    return op.shapes(catalog.load(model, tensor_parallel, tokens))


def shapes(
    op: Op, models: tuple[str, ...] = (), tensor_parallel: int = 1, tokens: int | None = None
) -> tuple[Shape, ...]:
    """The op's calls in these models (all of the catalog where none is named), described."""
    return tuple(
        Shape(
            model=model,
            tensor_parallel=tensor_parallel,
            workload=workload.name,
            sizes=dict(workload.sizes),
            dtype=str(workload.dtype)[6:],
            options=dict(workload.options),
            size_bytes=call_bytes(op, workload),
            elements=max(_elements(spec, workload) for spec in op.tensors),
        )
        for model in models or catalog.names()
        for workload in workloads_of(op, model, tensor_parallel, tokens)
    )


def call_bytes(op: Op, workload: Workload) -> int:
    """Bytes of a call's inputs and outputs, and of the gradients of those that have one.

    An optional input is counted unless the workload's options say that it is absent. Packed
    weights, which the op does not declare as tensors, are not counted.
    """
    total = 0
    for spec in op.tensors:
        if spec.role == "input" and spec.optional and not workload.options.get(spec.name, True):
            continue
        has_gradient = spec.role == "output" if op.differentiable else False
        copies = 2 if has_gradient or spec.name in op.differentiable else 1
        total += copies * _elements(spec, workload) * _item(spec, workload.dtype)
    return total


def check_bytes(op: Op, workload: Workload) -> int:
    """Bytes of the check's own work: float64 value, magnitude and gradient of sampled rows.

    Tensors that lie along no independent axis (weights) are widened whole.
    """
    sampled = workload
    if op.independent is not None:
        rows = min(SAMPLED_ROWS, workload.sizes[op.independent])
        sampled = replace(workload, sizes={**workload.sizes, op.independent: rows})
    return sum(3 * 8 * _elements(spec, sampled) for spec in op.tensors)


def needed_bytes(op: Op, workload: Workload) -> int:
    """What a check of the call needs at once: the call, the float64 rows, one float32 draw."""
    draw = max(4 * _elements(spec, workload) for spec in op.of_role("input"))
    return call_bytes(op, workload) + check_bytes(op, workload) + draw


def fit_memory(op: Op, workload: Workload, free_bytes: int) -> tuple[Workload, str | None]:
    """The workload, or the largest part of it that fits.

    It is cut along the op's independent axis. Where there is none (a loss over all tokens), the
    largest axis is halved until it fits, as twice as many GPUs or half the tokens would do.

    Returns:
        (workload, None) where all of it fits; else a smaller one and a note that says so.

    Raises:
        UnsupportedError: where not even one row fits.
    """
    needed = needed_bytes(op, workload)
    if needed <= free_bytes:
        return workload, None
    shrink = _halved if op.independent is None else _cut
    cut = shrink(op, workload, free_bytes)
    changed = {axis: size for axis, size in cut.sizes.items() if size != workload.sizes[axis]}
    note = (
        f"{workload.name} needs {needed / 2**30:.1f} GiB, {free_bytes / 2**30:.1f} are free: "
        + ", ".join(f"{axis} {workload.sizes[axis]} cut to {changed[axis]}" for axis in changed)
    )
    return cut, note


def _cut(op: Op, workload: Workload, free_bytes: int) -> Workload:
    axis = op.independent
    assert axis is not None
    low, high = 0, workload.sizes[axis]
    while high - low > 1:
        middle = (low + high) // 2
        if needed_bytes(op, _with(workload, axis, middle)) <= free_bytes:
            low = middle
        else:
            high = middle
    if not low:
        raise _too_large(workload, free_bytes)
    return _with(workload, axis, low)


def _halved(op: Op, workload: Workload, free_bytes: int) -> Workload:
    while needed_bytes(op, workload) > free_bytes:
        axis = max(workload.sizes, key=lambda name: workload.sizes[name])
        if workload.sizes[axis] < 2:
            raise _too_large(workload, free_bytes)
        workload = _with(workload, axis, workload.sizes[axis] // 2)
    return workload


def _too_large(workload: Workload, free_bytes: int) -> UnsupportedError:
    return UnsupportedError(
        f"{workload.name}: not even one row fits into {free_bytes / 2**30:.1f} GiB: raise "
        "tensor_parallel, or free memory"
    )


def beyond_int32(op: Op, workload: Workload) -> Workload:
    """The call with so many rows that its largest tensor has more than 2^31 elements.

    UnsupportedError where the op has no independent axis.
    """
    axis = op.independent
    if axis is None:
        raise UnsupportedError(
            f"{op.name!r} has no independent axis that could be raised beyond 2^31 elements"
        )
    row = _with(workload, axis, 1)
    widest = max(_elements(spec, row) for spec in op.tensors if axis in spec.axes)
    raised = _with(workload, axis, max(workload.sizes[axis], _INT32 // max(widest, 1) + 1))
    return replace(raised, name=f"{workload.name} beyond int32")


def _with(workload: Workload, axis: str, size: int) -> Workload:
    return replace(workload, sizes={**workload.sizes, axis: size})


def _elements(spec: TensorSpec, workload: Workload) -> int:
    return prod(workload.sizes.get(axis, 1) for axis in spec.axes)


def _item(spec: TensorSpec, dtype: torch.dtype) -> int:
    if dtype in spec.dtypes:
        return dtype.itemsize
    return max(allowed.itemsize for allowed in spec.dtypes)
